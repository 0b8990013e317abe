"""A real `cardcage serve` whose sources are the hubs of a test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
from hubs import Hub

BOARD = Path(__file__).with_name("board.py")


@dataclass
class Served:
    """One home of a server, which may be started in it again and again.

    Attributes:
        config_file: Its configuration.
        store: Its model store.
    """

    home: Path
    config_file: Path
    store: Path
    process: subprocess.Popen[str] | None = None
    url: str = ""

    def start(self) -> None:
        with (self.home / "log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cardcage", "serve", "--config", str(self.config_file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment(),
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("Cardcage listens on "), (self.home / "log").read_text()
        self.url = line.split()[-1]

    def kill(self) -> None:
        """As a crash or the power switch does it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def request(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return httpx.request(method, self.url + path, json=body, timeout=60, trust_env=False)

    def pull(self, model: str, **options: Any) -> list[dict[str, Any]]:
        """Every event of a streamed pull, the error event among them."""
        with self.pulling(model, **options) as events:
            return list(events)

    @contextlib.contextmanager
    def pulling(self, model: str, **options: Any) -> Iterator[Iterator[dict[str, Any]]]:
        body = {"model": model, "stream": True, **options}
        with httpx.stream("POST", f"{self.url}/v1/models/pull", json=body, timeout=60, trust_env=False) as response:
            assert response.status_code == 200, response.read()
            yield _events(response)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command line on the same configuration."""
        return subprocess.run(
            [sys.executable, "-m", "cardcage", *arguments, "--config", str(self.config_file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=environment(),
        )


def _events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in response.iter_lines():
        if line.startswith("data:") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data:"))


def environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("CARDCAGE_")}
    return {**own, "HF_HUB_DISABLE_TELEMETRY": "1", "COLUMNS": "200"}


def _installed_platforms() -> list[str]:
    """Whatever else is installed where these tests run: the only platforms of the servers here are the board's."""
    return [f"platform:{entry.name}" for entry in metadata.entry_points(group="cardcage.platforms")]


def make_home(home: Path, hubs: dict[str, Hub], *, more: str = "") -> Served:
    store = home / "models"
    store.mkdir(parents=True)
    config = home / "config.toml"
    config.write_text(
        f"""# the file of a board owner
[server]
port = 0        # any

[paths]
store = "{store}"
data_dir = "{home / "data"}"

[plugins]
files = ["{BOARD}"]
disabled = {json.dumps(_installed_platforms())}

[sources.huggingface]
endpoint = "{hubs["huggingface"].url}"
[sources.modelscope]
endpoint = "{hubs["modelscope"].url}"
[sources.ollama]
registry = "{hubs["ollama"].url}"
{more}"""
    )
    return Served(home=home, config_file=config, store=store)
