"""Whole servers with the installed dialects and platforms, as their users run them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

REPOSITORY = Path(__file__).parents[2]
STORE = Path(os.environ.get("CARDCAGE_TEST_STORE") or REPOSITORY / ".cardcage/models")
SMOLLM2 = STORE / "llamacpp/cpu/smollm2-135m"
SCRIPTED_PLUGIN = Path(__file__).parent / "scripted_plugin.py"
PATIENCE_SECONDS = 60.0


class Deployment:
    """One data directory with a configuration, the servers in it, and the command line on it."""

    def __init__(self, home: Path, config: str, store: Path) -> None:
        self.home = home
        self.data_dir = home / "data"
        self.log_file = home / "log"
        self.config_file = home / "config.toml"
        self.config_file.write_text(
            f'[paths]\ndata_dir = "{self.data_dir}"\nstore = "{store}"\n'
            f'[server]\nport = 0\nlog_format = "json"\n[plugins]\nfiles = ["{SCRIPTED_PLUGIN}"]\n{config}'
        )
        self.process = None
        self.url = ""

    @property
    def environment(self):
        clean = {"CARDCAGE_URL": "", "CARDCAGE_STORE": "", "CARDCAGE_DATA_DIR": "", "CARDCAGE_PORT": ""}
        return {**os.environ, **clean, "CARDCAGE_CONFIG": str(self.config_file)}

    def serve(self):
        """Start a server and return when it listens."""
        with self.log_file.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cardcage", "serve"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
            )
        line = self.process.stdout.readline()
        assert line.startswith("Cardcage listens on "), self.log_file.read_text()
        self.url = line.split()[-1]
        return self

    def command(self, *arguments, stdin=None, **options):
        """Run a command to its end."""
        return subprocess.run(
            [sys.executable, "-m", "cardcage", *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS * 2,
            check=False,
            env=self.environment,
            **({"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}),
            **options,
        )

    def start_command(self, *arguments, **options):
        """Start a command."""
        return subprocess.Popen([sys.executable, "-m", "cardcage", *arguments], env=self.environment, **options)

    def http(self):
        return httpx.Client(base_url=self.url, timeout=PATIENCE_SECONDS, trust_env=False)

    def events(self, name):
        """The server's log lines of one event, of a server in front or in the background."""
        files = [file for file in (self.log_file, self.data_dir / "server.log") if file.exists()]
        lines = [line for file in files for line in file.read_text().splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if entry["event"] == name]

    def models(self):
        """Ids of the loaded models."""
        result = self.command("ps", "--json")
        assert result.returncode == 0, result.stderr
        return [model["id"] for model in json.loads(result.stdout)["models"]]

    def holder(self):
        """What the lock file says of the running server."""
        return json.loads((self.data_dir / "server.lock").read_text())

    def stop(self):
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=PATIENCE_SECONDS)
            self.process.stdout.close()
        with contextlib.suppress(OSError, ValueError):
            pid = self.holder()["pid"]  # one that a command left running in the background
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not Path(f"/proc/{pid}").exists())


def wait_until(condition, seconds=PATIENCE_SECONDS):
    """Poll what another process will make true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def deploy(tmp_path):
    """Makes deployments that end with the test."""
    made = []

    def make(config="", *, store=None):
        home = tmp_path / f"deployment{len(made)}"
        home.mkdir()
        made.append(Deployment(home, config, store or home / "models"))
        return made[-1]

    yield make
    for deployment in made:
        deployment.stop()


@pytest.fixture(scope="session")
def smollm2_store():
    """The store with SmolLM2 in it."""
    if not (SMOLLM2 / "model.toml").is_file():
        pytest.skip(f"SmolLM2 is not in {STORE}: make model")
    return STORE


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory, smollm2_store):
    """A server with SmolLM2 loaded as `smollm2`, four instances, for the tests of a module."""
    config = f'[[models]]\nmodel_id = "smollm2"\nmodel_path = "{SMOLLM2}"\ninstance_count = 4\n'
    deployment = Deployment(tmp_path_factory.mktemp("smollm2"), config, smollm2_store)
    try:
        deployment.serve()
        with deployment.http() as http:
            wait_until(lambda: http.get("/readyz").status_code == 200)
        yield deployment
    finally:
        deployment.stop()


@pytest.fixture
def scripted(tmp_path):
    """Makes model files of the scripted platform."""

    def make(name="talker", **script):
        file = tmp_path / f"{name}.scripted.json"
        file.write_text(json.dumps(script))
        return file

    return make
