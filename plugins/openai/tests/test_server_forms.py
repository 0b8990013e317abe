"""Whatever goes wrong under `/v1` has the form of an error, and local clients' habits are taken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Server, serve

ASK = [{"role": "user", "content": "hi"}]


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert response.headers["x-request-id"]
    return dict(body["error"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1", 404),
        ("GET", "/v1/", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/chat/completions/more", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("PUT", "/v1/models", 405),
        ("DELETE", "/v1/models/some", 405),
        ("POST", "/v1/platforms", 405),
        ("POST", "/health", 405),
        ("POST", "/v1/responses", 404),
    ],
)
def test_unknown_paths_and_methods(server: Server, method: str, path: str, status: int) -> None:
    response = server.http.request(method, server.url + path)
    assert response.status_code == status
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    if status == 405:
        assert response.headers["allow"]


def test_a_model_may_be_called_like_a_route(server: Server) -> None:
    assert server.get("/v1/models/load").json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/models/load",
        "/v1/models/resize",
        "/v1/models/unload",
    ],
)
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"model": NaN}', b"\xff", b"[" * 50_000])
def test_bodies_that_are_no_json_object(server: Server, path: str, content: bytes) -> None:
    response = server.http.post(server.url + path, content=content)
    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_request"


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/json; x=y"]
)
def test_json_is_read_whatever_the_content_type(server: Server, hello: str, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    content = json.dumps({"model": hello, "messages": ASK}).encode()
    response = server.http.post(f"{server.url}/v1/chat/completions", content=content, headers=headers)
    assert response.status_code == 200


def test_a_body_over_the_limit(server: Server) -> None:
    content = b'{"x": "' + bytes(64 * 1024 * 1024) + b'"}'
    response = server.http.post(f"{server.url}/v1/chat/completions", content=content)
    assert response.status_code == 413
    assert error_of(response)["code"] == "payload_too_large"


def test_wrong_fields_are_named(server: Server, hello: str) -> None:
    body = {"model": hello, "messages": [{"role": "user", "content": "x"}, {"role": "wizard", "content": "y"}]}
    error = error_of(server.post("/v1/chat/completions", body))
    assert error["param"] == "messages[1].role"
    assert error["message"].startswith("'messages[1].role' must be ")


def test_what_is_not_declared_is_refused(server: Server, hello: str) -> None:
    for path, fields, param in (
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
        ("/v1/completions", {"prompt": "x", "grammar": "root ::= x"}, None),
        ("/v1/chat/completions", {"messages": ASK, "n": 9}, "n"),
    ):
        response = server.post(path, {"model": hello, **fields})
        assert response.status_code == 400, path
        error = error_of(response)
        assert param is None or error["param"] == param


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("odd", [deep(300), 2**64, -(2**63) - 1], ids=["deep", "large", "small"])
def test_json_that_no_worker_could_be_given_is_refused(server: Server, hello: str, odd: Any) -> None:
    chat = {"model": hello, "messages": ASK}
    schema = {"type": "object", "default": odd}
    function = {"name": "f", "parameters": schema}
    load = {"model_id": "x", "model_path": str(server.write_model()), "options": {"rules": odd}}
    for path, body, param in (
        ("/v1/chat/completions", {**chat, "tools": [{"type": "function", "function": function}]}, "tools[0].function"),
        ("/v1/chat/completions", {**chat, "chat_template_kwargs": {"x": odd}}, "chat_template_kwargs"),
        (
            "/v1/chat/completions",
            {**chat, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
            "response_format.json_schema.schema",
        ),
        ("/v1/models/load", load, "options"),
    ):
        response = server.post(path, body)
        assert response.status_code == 400, response.text
        assert (error_of(response)["param"] or "").startswith(param)


def test_json_as_deep_and_large_as_is_taken_reaches_the_engine(server: Server, hello: str) -> None:
    schema = {"type": "object", "default": [deep(190), 2**64 - 1, -(2**63)]}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    body = {"model": hello, "messages": ASK, "tools": tools, "chat_template_kwargs": {"x": deep(190)}}
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text


def test_rerank(server: Server, hello: str) -> None:
    body = {
        "model": hello,
        "query": "capital of France",
        "documents": ["Berlin", {"text": "the capital of France"}, "France"],
        "top_n": 2,
        "return_documents": True,
    }
    answer = server.post("/v1/rerank", body).json()
    assert [entry["index"] for entry in answer["results"]] == [1, 2]
    assert answer["results"][0]["document"] == {"text": "the capital of France"}
    assert answer["results"][0]["relevance_score"] > answer["results"][1]["relevance_score"]
    assert answer["usage"]["total_tokens"] > 0
    with server.loaded(tasks=["chat"]) as model:
        assert error_of(server.post("/v1/rerank", {**body, "model": model}))["code"] == "wrong_model_type"


def test_nulls_everywhere(server: Server, hello: str) -> None:
    from cardcage_dialect_openai.wire.chat import ChatCompletionRequest

    body = {**dict.fromkeys(ChatCompletionRequest.model_fields), "model": hello, "messages": ASK}
    assert server.post("/v1/chat/completions", body).status_code == 200


def test_a_cut_emoji_in_a_message_is_answered(server: Server) -> None:
    with server.loaded(echo=True) as model:
        content = b'{"model": "%s", "messages": [{"role": "user", "content": "cut \\ud83d"}]}' % model.encode()
        response = server.http.post(f"{server.url}/v1/chat/completions", content=content)
    assert response.json()["choices"][0]["message"]["content"] == "cut \ufffd"


def test_inference_takes_pages_of_any_origin_and_management_does_not(server: Server, hello: str) -> None:
    headers = {"origin": "https://chat.example"}
    body = {"model": hello, "messages": ASK}
    answer = server.http.post(f"{server.url}/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    load = {"model_id": "x", "model_path": "/x"}
    refused = server.http.post(f"{server.url}/v1/models/load", json=load, headers=headers)
    assert refused.status_code == 403
    assert error_of(refused)["code"] == "origin_not_allowed"
    preflight = server.http.options(
        f"{server.url}/v1/chat/completions",
        headers={
            **headers,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization,content-type,x-stainless-lang",
        },
    )
    assert preflight.status_code == 204
    assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]


def test_on_demand_loads_a_model_of_the_store(tmp_path: Path) -> None:
    model = tmp_path / "store" / "scripted" / "cpu" / "hello-1b"
    model.mkdir(parents=True)
    (model / "hello.scripted.json").write_text('{"answer": "Here I am."}')
    (model / "model.toml").write_text(
        'schema = 1\nname = "hello"\nsize = "1b"\nkind = "chat"\nplatform = "scripted"\nchips = ["cpu"]\n'
    )
    with serve(tmp_path, "on_demand = true\nping_seconds = 0.2") as server:
        assert server.get("/v1/models").json()["data"] == []
        missing = server.post("/v1/chat/completions", {"model": "nobody", "messages": ASK})
        assert error_of(missing)["code"] == "model_not_found"
        wrong = server.post("/v1/chat/completions", {"model": "hello:1b", "messages": []})
        assert wrong.status_code == 400
        assert server.get("/v1/models").json()["data"] == []
        for stream in (True, False):
            body = {"model": "hello:1b", "messages": ASK, "stream": stream}
            response = server.post("/v1/chat/completions", body)
            assert "Here" in response.text
        assert response.json()["model"] == "hello:1b"
        (loaded,) = server.get("/v1/models").json()["data"]
        assert loaded["id"] == "hello:1b@scripted-cpu"
        for path, fields in (
            ("/v1/completions", {"prompt": "x"}),
            ("/v1/embeddings", {"input": "x"}),
            ("/v1/rerank", {"query": "x", "documents": ["y"]}),
        ):
            answer = server.post(path, {"model": "hello", **fields})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == "hello"


def test_wrong_settings_stop_the_start(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[dialects.openai]\nprofile = "azure"\n')
    command = [str(Path(sys.executable).with_name("cardcage")), "serve", "-c", str(config), "-p", "0", "--data-dir"]
    run = subprocess.run([*command, str(tmp_path / "d")], capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode != 0
    assert "[dialects.openai] profile" in run.stderr + run.stdout
