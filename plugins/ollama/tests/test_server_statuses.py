"""Every status of the API with its text, from a real server."""
# ruff: noqa: E501 - one row a line

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from ollama_serving import Server, serve

SAID = [{"role": "user", "content": "hi"}]
TOOL = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
ZEROS = "0" * 64


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With a few models, one of which is kept."""
    folder = tmp_path_factory.mktemp("statuses")
    more = "[server]\nport = 0\nmax_body_bytes = 65536\n"
    with serve(folder, more=more, port=False) as started:
        started.add(name="fox:1b", answer="Hello.", context_tokens=20)
        started.add("plain", name="simple:1b", answer="Hello.")
        started.add(name="vec:1b", tasks=["embed"], context_tokens=4)
        started.add(name="two:1b")
        started.add(name="two:2b")
        started.add("faulty", name="broken:1b", kind="exit", phase="load")
        started.add("faulty", name="crashing:1b", kind="segfault", phase="prefill", trigger="die")
        started.add(name="slow:1b", answer="word " * 400, delay_seconds=0.02)
        for name in ("two:2b", "slow:1b"):
            load = {
                "model_id": f"{name}@scripted-cpu",
                "model_path": str(started.folder(name)),
                "request_queue_size": 0,
            }
            assert started.post("/v1/models/load", load).status_code == 200
        yield started


def P(path: str, body: Any = None, **more: Any) -> dict[str, Any]:  # noqa: N802 - reads as the method
    return {"method": "POST", "path": path, **({} if body is None else {"json": body}), **more}


LONG = " ".join(["word"] * 60)

TABLE: list[tuple[str, dict[str, Any], int, str]] = [
    ("no body", P("/api/chat"), 400, "missing request body"),
    ("no json", P("/api/chat", content=b"{"), 400, "not valid JSON"),
    ("wrong type", P("/api/generate", {"model": 5}), 400, "field 'model' must be"),
    ("parts", P("/api/chat", {"model": "fox", "messages": [{"role": "user", "content": [{"type": "text"}]}]}), 400, "content"),
    ("no name in chat", P("/api/chat", {}), 400, "model is required"),
    ("no name in generate", P("/api/generate", {}), 404, "model '' not found"),
    ("no name in embed", P("/api/embed", {}), 404, "model '' not found"),
    ("no name in embeddings", P("/api/embeddings", {}), 400, "model is required"),
    ("no name in show", P("/api/show", {}), 400, "model is required"),
    ("no name in pull", P("/api/pull", {}), 400, "invalid model name"),
    ("no name in push", P("/api/push", {}), 400, "model is required"),
    ("bad name", P("/api/chat", {"model": "a b", "messages": SAID}), 400, "invalid model name"),
    ("top_logprobs first", P("/api/chat", {"top_logprobs": 21}), 400, "top_logprobs must be between 0 and 20"),
    ("unknown in chat", P("/api/chat", {"model": "x", "messages": SAID}), 404, "model 'x' not found"),
    ("unknown in generate", P("/api/generate", {"model": "x:y", "prompt": "hi"}), 404, "model 'x:y' not found"),
    ("unknown in load", P("/api/generate", {"model": "x"}), 404, "model 'x' not found"),
    ("unknown in unload", P("/api/chat", {"model": "x", "keep_alive": 0}), 404, "model 'x' not found"),
    ("unknown in show", P("/api/show", {"model": "X"}), 404, "model 'X' not found"),
    ("unknown in embed", P("/api/embed", {"model": "x", "input": "a"}), 404, 'model "x" not found, try pulling it first'),
    ("unknown in embeddings", P("/api/embeddings", {"model": "x", "prompt": "a"}), 404, 'model "x" not found, try pulling it first'),
    ("unknown in copy", P("/api/copy", {"source": "s", "destination": "d"}), 404, 'model "s" not found'),
    ("unknown in delete", {"method": "DELETE", "path": "/api/delete", "json": {"model": "X"}}, 404, "model 'X' not found"),
    ("several of the name", P("/api/chat", {"model": "two", "messages": SAID}), 404, "model 'two' not found: 'two' is the name of several"),
    ("raw", P("/api/generate", {"model": "fox", "prompt": "x", "raw": True, "system": "s"}), 400, "raw mode does not support template, system, or context"),
    ("think", P("/api/generate", {"model": "simple", "prompt": "x", "think": True}), 400, '"simple" does not support thinking'),
    ("think level", P("/api/generate", {"model": "fox", "prompt": "x", "think": "hard"}), 400, "invalid think value"),
    ("no thinking", P("/api/chat", {"model": "simple", "messages": SAID, "think": False, "stream": False}), 200, ""),
    ("tools", P("/api/chat", {"model": "simple", "messages": SAID, "tools": TOOL}), 400, "registry.ollama.ai/library/simple:latest does not support tools"),
    ("insert", P("/api/generate", {"model": "simple:1b", "prompt": "a", "suffix": "b"}), 400, "registry.ollama.ai/library/simple:1b does not support insert"),
    ("format of a model", P("/api/chat", {"model": "simple", "messages": SAID, "format": "json"}), 400, "does not support 'json_object'"),
    ("sampling of a model", P("/api/chat", {"model": "simple", "messages": SAID, "options": {"top_k": 5}}), 400, "does not support 'top_k'"),
    ("chat of an encoder", P("/api/chat", {"model": "vec", "messages": SAID}), 400, '"vec" does not support chat'),
    ("generate of an encoder", P("/api/generate", {"model": "vec", "prompt": "x"}), 400, '"vec" does not support generate'),
    ("vectors of a chat model", P("/api/embed", {"model": "simple", "input": "x"}), 400, '"simple" does not support embeddings'),
    ("format", P("/api/chat", {"model": "fox", "messages": SAID, "format": "xml"}), 400, 'invalid format: "xml"; expected "json" or a valid JSON Schema object'),
    ("option type", P("/api/chat", {"model": "fox", "messages": SAID, "options": {"top_k": "x"}}), 400, 'option "top_k" must be of type integer'),
    ("stop", P("/api/chat", {"model": "fox", "messages": SAID, "options": {"stop": "x"}}), 400, 'option "stop" must be of type array'),
    ("runtime", P("/api/chat", {"model": "fox", "messages": SAID, "options": {"num_gpu": 1}}), 400, 'option "num_gpu" is not supported'),
    ("keep_alive", P("/api/chat", {"model": "fox", "messages": SAID, "keep_alive": "soon"}), 400, 'time: invalid duration "soon"'),
    ("keep_alive type", P("/api/chat", {"model": "fox", "messages": SAID, "keep_alive": True}), 400, "Unsupported type: 'bool'"),
    ("context", P("/api/generate", {"model": "fox", "prompt": "x", "context": [1, 2]}), 400, "context is none that this server has answered with"),
    ("template", P("/api/generate", {"model": "fox", "prompt": "x", "template": "{{ .Prompt }}"}), 400, "Go's text/template"),
    ("too long", P("/api/generate", {"model": "fox", "prompt": LONG, "shift": False}), 400, "the prompt is longer than the context length currently available to the model"),
    ("too long, whole", P("/api/chat", {"model": "fox", "messages": [{"role": "user", "content": LONG}], "truncate": False, "stream": False}), 400, "the prompt is longer than the context length currently available to the model"),
    ("embed input", P("/api/embed", {"model": "vec", "input": [1]}), 400, "invalid input type"),
    ("embed too long", P("/api/embed", {"model": "vec", "input": LONG, "truncate": False}), 400, "the input length exceeds the context length"),
    ("embed cut", P("/api/embed", {"model": "vec", "input": LONG}), 200, ""),
    ("digest", P("/api/blobs/sha256:12", content=b"x"), 400, "invalid digest format"),
    ("digest of head", {"method": "HEAD", "path": "/api/blobs/12"}, 400, ""),
    ("no blob", {"method": "HEAD", "path": f"/api/blobs/sha256:{ZEROS}"}, 404, ""),
    ("other blob", P(f"/api/blobs/sha256:{ZEROS}", content=b"x"), 400, f'digest mismatch, expected "sha256:{ZEROS}", got "sha256:2d711642'),
    ("create of nothing", P("/api/create", {"model": "n"}), 400, "neither 'from' or 'files' was specified"),
    ("create elsewhere", P("/api/create", {"model": "n", "files": {"/a": f"sha256:{ZEROS}"}}), 400, "file path must be relative"),
    ("create of a digest", P("/api/create", {"model": "n", "files": {"a": "x"}}), 400, "invalid digest format"),
    ("create of no blob", P("/api/create", {"model": "n", "files": {"a.gguf": f"sha256:{ZEROS}"}, "stream": False}), 404, f"blob 'sha256:{ZEROS}' not found"),
    ("create with adapters", P("/api/create", {"model": "n", "from": "fox", "adapters": {"a": "b"}}), 400, "adapters are not supported"),
    ("copy from", P("/api/copy", {"source": "a b", "destination": "d"}), 400, 'source "a b" is invalid'),
    ("copy to", P("/api/copy", {"source": "fox", "destination": ""}), 400, 'destination "" is invalid'),
    ("delete", {"method": "DELETE", "path": "/api/delete", "json": {"name": "a b"}}, 400, 'name "a b" is invalid'),
    ("insecure", P("/api/pull", {"model": "x", "insecure": True}), 400, "insecure is not supported"),
    ("account", P("/api/me", {}), 401, "unauthorized"),
    ("cloud", P("/api/chat", {"model": "big:cloud", "messages": SAID}), 403, "ollama cloud is disabled"),
    ("search", P("/api/experimental/web_search", {}), 403, "ollama cloud is disabled: web search is unavailable"),
    ("origin", {"method": "GET", "path": "/api/tags", "headers": {"origin": "https://evil.example"}}, 403, "https://evil.example"),
    ("host", {"method": "GET", "path": "/api/tags", "headers": {"host": "evil.example"}}, 403, "evil.example"),
    ("pinned", {"method": "DELETE", "path": "/api/delete", "json": {"model": "two:2b"}}, 409, "is in use by 1"),
    ("large", P("/api/chat", content=b" " * 65537), 413, "larger than 65536 bytes"),
    ("load", P("/api/generate", {"model": "broken", "prompt": "x"}), 500, ""),
    ("crash", P("/api/generate", {"model": "crashing", "prompt": "die"}), 500, "died by SIGSEGV"),
    ("crash, whole", P("/api/generate", {"model": "crashing", "prompt": "die", "stream": False}), 500, "died by SIGSEGV"),
    ("push", P("/api/push", {"model": "fox"}), 501, "push is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("request_", "status", "text"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_statuses(server: Server, request_: dict[str, Any], status: int, text: str) -> None:
    options = {name: value for name, value in request_.items() if name not in {"method", "path"}}
    answer = server.http.request(request_["method"], server.url + request_["path"], **options)
    assert answer.status_code == status, answer.text
    if status != 200 and request_["method"] != "HEAD":
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert list(answer.json()) == ["error"]
        assert text in answer.json()["error"]
    if answer.headers["content-type"].startswith("application/json") and status == 200:
        assert "error" not in answer.json()


@pytest.mark.parametrize(("path", "method"), [("/api/none", "GET"), ("/x", "POST"), ("/api/tags", "POST"), ("/api/chat", "GET")])  # fmt: skip
def test_paths_and_methods_are_answered_in_plain_text(server: Server, path: str, method: str) -> None:
    answer = server.http.request(method, server.url + path)
    assert (answer.status_code, answer.text) in {(404, "404 page not found"), (405, "405 method not allowed")}
    assert answer.headers["content-type"].startswith("text/plain")


def test_a_full_queue_is_a_503_with_the_text_that_clients_wait_for(server: Server) -> None:
    body = {"model": "slow", "prompt": "x"}
    with server.http.stream("POST", f"{server.url}/api/generate", json=body) as first:
        assert first.status_code == 200
        lines = first.iter_lines()  # held, for a generator that is collected closes its stream
        next(lines)
        opened = []
        try:
            # A scripted worker takes eight at once; there are no places to wait.
            for _ in range(7):
                request = server.http.build_request("POST", f"{server.url}/api/generate", json=body)
                opened.append(server.http.send(request, stream=True))
            assert {answer.status_code for answer in opened} == {200}
            refused = server.post("/api/generate", body)
        finally:
            for answer in opened:
                answer.close()
    assert refused.status_code == 503
    assert refused.json() == {"error": "server busy, please try again.  maximum pending requests exceeded"}
    assert int(refused.headers["retry-after"]) >= 1


def test_an_error_after_the_first_line_is_the_last_line(server: Server) -> None:
    name = server.add("faulty", kind="sigkill", phase="decode", after_tokens=2, delay_seconds=0.1)
    for path, body in (("/api/generate", {"prompt": "x"}), ("/api/chat", {"messages": SAID})):
        answer = server.post(path, {"model": name, **body})
        assert answer.status_code == 200
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert len(lines) > 1
        assert [list(line) for line in lines if "error" in line] == [["error"]]
        assert "died by SIGKILL" in lines[-1]["error"]
        assert not any(line.get("done") for line in lines)


def test_keys(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("keys")
    with serve(folder, more="[security]\nrequire_keys = true\n") as locked:
        assert locked.get("/").text == "Ollama is running"
        assert locked.http.head(locked.url + "/").status_code == 200
        assert locked.get("/api/version").status_code == 200
        for method, path in (("GET", "/api/tags"), ("POST", "/api/chat"), ("DELETE", "/api/delete"), ("GET", "/api/x")):
            answer = locked.http.request(method, locked.url + path)
            assert answer.status_code == 401
            assert "key" in answer.json()["error"]


@pytest.mark.parametrize(
    ("origin", "is_allowed"),
    [
        (None, True), ("http://localhost:3000", True), ("https://127.0.0.1", True), ("http://0.0.0.0:8080", True),
        ("app://obsidian.md", True), ("tauri://localhost", True), ("vscode-webview://abc", True), ("file://", True),
        ("chrome-extension://abcdef", True), ("moz-extension://abc", True), ("https://evil.example", False), ("null", False),
    ],
)  # fmt: skip
def test_pages(server: Server, origin: str | None, is_allowed: bool) -> None:
    headers = {} if origin is None else {"origin": origin}
    answer = server.http.get(server.url + "/api/tags", headers=headers)
    assert (answer.status_code == 200) is is_allowed
    preflight = server.http.options(
        server.url + "/api/chat",
        headers={
            **headers,
            "access-control-request-method": "POST",
            "access-control-request-headers": "x-stainless-os",
        },
    )
    if origin is not None:
        assert preflight.status_code == (204 if is_allowed else 403)
        if is_allowed:
            assert preflight.headers["access-control-allow-headers"] == "x-stainless-os"


def test_forms_of_bodies_and_paths(server: Server) -> None:
    # What `curl -d` sends.
    kind = {"content-type": "application/x-www-form-urlencoded"}
    answer = server.http.post(
        server.url + "/api/generate", content=b'{"Model": "fox", "PROMPT": "hi", "stream": false}', headers=kind
    )
    assert answer.json()["response"] == "Hello."
    follow = httpx.Client(follow_redirects=True, trust_env=False)
    with follow:
        assert follow.get(server.url + "/api/version/").json() == {"version": "0.20.0"}
        assert follow.post(server.url + "/api/show/", json={"model": "fox"}).status_code == 200
