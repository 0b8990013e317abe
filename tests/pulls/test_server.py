"""Pulls through a real server: its routes, and its death in the middle of one."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hubs import Fault, Hub
from served import Served, make_home

GGUF = os.urandom(1 << 20) * 4
REPO = "Tiny/Talker-0.5B-GGUF"
FILE = "talker-0.5b-q4_0.gguf"


@pytest.fixture
def served(tmp_path: Path, hubs: dict[str, Hub]) -> Iterator[Served]:
    hubs["huggingface"].repositories[REPO] = {FILE: GGUF}
    made = make_home(tmp_path / "home", hubs)
    made.start()
    yield made
    made.stop()


def test_a_pull_streams_its_progress_and_the_model_is_listed_found_and_removed(served: Served) -> None:
    events = served.pull(f"huggingface:{REPO}")
    last = events[-1]
    assert last["status"] == "done"
    assert (last["completed_bytes"], last["total_bytes"]) == (len(GGUF), len(GGUF))
    assert last["files"] == [{"name": FILE, "completed_bytes": len(GGUF), "total_bytes": len(GGUF), "done": True}]
    (listed,) = served.request("GET", "/v1/models/available").json()["data"]
    assert listed == last["result"]
    assert listed["id"] == "talker:0.5b-q4_0@gguf-cpu"
    for name in ("talker", "talker:0.5b", f"{REPO}:Q4_0", f"hf.co/{REPO}", "talker:0.5b-q4_0(gguf/cpu)"):
        assert served.request("GET", f"/v1/models/available/{name}").json() == listed
    again = served.request("POST", "/v1/models/pull", {"model": REPO, "source": "huggingface"}).json()
    assert (again["status"], again["fetched"], again["result"]) == ("done", False, listed)
    removed = served.request("DELETE", f"/v1/models/available/{REPO}").json()
    assert removed["removed"] == listed
    assert served.request("GET", "/v1/models/available").json()["data"] == []
    assert served.request("DELETE", "/v1/models/available/talker").status_code == 404


def test_errors_have_their_status_before_the_stream_begins(served: Served, hubs: dict[str, Hub]) -> None:
    def refused(**body: object) -> tuple[int, str]:
        answer = served.request("POST", "/v1/models/pull", {"stream": True, **body})
        return answer.status_code, answer.json()["error"]["code"]

    assert refused(model="Tiny/Nothing") == (404, "model_not_found")
    assert refused(model="../../etc/passwd") == (400, "invalid_request")
    assert refused(model=REPO, source="nowhere") == (400, "invalid_request")
    assert refused(model=f"huggingface:{REPO}:Q8_0") == (404, "model_not_found")
    hubs["huggingface"].repositories["Tiny/Board-1B"] = {"Board-1B_RK3588.rkllm": GGUF}
    assert refused(model="huggingface:Tiny/Board-1B") == (409, "no_fitting_variant")
    variants = served.request("POST", "/v1/models/variants", {"model": "huggingface:Tiny/Board-1B"}).json()["data"]
    assert [(item["chips"], item["platforms"]) for item in variants] == [(["rk3588"], [])]
    assert "no NPU was found" in variants[0]["reason"]
    hubs["huggingface"].faults.append(Fault(path="/resolve/", status=404))
    assert served.request("POST", "/v1/models/pull", {"model": f"huggingface:{REPO}"}).status_code == 404
    hubs["huggingface"].faults.append(Fault(path="/resolve/", times=9, is_wrong=True))
    (*_, last) = served.pull(f"huggingface:{REPO}")
    assert last["error"]["code"] == "corrupt_download"


def test_a_client_that_leaves_stops_nothing_and_another_follows(served: Served, hubs: dict[str, Hub]) -> None:
    gate = threading.Event()
    hubs["huggingface"].faults.append(Fault(path="/resolve/", cut_at=0.5, gate=gate))
    with served.pulling(f"huggingface:{REPO}") as events:
        leaver = next(state for state in events if state["completed_bytes"])
    (running,) = served.request("GET", "/v1/models/pulls").json()["data"]
    assert (running["id"], running["status"], running["error"]) == (leaver["id"], "downloading", None)
    with served.pulling(f"huggingface:{REPO}") as events:
        assert next(events)["id"] == leaver["id"]
        gate.set()
        (*_, last) = events
    assert last["status"] == "done"
    assert hubs["huggingface"].ranges("/resolve/") == [None]


def test_a_pull_is_cancelled_for_everybody_by_whoever_says_so(served: Served, hubs: dict[str, Hub]) -> None:
    hubs["huggingface"].faults.append(Fault(path="/resolve/", cut_at=0.5, gate=threading.Event()))
    with served.pulling(f"huggingface:{REPO}") as events:
        running = next(state for state in events if state["completed_bytes"])
        assert served.request("DELETE", f"/v1/models/pulls/{running['id']}").status_code == 200
        (*_, last) = events
    assert last["error"]["code"] == "pull_cancelled"
    assert served.request("DELETE", f"/v1/models/pulls/{running['id']}").status_code == 404
    removed = served.request("DELETE", "/v1/models/available/talker").json()
    assert removed["removed"] is None
    assert list((served.store / ".partial").iterdir()) == []


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_a_killed_server_leaves_nothing_half_and_the_next_one_goes_on(
    served: Served, hubs: dict[str, Hub], part: float
) -> None:
    hub = hubs["huggingface"]
    gate = threading.Event()
    hub.faults.append(Fault(path="/resolve/", cut_at=part, gate=gate))
    there = int(len(GGUF) * part)
    with served.pulling(f"huggingface:{REPO}") as events:
        # All but the last block is on the disk.
        next(state for state in events if state["completed_bytes"] > max(there - (512 << 10), 0))
        served.kill()
    gate.set()
    assert list(served.store.rglob("model.toml")) == []
    served.start()
    assert served.request("GET", "/v1/models/available").json()["data"] == []
    (left,) = served.request("GET", "/v1/models/pulls").json()["data"]
    assert left["status"] == "interrupted"
    (*_, last) = served.pull(f"huggingface:{REPO}")
    assert last["status"] == "done"
    file = Path(last["result"]["model_path"]) / FILE
    assert hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256(GGUF).digest()
    resumed = hub.ranges("/resolve/")[-1] or hub.ranges("/cdn/")[-1]
    assert resumed is not None
    assert int(resumed.removeprefix("bytes=").removesuffix("-")) > max(there - (512 << 10), 0)
    assert served.request("GET", "/v1/models/pulls").json()["data"][0]["status"] == "done"
