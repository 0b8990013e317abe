"""Pulls through the official client, from a registry on this machine."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import ollama
import pytest
from ollama_serving import Server, serve

sys.path.insert(0, str(Path(__file__).parents[3] / "tests" / "pulls"))

from hubs import Fault, Hub, running_hub

SCRIPT = b'{"answer": "pulled"}' + b" " * 200_000
PARAMETERS = b'{"temperature": 0.5, "stop": ["x"]}'


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with running_hub() as started:
        yield started


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, hub: Hub) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pull")
    more = f'[sources.ollama]\nregistry = "{hub.url}"\n'
    with serve(folder, more=more, plugins='disabled = ["platform:llamacpp", "platform:onnx"]') as started:
        yield started


def publish(hub: Hub, name: str, tag: str = "latest", *, content: bytes = SCRIPT) -> str:
    """A model of the library or of an owner, with its weights' digest."""
    hub.add_ollama(name, tag, {"model": content, "params": PARAMETERS})
    return "sha256:" + hashlib.sha256(content).hexdigest()


def test_a_pull_line_by_line(server: Server, hub: Hub) -> None:
    digest = publish(hub, "library/quick", "1b")
    steps = list(server.ollama.pull("quick:1b", stream=True))
    statuses = [step.status for step in steps]
    assert statuses[0] == "pulling manifest"
    assert statuses[-3:] == ["verifying sha256 digest", "writing manifest", "success"]
    bars = [step for step in steps if step.digest == digest]
    assert bars[0].status == f"pulling {digest[7:19]}"
    assert (bars[0].completed, bars[-1].completed) == (None, len(SCRIPT))
    assert {bar.total for bar in bars} == {len(SCRIPT)}
    assert "quick:1b" in [model.model for model in server.ollama.list().models]
    assert server.ollama.show("quick:1b").parameters == f'{"stop":<30} "x"\n{"temperature":<30} 0.5'
    again = [step.status for step in server.ollama.pull("quick:1b", stream=True)]
    assert again[-1] == "success"
    assert server.ollama.generate("quick", "hi").response == "pulled"


def test_owners_and_whole_answers(server: Server, hub: Hub) -> None:
    publish(hub, "me/own", "v1")
    assert server.ollama.pull("me/own:v1").status == "success"
    assert "me/own:v1" in [model.model for model in server.ollama.list().models]
    assert server.ollama.generate("me/own:v1", "hi").response == "pulled"
    assert server.ollama.delete("me/own:v1").status == "success"


def test_a_model_that_nobody_has(server: Server) -> None:
    with pytest.raises(ollama.ResponseError, match="pull model manifest: file does not exist") as caught:
        list(server.ollama.pull("nobody/has-this", stream=True))
    with pytest.raises(ollama.ResponseError, match="pull model manifest: file does not exist") as caught:
        server.ollama.pull("nobody/has-this")
    assert caught.value.status_code == 500
    answer = server.post("/api/pull", {"model": "nobody/has-this"})
    assert answer.status_code == 200
    assert [json.loads(line) for line in answer.text.splitlines()] == [
        {"status": "pulling manifest"},
        {"error": "pull model manifest: file does not exist"},
    ]


def test_create_pulls_what_it_is_made_from(server: Server, hub: Hub) -> None:
    publish(hub, "library/base", "2b", content=SCRIPT + b"\n")
    statuses = [step.status for step in server.ollama.create("made", from_="base:2b", system="s", stream=True)]
    assert statuses[0] == "pulling manifest"
    assert statuses.count("success") == 1
    assert server.ollama.generate("made", "hi").response == "pulled"
    with pytest.raises(ollama.ResponseError, match="file does not exist"):
        server.ollama.create("made", from_="nobody/has-this")


def test_two_callers_share_a_download_and_one_may_leave(server: Server, hub: Hub) -> None:
    digest = publish(hub, "library/shared", "1b", content=SCRIPT + b"\t")
    fault = Fault(path=digest, cut_at=0.5, gate=threading.Event())
    hub.faults.append(fault)
    client = ollama.Client(host=server.url, timeout=30, trust_env=False)
    leaving = client.pull("shared:1b", stream=True)
    staying = server.ollama.pull("shared:1b", stream=True)
    for steps in (leaving, staying):
        assert next(step for step in steps if step.digest == digest)
    leaving.close()  # type: ignore[attr-defined]
    fault.gate.set()
    assert [step.status for step in staying][-1] == "success"
    with hub.lock:
        assert len([path for _, path, _ in hub.asked if digest in path]) == 1


def test_a_model_brings_its_system_text_and_sample_turns(server: Server, hub: Hub) -> None:
    turns = [{"role": "user", "content": "one two"}, {"role": "tool", "content": "x"}]
    layers = {"model": b'{"echo": true}', "system": b"Be brief.", "messages": json.dumps(turns).encode()}
    hub.add_ollama("library/wordy", "1b", layers)
    server.ollama.pull("wordy:1b")
    shown = server.post("/api/show", {"model": "wordy"}).json()
    assert (shown["system"], shown["messages"]) == ("Be brief.", turns[:1])
    # 4 tokens a message, and one for each word with the blanks before it.
    assert server.ollama.chat("wordy", [{"role": "user", "content": "hi"}]).prompt_eval_count == (4 + 2) + (4 + 2) + (
        4 + 1
    )
