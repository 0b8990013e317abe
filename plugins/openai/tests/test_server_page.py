"""The LlamaPi page against a real server: each curl example in its shape, each row of the error table for real."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from serving import Server

ASK = [{"role": "user", "content": "你好"}]


def same_shape(actual: Any, example: Any, where: str = "$") -> None:
    """Every member of the page's example is there with the same JSON type; further members are allowed."""
    if isinstance(example, dict):
        assert isinstance(actual, dict), where
        for key, value in example.items():
            assert key in actual, f"{where}.{key} is missing"
            same_shape(actual[key], value, f"{where}.{key}")
    elif isinstance(example, list):
        assert isinstance(actual, list), where
        assert bool(actual) == bool(example), where
        for index, item in enumerate(actual):
            same_shape(item, example[0], f"{where}[{index}]")
    else:
        assert type(actual) is type(example), f"{where}: {actual!r} for {example!r}"


def events(response: httpx.Response) -> list[str]:
    """The data of each event; comments are left out."""
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    return [block for block in blocks if not block.startswith(":")]


# --- examples -----------------------------------------------------------------------------------------------------


def test_chat(server: Server, hello: str) -> None:
    body = {
        "model": hello,
        "messages": [{"role": "user", "content": "用一句话介绍 LlamaPi。"}],
        "max_tokens": 128,
    }
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    same_shape(
        response.json(),
        {
            "id": "chatcmpl-...",
            "object": "chat.completion",
            "created": 1710000000,
            "model": "Qwen3",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "...", "tool_calls": []},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 13, "completion_tokens": 14, "total_tokens": 27},
        },
    )
    answer = response.json()
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Hello there, friend.",
        "tool_calls": [],
    }
    assert answer["model"] == hello
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + answer["usage"]["completion_tokens"]


def test_stream(server: Server, hello: str) -> None:
    response = server.post("/v1/chat/completions", {"model": hello, "messages": ASK, "stream": True})
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    *data, done = events(response)
    assert done == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in data]
    usage = chunks.pop()
    for chunk in chunks:
        same_shape(
            chunk,
            {
                "id": "chatcmpl-...",
                "object": "chat.completion.chunk",
                "created": 1710000000,
                "model": "Qwen3",
                "choices": [{"index": 0, "delta": {}}],
            },
        )
    assert len({chunk["id"] for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert set(deltas[0]) == {"role", "content"}
    assert all(set(delta) == {"content"} for delta in deltas[1:-1])
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [*[None] * (len(chunks) - 1), "stop"]
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello there, friend."
    same_shape(usage, {"id": "x", "usage": {"prompt_tokens": 13, "completion_tokens": 14, "total_tokens": 27}})
    assert usage["choices"] == []


def test_embeddings(server: Server, hello: str) -> None:
    body = {"model": hello, "input": ["hello", "LlamaPi"], "encoding_format": "float"}
    response = server.post("/v1/embeddings", body)
    assert response.status_code == 200
    same_shape(
        response.json(),
        {
            "object": "list",
            "data": [{"object": "embedding", "embedding": [0.1, 0.2], "index": 0}],
            "model": "bge-m3",
            "usage": {"prompt_tokens": 2, "total_tokens": 2},
        },
    )
    assert [entry["index"] for entry in response.json()["data"]] == [0, 1]
    assert set(response.json()["usage"]) == {"prompt_tokens", "total_tokens"}


MODEL_EXAMPLE = {
    "id": "Qwen3",
    "object": "model",
    "created": 0,
    "owned_by": "llamapi/rkllm",
    "platform": "rkllm",
    "instance_count": 1,
    "model_path": "/var/lib/llamapi/models/rkllm/rk3588/qwen3-4b",
    "model_kind": "chat",
}


def test_models(server: Server, hello: str) -> None:
    listing = server.get("/v1/models").json()
    same_shape(listing, {"object": "list", "data": [MODEL_EXAMPLE]})
    one = server.get(f"/v1/models/{hello}").json()
    same_shape(one, MODEL_EXAMPLE)
    assert one in listing["data"]
    assert (one["owned_by"], one["platform"], one["model_kind"]) == ("llamapi/scripted", "scripted", "chat")


def test_load_resize_unload(server: Server) -> None:
    path = str(server.write_model(answer="x"))
    body = {
        "model_id": "Qwen3",
        "model_path": path,
        "instance_count": 2,
        "default_params": {"temperature": 0.7, "max_tokens": 512},
    }
    assert server.post("/v1/models/load", body).json() == {
        "success": True,
        "message": "model 'Qwen3' loaded",
        "requested_instance_count": 2,
        "actual_instance_count": 2,
    }
    assert server.get("/v1/models/Qwen3").json()["instance_count"] == 2
    assert server.post("/v1/models/resize", {"model_id": "Qwen3", "instance_count": 1}).json() == {
        "success": True,
        "message": "model 'Qwen3' resized",
        "requested_instance_count": 1,
        "actual_instance_count": 1,
    }
    assert server.post("/v1/models/unload", {"model_id": "Qwen3"}).json() == {
        "success": True,
        "message": "model 'Qwen3' unloaded",
    }
    assert server.get("/v1/models/Qwen3").status_code == 404


def test_default_params_take_hold(server: Server) -> None:
    with server.loaded(answer="one two three four", load={"default_params": {"max_tokens": 2}}) as model:
        body = {"model": model, "messages": ASK}
        first = server.post("/v1/chat/completions", body).json()["choices"][0]
        assert (first["message"]["content"], first["finish_reason"]) == ("one two", "length")
        stronger = server.post("/v1/chat/completions", {**body, "max_tokens": 3}).json()["choices"][0]
        assert stronger["message"]["content"] == "one two three"


def test_ids_of_any_script_and_with_signs(server: Server) -> None:
    for model_id in ("通义千问", "qwen3:4b@rkllm-rk3588"):
        body = {"model_id": model_id, "model_path": str(server.write_model(answer="x"))}
        assert server.post("/v1/models/load", body).json()["message"] == f"model '{model_id}' loaded"
        assert server.get(f"/v1/models/{model_id}").json()["id"] == model_id
        assert server.post("/v1/models/unload", {"model_id": model_id}).status_code == 200


def test_platforms(server: Server) -> None:
    answer = server.get("/v1/platforms").json()
    scripted = next(entry for entry in answer["platforms"] if entry["id"] == "scripted")
    same_shape(
        scripted,
        {
            "id": "rknn3",
            "display_name": "RKNN3",
            "available": True,
            "detected_chips": [{"chip_type": "RK1828", "count": 2}],
        },
    )


def test_health(server: Server) -> None:
    response = server.get("/health")
    assert (response.status_code, response.text) == (200, "ok")
    assert response.headers["content-type"].startswith("text/plain")


# --- the error table ----------------------------------------------------------------------------------------------


def refused(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert response.headers["content-type"] == "application/json"
    assert response.headers["x-request-id"]
    return response.status_code, error["type"], error["code"]


def load_of(server: Server, **fields: Any) -> httpx.Response:
    return server.post("/v1/models/load", {"model_id": "wanted", **fields})


def test_unsupported_platform(server: Server) -> None:
    folder = server.folder / "for-rkllm"
    folder.mkdir()
    (folder / "model.rkllm").write_bytes(b"weights")
    manifest = 'schema = 1\nname = "qwen3"\nsize = "4b"\nkind = "chat"\nplatform = "rkllm"\n'
    (folder / "model.toml").write_text(manifest)
    response = load_of(server, model_path=str(folder))
    assert refused(response) == (400, "invalid_request_error", "unsupported_platform")


def test_platform_detection_failed(server: Server) -> None:
    folder = server.folder / "no-model"
    folder.mkdir()
    (folder / "notes.txt").write_text("nothing to see")
    response = load_of(server, model_path=str(folder))
    assert refused(response) == (400, "invalid_request_error", "platform_detection_failed")


def test_wrong_model_type_both_ways(server: Server) -> None:
    expected = (400, "invalid_request_error", "wrong_model_type")
    with server.loaded(tasks=["embed"]) as model:
        assert server.get(f"/v1/models/{model}").json()["model_kind"] == "embedding"
        assert refused(server.post("/v1/chat/completions", {"model": model, "messages": ASK})) == expected
        assert refused(server.post("/v1/completions", {"model": model, "prompt": "x"})) == expected
    with server.loaded(tasks=["chat"]) as model:
        assert refused(server.post("/v1/embeddings", {"model": model, "input": "x"})) == expected


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"type": "video", "video": {}}, "unsupported_content_part_type"),
        ({"type": "file", "file": {}}, "unsupported_content_part_type"),
        ({"type": "hologram"}, "unsupported_content_part_type"),
        ({"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}, "invalid_content_part"),
        ({"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lG"}}, "invalid_content_part"),
        ({"type": "input_audio", "input_audio": {"format": "ogg", "data": "AAAA"}}, "invalid_content_part"),
        ({"type": "text"}, "invalid_content_part"),
        # Well-formed, but this model does not see.
        ({"type": "image_url", "image_url": {"url": "/srv/cat.png"}}, "unsupported_content_part_type"),
    ],
)
def test_content_parts(server: Server, hello: str, part: dict[str, Any], code: str) -> None:
    body = {"model": hello, "messages": [{"role": "user", "content": [{"type": "text", "text": "look"}, part]}]}
    for stream in (False, True):
        response = server.post("/v1/chat/completions", {**body, "stream": stream})
        assert refused(response) == (400, "invalid_request_error", code)


def test_context_length_exceeded(server: Server) -> None:
    with server.loaded(context_tokens=8) as model:
        body = {"model": model, "messages": [{"role": "user", "content": "word " * 20}]}
        for stream in (False, True):
            response = server.post("/v1/chat/completions", {**body, "stream": stream})
            assert refused(response) == (400, "invalid_request_error", "context_length_exceeded")
            assert "8 tokens" in response.json()["error"]["message"]


def test_instance_counts(server: Server, hello: str) -> None:
    path = str(server.write_model())
    for response in (
        load_of(server, model_path=path, instance_count=0),
        server.post("/v1/models/resize", {"model_id": hello, "instance_count": 0}),
    ):
        assert refused(response) == (400, "invalid_request_error", "invalid_instance_count")
    for response in (
        load_of(server, model_path=path, instance_count=-1),
        server.post("/v1/models/resize", {"model_id": hello, "instance_count": -1}),
    ):
        status, kind, code = refused(response)
        assert (status, kind) == (400, "invalid_request_error")
        assert code != "invalid_instance_count"


def test_model_not_found(server: Server) -> None:
    expected = (404, "invalid_request_error", "model_not_found")
    calls: list[Callable[[], httpx.Response]] = [
        lambda: server.post("/v1/chat/completions", {"model": "demo", "messages": ASK}),
        lambda: server.post("/v1/chat/completions", {"model": "demo", "messages": ASK, "stream": True}),
        lambda: server.post("/v1/completions", {"model": "demo", "prompt": "x", "stream": True}),
        lambda: server.post("/v1/embeddings", {"model": "demo", "input": "x"}),
        lambda: server.post("/v1/rerank", {"model": "demo", "query": "q", "documents": ["d"]}),
        lambda: server.get("/v1/models/demo"),
        lambda: server.get("/v1/models/org/demo:1b@x"),
        lambda: server.get("/v1/models/org%2Fdemo"),
        lambda: server.post("/v1/models/resize", {"model_id": "demo", "instance_count": 1}),
        lambda: server.post("/v1/models/unload", {"model_id": "demo"}),
    ]
    for call in calls:
        response = call()
        assert refused(response) == expected
    assert server.get("/v1/models/demo").json()["error"]["message"] == "Model 'demo' not found"
    assert server.get("/v1/models/org%2Fdemo").json()["error"]["message"] == "Model 'org/demo' not found"


def test_model_already_exists(server: Server, hello: str) -> None:
    response = load_of(server, model_path=str(server.write_model()), model_id=hello)
    assert refused(response) == (409, "invalid_request_error", "model_already_exists")
    assert response.headers["x-should-retry"] == "false"


def test_queue_full(server: Server) -> None:
    with server.loaded(
        "scripted-batch", prefill_steps=10**9, delay_seconds=0.01, load={"request_queue_size": 0}
    ) as model:
        body = {"model": model, "messages": ASK}
        with server.held(body):
            for stream in (False, True):
                response = server.post("/v1/chat/completions", {**body, "stream": stream})
                assert refused(response) == (429, "rate_limit_exceeded", "queue_full")
                assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_engine_errors_are_500_without_a_code(server: Server, phase: str) -> None:
    with server.loaded("faulty", kind="segfault", phase=phase, after_tokens=1) as model:
        response = server.post("/v1/chat/completions", {"model": model, "messages": ASK})
        assert refused(response) == (500, "server_error", None)
        assert "SIGSEGV" in response.json()["error"]["message"]


def test_a_failed_load_is_500_without_a_code(server: Server) -> None:
    path = str(server.write_model("faulty", kind="segfault", phase="load"))
    response = load_of(server, model_path=path)
    assert refused(response) == (500, "server_error", None)
    assert response.headers["x-should-retry"] == "false"
    assert server.get("/v1/models/wanted").status_code == 404


def test_failure_after_the_first_byte_is_an_error_event(server: Server) -> None:
    fault = {"kind": "segfault", "phase": "decode", "after_tokens": 3}
    with server.loaded("faulty", **fault, answer="a b c d e", delay_seconds=0.1) as model:
        response = server.post("/v1/chat/completions", {"model": model, "messages": ASK, "stream": True})
        assert response.status_code == 200
        *chunks, last = events(response)
        assert "".join(json.loads(line[6:])["choices"][0]["delta"].get("content", "") for line in chunks) == "a b c"
        name, data = last.split("\n")
        assert name == "event: error"
        error = json.loads(data.removeprefix("data: "))["error"]
        assert (error["type"], error["code"]) == ("server_error", None)
        assert "[DONE]" not in response.text
