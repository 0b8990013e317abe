"""A real `cardcage serve` process with scripted models in its store."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from ollama import Client

PLUGIN = Path(__file__).with_name("scripted_plugin.py")
PATIENCE_SECONDS = 30.0
"""Long after which a test gives up waiting; nothing that works comes near it."""


@dataclass
class Server:
    """A running server and clients for it."""

    url: str
    store: Path
    http: httpx.Client
    ollama: Client
    log_file: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(self.url + path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(self.url + path, json=body, **options)

    def lines(self, path: str, body: Any) -> list[dict[str, Any]]:
        """The objects of a streamed answer."""
        answer = self.post(path, body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.text.endswith("\n")
        return [json.loads(line) for line in answer.text.splitlines()]

    def add(self, platform: str = "scripted", /, *, name: str | None = None, more: str = "", **script: Any) -> str:
        """A model of the store, with its name. `more` goes into its `model.toml`."""
        name = name or f"m{next(self._numbers)}:1b"
        base, _, size = name.partition(":")
        folder = self.folder(name, platform)
        folder.mkdir(parents=True)
        # The platform `plain` runs scripts too; `model.toml` says that they are its own.
        file = folder / ("m.scripted.json" if platform == "plain" else f"m.{platform}.json")
        file.write_text(json.dumps(script))
        (folder / "model.toml").write_text(
            f'schema = 1\nname = "{base}"\nsize = "{size}"\nplatform = "{platform}"\nchips = ["cpu"]\n{more}\n'
            f'[[files]]\nname = "{file.name}"\nsize_bytes = {file.stat().st_size}\n'
        )
        return name

    def folder(self, name: str, platform: str = "scripted") -> Path:
        """Where a model of the store lies."""
        return self.store / platform / "cpu" / name.replace(":", "-")

    def until(self, condition: Callable[[], bool]) -> None:
        """Ask until it is so. Each question is a round trip to the server, so this is no busy loop."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"did not come true; the server's log ends with:\n{self.log[-2000:]}"


def _die_with_parent() -> None:
    """A test run that is killed leaves no server behind (PR_SET_PDEATHSIG is 1)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextlib.contextmanager
def serve(
    folder: Path,
    settings: str = "",
    *,
    more: str = "",
    plugins: str = "",
    port: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Start a server of its own on a free port.

    Args:
        folder: For its store, data and log.
        settings: Of `[dialects.ollama]`.
        more: Further tables of the configuration.
        plugins: Further keys of `[plugins]`.
        port: False where `more` has `[[listen]]` entries.
        environ: Further environment variables.
    """
    config = folder / "config.toml"
    store = folder / "models"
    store.mkdir(parents=True, exist_ok=True)
    config.write_text(
        f'[paths]\nstore = "{store}"\ndata_dir = "{folder / "data"}"\n[plugins]\nfiles = ["{PLUGIN}"]\n{plugins}\n'
        f"[dialects.ollama]\n{settings}\n{more}\n"
    )
    log_file = folder / "server.log"
    command = [sys.executable, "-m", "cardcage", "serve", "--config", str(config), "--log-format", "json"]
    with log_file.open("w") as log:
        process = subprocess.Popen(
            [*command, *(["--port", "0"] if port else [])],
            stdout=subprocess.PIPE,
            stderr=log,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "CARDCAGE_CONFIG": "", **(environ or {})},
            # The child calls prctl and then execs: there is no lock of another thread that it could wait for.
            preexec_fn=_die_with_parent,  # noqa: PLW1509
        )
    assert process.stdout is not None
    try:
        # It prints its URL when it answers; an end without it is a failed start.
        url = next((line.split()[-1] for line in process.stdout if "http://" in line), None)
        assert url is not None, log_file.read_text()
        url = url.rstrip("/")
        with httpx.Client(timeout=30.0, trust_env=False) as http:
            client = Client(host=url, timeout=30.0, trust_env=False)
            with contextlib.closing(client):
                yield Server(url=url, store=store, http=http, ollama=client, log_file=log_file)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
