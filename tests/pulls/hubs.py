"""Small real servers that speak the protocols of the hubs, with faults that a test asks for."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["Fault", "Hub", "raw_answer", "running_hub"]


@dataclass(kw_only=True)
class Fault:
    """What goes wrong with one answer, and with how many answers to come.

    Attributes:
        path: Part of the request's path that it is about.
        times: Answers that it spoils; then it is used up.
        cut_at: Part of the body after which the connection is cut, 0 to 1.
        status: Answered instead of what was asked for.
        headers: Sent with `status`.
        is_wrong: The body has the right length and other bytes.
        gate: The answer waits for it after `cut_at` of the body (0 where unset), and then goes on.
        ignores_range: The whole file is sent, with status 200.
        raw: Sent as it is instead of an answer, status line and headers included; then the connection is closed.
    """

    path: str
    times: int = 1
    cut_at: float | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    is_wrong: bool = False
    gate: threading.Event | None = None
    ignores_range: bool = False
    raw: bytes | None = None


def raw_answer(body: bytes, *headers: str, status: str = "200 OK") -> bytes:
    """A whole answer for `Fault.raw`; it says only what is asked for, and nothing about its length."""
    return "\r\n".join([f"HTTP/1.1 {status}", "connection: close", *headers, "", ""]).encode() + body


@dataclass
class Hub:
    """The state of one server: repositories by name, their files by path, blobs and manifests of an Ollama registry.

    Attributes:
        asked: Every request: method, path with query, range header.
    """

    url: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    plain: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    has_etags: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_ollama(self, name: str, tag: str, layers: Mapping[str, bytes]) -> None:
        """Publish a model: kind of layer (`model`, `params`, ...) to its bytes."""
        listed = []
        for kind, content in layers.items():
            digest = "sha256:" + hashlib.sha256(content).hexdigest()
            self.blobs[digest] = content
            listed.append({"mediaType": f"application/vnd.ollama.image.{kind}", "digest": digest, "size": len(content)})
        self.manifests[f"{name}:{tag}"] = json.dumps({"schemaVersion": 2, "layers": listed}).encode()

    def ranges(self, part: str) -> list[str | None]:
        """Range headers of the requests whose path has `part`, in their order."""
        with self.lock:
            return [asked for _, path, asked in self.asked if part in path]

    def take_fault(self, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.path in path and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        """Keep stderr for failures."""

    def do_GET(self) -> None:
        with self.hub.lock:
            self.hub.asked.append(("GET", self.path, self.headers.get("range")))
            self.hub.tokens.append(self.headers.get("authorization"))
        fault = self.hub.take_fault(self.path)
        if fault is not None and fault.raw is not None:
            self.wfile.write(fault.raw)
            self.close_connection = True
            return
        if fault is not None and fault.status is not None:
            self.answer(fault.status, b"{}", {**fault.headers})
            return
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        for pattern, answer in ROUTES:
            if match := re.fullmatch(pattern, path):
                answer(self, match, {key: values[0] for key, values in parse_qs(parts.query).items()}, fault)
                return
        self.answer(404, b'{"error": "no such path"}')

    # --- Hugging Face

    def hf_info(self, match: re.Match[str], query: Mapping[str, str], fault: Fault | None) -> None:
        files = self.hub.repositories.get(match[1])
        if files is None:
            self.answer(404, b'{"error": "Repository not found"}', {"x-error-code": "RepoNotFound"})
            return
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": "0" * 40,
                "lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134},
            }
            for name, content in files.items()
        ]
        body = {
            "id": match[1],
            "modelId": match[1],
            "sha": "a" * 40,
            "siblings": siblings,
            "tags": ["license:apache-2.0"],
        }
        self.body(json.dumps(body).encode(), fault)

    def hf_file(self, match: re.Match[str], query: Mapping[str, str], fault: Fault | None) -> None:
        self.redirect_or_file(
            self.hub.repositories.get(match[1], {}).get(match[2]), f"/cdn/{match[1]}/{match[2]}", fault
        )

    def redirect_or_file(self, content: bytes | None, location: str, fault: Fault | None) -> None:
        """As the hub does with large files: the bytes lie elsewhere, under an address that needs no token."""
        if content is None:
            self.answer(404, b"{}")
        elif fault is not None:
            self.file(content, fault)
        else:
            self.answer(302, b"", {"location": self.hub.url.replace("127.0.0.1", "localhost") + location})

    def cdn(self, match: re.Match[str], query: Mapping[str, str], fault: Fault | None) -> None:
        self.file(self.hub.repositories[match[1]][match[2]], fault)

    # --- ModelScope

    def ms_files(self, match: re.Match[str], query: Mapping[str, str], fault: Fault | None) -> None:
        files = self.hub.repositories.get(match[1])
        if files is None:
            self.answer(404, json.dumps({"Code": 10010205001, "Message": "model not exist", "Success": False}).encode())
            return
        folders = [{"Path": "docs", "Name": "docs", "Type": "tree", "Size": 0}]
        listed = [
            {
                "Path": name,
                "Name": name,
                "Type": "blob",
                "Size": len(content),
                "Sha256": hashlib.sha256(content).hexdigest(),
            }
            for name, content in files.items()
        ]
        self.body(json.dumps({"Code": 200, "Success": True, "Data": {"Files": folders + listed}}).encode(), fault)

    def ms_file(self, match: re.Match[str], query: Mapping[str, str], fault: Fault | None) -> None:
        content = self.hub.repositories.get(match[1], {}).get(query.get("FilePath", ""))
        if content is None:
            self.answer(404, b"{}")
        else:
            self.file(content, fault)

    # --- Ollama

    def manifest(self, match: re.Match[str], query: Mapping[str, str], fault: Fault | None) -> None:
        content = self.hub.manifests.get(f"{match[1]}:{match[2]}")
        if content is None:
            self.answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}')
        else:
            self.body(content, fault)

    def blob(self, match: re.Match[str], query: Mapping[str, str], fault: Fault | None) -> None:
        content = self.hub.blobs.get(match[1])
        if content is None:
            self.answer(404, b"{}")
        else:
            self.file(content, fault)

    def plain_file(self, match: re.Match[str], query: Mapping[str, str], fault: Fault | None) -> None:
        content = self.hub.plain.get(match[1])
        if content is None:
            self.answer(404, b"not here")
        else:
            self.file(content, fault)

    # --- answers

    def file(self, content: bytes, fault: Fault | None) -> None:
        headers = {"etag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'} if self.hub.has_etags else {}
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("range") or "")
        wanted = self.headers.get("if-range")
        if asked is None or (wanted is not None and wanted != headers.get("etag")) or (fault and fault.ignores_range):
            self.body(content, fault, headers=headers)
            return
        first = int(asked[1])
        if first >= len(content):
            self.answer(416, b"", {"content-range": f"bytes */{len(content)}"})
            return
        headers["content-range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        self.body(content[first:], fault, status=206, headers=headers)

    def body(
        self, content: bytes, fault: Fault | None, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if fault is None:
            self.wfile.write(content)
            return
        if fault.is_wrong:
            content = bytes(255 - byte for byte in content)
        middle = int(len(content) * (fault.cut_at or 0.0))
        self.wfile.write(content[:middle])
        self.wfile.flush()
        if fault.gate is not None:
            fault.gate.wait(60)
        elif fault.cut_at is not None:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.wfile.write(content[middle:])

    def answer(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


ROUTES = [
    (r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", _Handler.hf_info),
    (r"/api/v1/models/([^/]+/[^/]+)/repo/files", _Handler.ms_files),
    (r"/api/v1/models/([^/]+/[^/]+)/repo", _Handler.ms_file),
    (r"/v2/(.+)/manifests/([^/]+)", _Handler.manifest),
    (r"/v2/.+/blobs/(sha256:[0-9a-f]+)", _Handler.blob),
    (r"/cdn/([^/]+/[^/]+)/(.+)", _Handler.cdn),
    (r"/plain/(.+)", _Handler.plain_file),
    (r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", _Handler.hf_file),
]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle is what these tests are about."""


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Serve a hub of its own on a free port."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with _Server(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            for fault in hub.faults:
                if fault.gate is not None:
                    fault.gate.set()
            server.shutdown()
            thread.join()
