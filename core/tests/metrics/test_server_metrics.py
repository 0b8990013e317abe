"""`/metrics` of a real server with real workers, against what was done to it and against its documentation."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[3] / "docs/reference/metrics.md"
ROW = re.compile(r"^\| `([a-z_]+)` \| (counter|gauge|histogram) \|(.*?)\| .+ \|$", re.MULTILINE)


class Scrape:
    """One page."""

    def __init__(self, client: httpx.Client) -> None:
        answer = client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=")
        self.families: list[Metric] = list(text_string_to_metric_families(answer.text))

    def value(self, name: str, /, **labels: str) -> float | None:
        for family in self.families:
            for sample in family.samples:
                if sample.name == name and sample.labels == labels:
                    return sample.value
        return None

    def labels(self, name: str, label: str) -> set[str]:
        return {sample.labels[label] for family in self.families for sample in family.samples if sample.name == name}


class Rig:
    """A server with what a test does to it."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.client: httpx.Client = server.client()

    def load(self, model: str, suffix: str = "scripted", /, **script: Any) -> None:
        path = self.server.config_file.parent / f"{model}.{suffix}.json"
        path.write_text(json.dumps(script))
        answer = self.client.post("/v1/models/load", json={"model_id": model, "model_path": str(path)})
        assert answer.status_code == 200, answer.text

    def chat(self, model: str, **more: Any) -> httpx.Response:
        body = {"model": model, "messages": [{"role": "user", "content": "hello there"}], **more}
        return self.client.post("/v1/chat/completions", json=body)

    def scrape(self) -> Scrape:
        return Scrape(self.client)

    def until(self, condition: Callable[[Scrape], bool]) -> Scrape:
        """Scrape until something that the server does by itself has happened."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            scrape = self.scrape()
            if condition(scrape):
                return scrape
            time.sleep(0.05)
        raise AssertionError("it did not happen")


@pytest.fixture
def rig(start_server):
    rig = Rig(start_server())
    yield rig
    rig.client.close()


@pytest.fixture(scope="module")
def busy(shared_start):
    """A server on which a little of everything was done."""
    rig = Rig(shared_start())
    rig.load("talker", answer="one two three four")
    for _ in range(2):
        assert rig.chat("talker").status_code == 200
    with rig.client.stream(
        "POST",
        "/v1/chat/completions",
        json={"model": "talker", "messages": [{"role": "user", "content": "hello there"}], "stream": True},
    ) as stream:
        assert "[DONE]" in "".join(stream.iter_text())
    answer = rig.client.post("/v1/embeddings", json={"model": "talker", "input": ["one", "two three"]})
    rig.embedded_tokens = answer.json()["usage"]["prompt_tokens"]
    rig.usage = rig.chat("talker").json()["usage"]
    assert rig.chat("nobody").status_code == 404
    yield rig
    rig.client.close()


def test_the_page_in_the_documentation_lists_exactly_what_exists(busy: Rig) -> None:
    written = {
        name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in ROW.findall(PAGE.read_text())
    }
    assert len(written) == len(ROW.findall(PAGE.read_text())), "a metric is listed twice"
    found: dict[str, tuple[str, set[str]]] = {}
    for family in busy.scrape().families:
        assert family.samples, f"{family.name} has no series although a little of everything was done"
        labels = set(family.samples[0].labels) - {"le"}
        found[f"{family.name}_total" if family.type == "counter" else family.name] = (family.type, labels)
    assert written == found


def test_names_follow_the_conventions(busy: Rig) -> None:
    for family in busy.scrape().families:
        assert family.documentation, family.name
        assert re.fullmatch(r"(cardcage|process)(_[a-z]+)+", family.name)
        assert not re.search(r"_(ms|milliseconds|kb|mib|percent|count|sum|bucket)$", family.name), family.name


def test_requests_are_counted_by_dialect_route_method_and_status(busy: Rig) -> None:
    scrape = busy.scrape()
    chat = {"dialect": "openai", "route": "/v1/chat/completions", "method": "POST"}
    assert scrape.value("cardcage_http_requests_total", **chat, status="200") == 4
    assert scrape.value("cardcage_http_requests_total", **chat, status="404") == 1
    duration = {"dialect": "openai", "route": "/v1/chat/completions"}
    assert scrape.value("cardcage_http_request_duration_seconds_count", **duration) == 5
    # This scrape itself.
    assert scrape.value("cardcage_http_requests_active") == 1


def test_tokens_are_those_that_the_answers_told(busy: Rig) -> None:
    scrape = busy.scrape()
    prompt, completion = busy.usage["prompt_tokens"], busy.usage["completion_tokens"]
    assert completion > 0
    assert scrape.value("cardcage_completion_tokens_total", model="talker") == 4 * completion
    assert scrape.value("cardcage_prompt_tokens_total", model="talker") == 4 * prompt + busy.embedded_tokens


def test_times_are_observed_once_a_request(busy: Rig) -> None:
    scrape = busy.scrape()
    assert scrape.value("cardcage_time_to_first_token_seconds_count", model="talker") == 4
    assert scrape.value("cardcage_queue_wait_seconds_count", model="talker") == 5
    assert scrape.value("cardcage_model_load_seconds_count", model="talker") == 1
    load = scrape.value("cardcage_model_load_seconds_sum", model="talker")
    assert load is not None
    assert 0 < load < 60
    assert scrape.value("cardcage_requests_total", task="chat", outcome="finished") == 4
    assert scrape.value("cardcage_requests_total", task="embed", outcome="finished") == 1
    assert scrape.value("cardcage_requests_total", task="chat", outcome="model_not_found") == 1


def test_models_and_workers(busy: Rig) -> None:
    scrape = busy.scrape()
    info = {"model": "talker", "name": "talker.scripted", "platform": "scripted", "kind": "chat"}
    assert scrape.value("cardcage_model_info", **info) == 1
    assert scrape.value("cardcage_model_instances", model="talker") == 1
    assert scrape.value("cardcage_model_requests_running", model="talker") == 0
    assert scrape.value("cardcage_workers", model="talker") == 1
    memory = scrape.value("cardcage_worker_resident_memory_bytes", model="talker")
    assert memory is not None
    assert 5e6 < memory < 5e8
    assert scrape.value("cardcage_worker_starts_total") == 1
    assert scrape.value("cardcage_worker_crashes_total") == 0


def test_what_clients_make_up_makes_no_series(rig: Rig) -> None:
    before = sum(len(family.samples) for family in rig.scrape().families)
    for number in range(30):
        rig.client.get(f"/made/up/{number}")
        rig.client.get(f"/v1/made/up/{number}")
        rig.client.get(f"/v1/models/made-up-{number}")
        rig.chat(f"made-up-{number}")
        rig.client.request(f"VERB{number}", "/v1/models")
        rig.client.get("/v1/models", headers={"Host": f"h{number}.example"})
    scrape = rig.scrape()
    assert sum(len(family.samples) for family in scrape.families) - before < 150
    assert not [
        sample.labels
        for family in scrape.families
        for sample in family.samples
        if any("made" in value or "VERB" in value for value in sample.labels.values())
    ]
    assert "other" in scrape.labels("cardcage_http_requests_total", "method")
    assert (
        scrape.value("cardcage_http_requests_total", dialect="none", route="unmatched", method="GET", status="404")
        == 30
    )


def test_refusals_count_under_their_route(start_server) -> None:
    server = start_server()
    key = server.make_key("all", "--scope", "all")
    with server.client() as client:
        assert client.get("/v1/models").status_code == 401
        client.headers["x-api-key"] = key
        scrape = Scrape(client)
    labels = {"dialect": "openai", "route": "/v1/models", "method": "GET", "status": "401"}
    assert scrape.value("cardcage_http_requests_total", **labels) == 1


def test_running_and_queued_while_it_happens(rig: Rig) -> None:
    import threading

    rig.load("slow", answer="a b c d e f g h i j", prefill_seconds=120.0)
    body = {"model": "slow", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    clients = [httpx.Client(base_url=rig.server.url, timeout=60, trust_env=False) for _ in range(10)]

    def ask(client: httpx.Client) -> None:
        with pytest.raises(httpx.HTTPError):
            client.post("/v1/chat/completions", json=body)

    threads = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    # The scripted engine takes eight at once.
    scrape = rig.until(lambda page: page.value("cardcage_model_requests_queued", model="slow") == 2)
    assert scrape.value("cardcage_model_requests_running", model="slow") == 8
    assert scrape.value("cardcage_http_requests_active") == 11
    for client in clients:
        _cut(client)
    for thread in threads:
        thread.join(timeout=30)
    scrape = rig.until(lambda page: page.value("cardcage_requests_total", task="chat", outcome="left") == 10)
    assert scrape.value("cardcage_model_requests_queued", model="slow") == 0


def _cut(client: httpx.Client) -> None:
    """End a client's connections under its feet, as a process that is killed does."""
    import socket

    for connection in client._transport._pool.connections:  # type: ignore[attr-defined]
        stream = connection._connection._network_stream
        stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


def test_crashes_and_restarts(rig: Rig) -> None:
    rig.load("fragile", "faulty", kind="segfault", phase="decode", trigger="crash", answer="one two three")
    assert rig.chat("fragile").status_code == 200
    answer = rig.client.post(
        "/v1/chat/completions", json={"model": "fragile", "messages": [{"role": "user", "content": "crash now"}]}
    )
    assert answer.status_code >= 500
    scrape = rig.until(lambda page: page.value("cardcage_worker_restarts_total") == 1)
    assert scrape.value("cardcage_worker_crashes_total") == 1
    assert scrape.value("cardcage_worker_hangs_total") == 0
    assert scrape.value("cardcage_worker_starts_total") == 2
    assert scrape.value("cardcage_model_load_seconds_count", model="fragile") == 2
    assert scrape.value("cardcage_requests_total", task="chat", outcome="engine_crashed") == 1


def test_an_unloaded_model_is_shown_once_more(rig: Rig) -> None:
    rig.load("brief", answer="one")
    assert rig.chat("brief").status_code == 200
    assert rig.client.post("/v1/models/unload", json={"model_id": "brief"}).status_code == 200
    last = rig.scrape()
    assert last.value("cardcage_time_to_first_token_seconds_count", model="brief") == 1
    assert last.value("cardcage_model_instances", model="brief") is None
    assert rig.scrape().value("cardcage_time_to_first_token_seconds_count", model="brief") is None
