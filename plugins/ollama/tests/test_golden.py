"""Whole exchanges as files: what a client sends to a real server, and what it reads, for every route, streamed and not.

Each file in `golden/` holds `models` (added to the store before, with their scripts), and `exchanges`: method, path, body or
raw bytes, status, content type, and the answer: `json`, `lines` or `text`. Times, durations, ids and folders are replaced by
words once their form is checked, and `context` by the exchange that it holds. `CARDCAGE_WRITE_GOLDEN=1` writes what is produced
into the files, for reading the difference in the diff.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ollama_serving import Server, serve

from cardcage_dialect_ollama.context import decode_context

FOLDER = Path(__file__).parent / "golden"
FILES = sorted(FOLDER.glob("*.json"))
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)")
EXPECTED_ROUTES = {
    "GET /", "HEAD /", "GET /api/version", "HEAD /api/version", "GET /api/status", "GET /api/tags", "HEAD /api/tags",
    "GET /api/ps", "POST /api/show", "POST /api/generate", "POST /api/chat", "POST /api/embed", "POST /api/embeddings",
    "POST /api/create", "HEAD /api/blobs/", "POST /api/blobs/", "POST /api/copy", "DELETE /api/delete", "POST /api/pull",
    "POST /api/push", "POST /api/me", "POST /api/signout", "DELETE /api/user/keys/", "POST /api/experimental/web_search",
    "POST /api/experimental/web_fetch", "GET /api/experimental/model-recommendations",
}  # fmt: skip
STREAMING = {"/api/generate", "/api/chat", "/api/create", "/api/pull"}


@pytest.fixture
def golden(tmp_path_factory: pytest.TempPathFactory, shared: Server) -> Iterator[Server]:
    """A server with an empty store."""
    yield shared
    for status in shared.get("/api/ps").json()["models"]:
        shared.post("/api/generate", {"model": status["model"], "keep_alive": 0})
    shared.until(lambda: shared.get("/api/ps").json() == {"models": []})
    for path in shared.store.iterdir():
        shutil.rmtree(path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("golden")) as started:
        yield started


def plain(value: Any, store: str, key: str = "") -> Any:
    """The value without what differs from run to run; each such thing is checked to have its form."""
    if isinstance(value, dict):
        return {name: plain(item, store, name) for name, item in value.items()}
    if key == "context":
        return [[message.role, message.text] for message in decode_context(value)]
    if key == "id":
        assert re.fullmatch(r"call_[a-z0-9]{8}", value)
        return "<id>"
    if isinstance(value, list):
        return [plain(item, store) for item in value]
    if key.endswith("_duration"):
        assert isinstance(value, int)
        assert value > 0
        return "<ns>"
    if key.endswith("_at"):
        assert TIME.fullmatch(value), value
        return "<time>"
    return value.replace(store, "<store>") if isinstance(value, str) else value


def perform(server: Server, exchange: dict[str, Any]) -> dict[str, Any]:
    content = {"json": exchange["body"]} if "body" in exchange else {"content": exchange.get("raw", "").encode()}
    answer = server.http.request(exchange["method"], server.url + exchange["path"], **content)
    kind = answer.headers.get("content-type", "")
    done = {
        **{name: exchange[name] for name in ("method", "path", "body", "raw") if name in exchange},
        "status": answer.status_code,
        "content_type": kind,
    }
    store = str(server.store)
    if kind == "application/x-ndjson":
        done["lines"] = [plain(json.loads(line), store) for line in answer.text.split("\n")[:-1]]
        assert answer.text.endswith("\n")
    elif "json" in kind and answer.content:
        done["json"] = plain(answer.json(), store)
    else:
        done["text"] = answer.text
    return done


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_exchanges(golden: Server, file: Path) -> None:
    told = json.loads(file.read_text())
    for name, script in told["models"].items():
        platform = script.pop("platform", "scripted")
        golden.add(platform, name=name, more=script.pop("more", ""), **script)
    made = [perform(golden, exchange) for exchange in told["exchanges"]]
    if os.environ.get("CARDCAGE_WRITE_GOLDEN"):
        whole = {"models": json.loads(file.read_text())["models"], "exchanges": made}
        file.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    assert made == told["exchanges"]


def test_every_route_has_an_exchange_streamed_and_not() -> None:
    seen = set()
    streamed = {path: set() for path in STREAMING}
    for file in FILES:
        for exchange in json.loads(file.read_text())["exchanges"]:
            path = re.sub(r"^(/api/(?:blobs|user/keys)/).*", r"\1", exchange["path"])
            seen.add(f"{exchange['method']} {path}")
            if path in STREAMING and exchange["status"] == 200:
                streamed[path].add("lines" in exchange)
    assert seen >= EXPECTED_ROUTES
    # The pull of a model that exists is in test_pull, against a registry.
    assert streamed == {path: {True} if path == "/api/pull" else {True, False} for path in STREAMING}
