"""A whole server as a process of its own, for tests over real sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

BOARDS = Path(__file__).parent / "boards.py"


@dataclass
class RunningServer:
    """A `cardcage serve` process.

    Attributes:
        urls: Where it listens, in the order of the configuration.
    """

    process: subprocess.Popen[str]
    config_file: Path
    data_dir: Path
    log_file: Path
    urls: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.urls[0]

    def log(self) -> str:
        """Everything that it has logged so far."""
        return self.log_file.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log lines of one event."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False, **options)

    def command(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A command line on the same configuration."""
        return command(*arguments, "--config", str(self.config_file), check=check)

    def make_key(self, name: str = "tester", *arguments: str) -> str:
        return self.command("key", "create", name, *arguments).stdout.strip()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=20)


def command(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [sys.executable, "-m", "cardcage", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "CARDCAGE_CONFIG": "", "CARDCAGE_URL": ""},
    )
    assert not check or run.returncode == 0, f"{arguments}: {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run


class ServerStarter:
    """Starts servers below one directory, and ends them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[RunningServer] = []

    def __call__(
        self, config: str = "", *, environ: Mapping[str, str] | None = None, ready: bool = True
    ) -> RunningServer:
        """Start one with a configuration of its own; returns when it is ready, or has ended where `ready` is False.

        The configuration needs neither directories nor plugins; without `[[listen]]` it listens on a free loopback port.
        """
        home = self.directory / f"server{len(self.started)}"
        (home / "models").mkdir(parents=True)
        if "[[listen]]" not in config and "[server]" not in config:
            config += "\n[server]\nport = 0\n"
        if "log_level" not in config and "[server]" in config:
            config = config.replace("[server]", '[server]\nlog_level = "debug"')
        file = home / "config.toml"
        file.write_text(
            f'[paths]\ndata_dir = "{home / "data"}"\nstore = "{home / "models"}"\n'
            # The ollama dialect owns `/`: with it no path would be nobody's.
            f'[plugins]\nfiles = ["{BOARDS}"]\ndisabled = ["dialect:ollama"]\n{config}'
        )
        log_file = home / "log"
        with log_file.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "cardcage", "serve", "--config", str(file), "--log-format", "json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "CARDCAGE_CONFIG": "", **(environ or {})},
            )
        server = RunningServer(process=process, config_file=file, data_dir=home / "data", log_file=log_file)
        self.started.append(server)
        if not ready:
            process.wait(timeout=30)
            return server
        assert process.stdout is not None
        line = process.stdout.readline()
        assert re.match(r"Cardcage listens on ", line), f"it did not start: {server.log()}"
        server.urls = [event["url"] for event in server.events("ready")]
        return server

    def stop_all(self) -> None:
        for server in self.started:
            server.stop()
            if server.process.stdout is not None:
                server.process.stdout.close()


@pytest.fixture(scope="module")
def shared_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerStarter]:
    """Servers that live as long as a module's tests."""
    starter = ServerStarter(tmp_path_factory.mktemp("servers"))
    yield starter
    starter.stop_all()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[ServerStarter]:
    """Servers that live as long as a test."""
    starter = ServerStarter(tmp_path)
    yield starter
    starter.stop_all()


@pytest.fixture
def run_command():
    """The command line, as a process of its own."""
    return command
