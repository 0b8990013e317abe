"""A real `cardcage serve` process with scripted models behind it."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

PLUGIN = Path(__file__).with_name("scripted_plugin.py")
PATIENCE_SECONDS = 30.0
"""Long after which a test gives up waiting; nothing that works comes near it."""


@dataclass
class Server:
    """A running server and a client for it.

    Attributes:
        url: Without `/v1`.
        folder: For model files.
        log: What the server has written so far.
    """

    url: str
    folder: Path
    http: httpx.Client
    log_file: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def get(self, path: str) -> httpx.Response:
        return self.http.get(self.url + path)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(self.url + path, json=body)

    def write_model(self, platform: str = "scripted", /, **script: Any) -> Path:
        """A model file of a scripted platform that no other test uses."""
        file = self.folder / f"model{next(self._numbers)}.{platform}.json"
        file.write_text(json.dumps(script))
        return file

    @contextlib.contextmanager
    def loaded(
        self, platform: str = "scripted", /, *, load: dict[str, Any] | None = None, **script: Any
    ) -> Iterator[str]:
        """A loaded model; its id is unique. `load` adds to the load request."""
        model_id = f"m{next(self._numbers)}"
        body = {"model_id": model_id, "model_path": str(self.write_model(platform, **script)), **(load or {})}
        answer = self.post("/v1/models/load", body)
        assert answer.status_code == 200, answer.text
        try:
            yield model_id
        finally:
            self.post("/v1/models/unload", {"model_id": model_id, "force": True})

    @contextlib.contextmanager
    def held(self, body: dict[str, Any]) -> Iterator[httpx.Response]:
        """A streamed chat that is open; it has begun, at least with a ping, and ends when this does."""
        with self.http.stream("POST", f"{self.url}/v1/chat/completions", json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            yield response

    def running(self, model_id: str) -> dict[str, Any]:
        """What the readiness route says of a model: `running` and `queued` requests among it."""
        models = self.get("/readyz").json()["models"]
        return next(model for model in models if model["id"] == model_id)

    def until(self, condition: Callable[[], bool]) -> None:
        """Ask until it is so. Each question is a round trip to the server, so this is no busy loop."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"did not come true; the server's log ends with:\n{self.log[-2000:]}"


def _die_with_parent() -> None:
    """A test run that is killed leaves no server behind (PR_SET_PDEATHSIG is 1)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextlib.contextmanager
def serve(folder: Path, settings: str) -> Iterator[Server]:
    """Start a server of its own on a free port."""
    config = folder / "config.toml"
    config.write_text(f"[dialects.openai]\n{settings}\n")
    log_file = folder / "server.log"
    command = [
        str(Path(sys.executable).with_name("cardcage")), "serve", "--config", str(config), "--port", "0",
        "--data-dir", str(folder / "data"), "--store", str(folder / "store"), "--plugin", str(PLUGIN),
    ]  # fmt: skip
    with log_file.open("w") as log:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=log,
            stdin=subprocess.DEVNULL,
            text=True,
            # The child calls prctl and then execs: there is no lock of another thread that it could wait for.
            preexec_fn=_die_with_parent,  # noqa: PLW1509
        )
    assert process.stdout is not None
    try:
        # It prints its URL when it answers; an end without it is a failed start.
        url = next((line.split()[-1] for line in process.stdout if "http://" in line), None)
        assert url is not None, log_file.read_text()
        with httpx.Client(timeout=30.0) as http:
            yield Server(url=url.rstrip("/"), folder=folder, http=http, log_file=log_file)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
