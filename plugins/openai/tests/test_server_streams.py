"""The life of a request on the wire: first byte, pings, prompts in a row, and clients that leave."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import pytest
from serving import Server

ASK = [{"role": "user", "content": "hi"}]
ENDLESS = {"prefill_steps": 10**9, "delay_seconds": 0.01}


class Wire:
    """A request on a socket of its own, of which the test decides when it goes."""

    def __init__(self, server: Server, path: str, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        host = urlsplit(server.url)
        self.socket = socket.create_connection((host.hostname, host.port), timeout=30)
        head = f"POST {path} HTTP/1.1\r\nhost: {host.netloc}\r\ncontent-length: {len(data)}\r\n\r\n"
        self.socket.sendall(head.encode() + data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.socket.close()

    def read_until(self, text: bytes) -> bytes:
        seen = b""
        while text not in seen:
            piece = self.socket.recv(65536)
            assert piece, seen
            seen += piece
        return seen


def counts(server: Server, model: str) -> tuple[int, int]:
    state = server.running(model)
    return state["running"], state["queued"]


# --- first byte and pings -----------------------------------------------------------------------------------------


def test_pings_before_the_first_token(server: Server) -> None:
    with server.loaded(prefill_seconds=1.0, answer="at last") as model:
        response = server.post("/v1/chat/completions", {"model": model, "messages": ASK, "stream": True})
    blocks = response.text.split("\n\n")
    first = next(index for index, block in enumerate(blocks) if block.startswith("data:"))
    assert first >= 2
    assert set(blocks[:first]) == {": ping"}
    assert blocks[-2] == "data: [DONE]"
    delta = json.loads(blocks[first].removeprefix("data: "))["choices"][0]["delta"]
    assert delta["role"] == "assistant"


def test_pings_between_tokens_and_none_when_tokens_come(server: Server) -> None:
    with server.loaded(delay_seconds=0.5, answer="slow words") as model:
        text = server.post("/v1/chat/completions", {"model": model, "messages": ASK, "stream": True}).text
    between = text[text.index("slow") : text.index("words")]
    assert ": ping\n\n" in between
    with server.loaded(answer="quick words") as model:
        text = server.post("/v1/chat/completions", {"model": model, "messages": ASK, "stream": True}).text
    assert ": ping" not in text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_error_after_a_ping_is_an_event(server: Server, path: str) -> None:
    with server.loaded("faulty", kind="exit", phase="decode", after_tokens=0, prefill_seconds=0.7) as model:
        response = server.post(path, {"model": model, "messages": ASK, "prompt": "x", "stream": True})
    assert response.status_code == 200
    assert response.text.startswith(": ping\n\n")
    assert "event: error\ndata: {" in response.text
    assert "[DONE]" not in response.text


def test_waiting_in_the_queue_pings_too(server: Server) -> None:
    with server.loaded("scripted-batch", **ENDLESS) as model:
        body = {"model": model, "messages": ASK}
        with server.held(body), server.held(body) as second:
            assert counts(server, model) == (1, 1)
            lines = second.iter_raw()
            assert next(lines) == b": ping\n\n"
        server.until(lambda: counts(server, model) == (0, 0))


@pytest.mark.heavy
@pytest.mark.timeout(150)
@pytest.mark.skipif(not os.environ.get("CARDCAGE_HEAVY"), reason="takes over a minute: set CARDCAGE_HEAVY=1")
def test_answers_that_take_more_than_a_minute(server: Server) -> None:
    """Quart's own limits are 60 seconds."""
    with server.loaded(prefill_seconds=65, answer="at last") as model:
        body = {"model": model, "messages": ASK}
        with httpx.Client(timeout=120) as patient, server.held(body) as stream:
            plain = patient.post(f"{server.url}/v1/chat/completions", json=body)
            assert plain.json()["choices"][0]["message"]["content"] == "at last"
            assert "data: [DONE]" in stream.read().decode()


# --- several prompts ----------------------------------------------------------------------------------------------


def test_prompts_in_a_row_take_one_instance(server: Server) -> None:
    """More prompts than there are places in the queue: they go one after the other."""
    with server.loaded("scripted-batch", echo=True, load={"request_queue_size": 0}) as model:
        prompts = [f"prompt {number}" for number in range(5)]
        body = {"model": model, "prompt": prompts, "stream_options": None}
        plain = server.post("/v1/completions", body).json()
        assert [choice["text"] for choice in plain["choices"]] == prompts
        text = server.post("/v1/completions", {**body, "stream": True}).text
        chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
        streamed = [""] * 5
        for chunk in chunks:
            streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        assert streamed == prompts


def test_a_prompt_that_cannot_be_is_known_before_the_first_byte(server: Server) -> None:
    with server.loaded(context_tokens=8) as model:
        body = {"model": model, "prompt": ["short", "word " * 20], "stream": True}
        response = server.post("/v1/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_streamed_echo_and_usage(server: Server, hello: str) -> None:
    body = {
        "model": hello,
        "prompt": "Say: ",
        "echo": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text = server.post("/v1/completions", body).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == "Say: Hello there, friend."
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0


# --- clients that leave -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": ASK, "stream": True}),
        ("/v1/chat/completions", {"messages": ASK}),
        ("/v1/chat/completions", {"messages": ASK, "n": 2}),
        ("/v1/completions", {"prompt": "x", "stream": True}),
        ("/v1/completions", {"prompt": ["x", "y"]}),
    ],
    ids=["stream", "plain", "choices", "completions-stream", "completions"],
)
@pytest.mark.parametrize("where", ["prefill", "decode", "queue"])
def test_a_client_that_leaves_frees_its_place(server: Server, path: str, fields: dict[str, Any], where: str) -> None:
    script = (
        ENDLESS if where != "decode" else {"answer": "word " * 10_000, "delay_seconds": 0.01, "context_tokens": 10**6}
    )
    with server.loaded("scripted-batch", **script) as model:
        body = {"model": model, **fields}
        if where == "queue":
            with server.held({"model": model, "messages": ASK}):
                with Wire(server, path, body):
                    server.until(lambda: counts(server, model) == (1, 1))
                server.until(lambda: counts(server, model) == (1, 0))
        else:
            with Wire(server, path, body) as wire:
                server.until(lambda: counts(server, model) == (1, 0))
                if where == "decode" and fields.get("stream"):
                    wire.read_until(b'word"')
        server.until(lambda: counts(server, model) == (0, 0))
        # The instance works on.
        assert server.get(f"/v1/models/{model}").json()["instance_count"] == 1


def test_a_client_that_leaves_a_load_does_not_stop_it(server: Server) -> None:
    body = {"model_id": "slow-load", "model_path": str(server.write_model(load_seconds=1.0, answer="here"))}
    with Wire(server, "/v1/models/load", body):
        server.until(lambda: "slow-load" in server.get("/readyz").text)
    ask = {"model": "slow-load", "messages": ASK}
    # Who asks meanwhile waits for it.
    answer = server.post("/v1/chat/completions", ask)
    assert answer.json()["choices"][0]["message"]["content"] == "here"
    assert server.post("/v1/models/unload", {"model_id": "slow-load"}).status_code == 200


def test_other_streams_go_on_when_a_client_leaves(server: Server) -> None:
    words = " ".join(f"w{number}" for number in range(60))
    with server.loaded("scripted-batch", answer=words, delay_seconds=0.005, load={"instance_count": 2}) as model:
        body = {"model": model, "messages": ASK, "stream": True}
        with Wire(server, "/v1/chat/completions", body) as stays:
            with Wire(server, "/v1/chat/completions", body) as leaves:
                leaves.read_until(b"w3")
            data = stays.read_until(b"[DONE]").decode()
    chunks = [json.loads(line[6:]) for line in data.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"]) == words


def test_nothing_of_all_this_was_a_fault(server: Server) -> None:
    """Runs last in this file: leaving, refusing and failing workers are no exceptions of the server's own."""
    assert "Traceback" not in server.log
    assert "unhandled exception" not in server.log
    assert "never retrieved" not in server.log
