"""The official JavaScript client against a real server. Heavy: it fetches the client with npm.

CARDCAGE_HEAVY=1 python -m pytest plugins/openai/tests/test_js_client.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from serving import Server

SOURCE = Path(__file__).parent / "js"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not os.environ.get("CARDCAGE_HEAVY"), reason="fetches npm packages: set CARDCAGE_HEAVY=1"),
    pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed"),
]


@pytest.fixture(scope="module")
def client_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("js")
    for file in SOURCE.iterdir():
        shutil.copy(file, folder)
    command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run(command, cwd=folder, check=True, timeout=240)
    return folder


@pytest.mark.parametrize("profile", ["server", "openai_server"])
def test_the_javascript_client(request: pytest.FixtureRequest, client_folder: Path, profile: str) -> None:
    server = request.getfixturevalue(profile)
    assert isinstance(server, Server)
    broken = server.write_model("faulty", kind="exit", phase="load")
    crash = {"kind": "sigkill", "phase": "decode", "after_tokens": 2}
    with (
        server.loaded(answer="Hello there, friend.", rules={"weather": CALL}) as model,
        server.loaded("faulty", **crash, delay_seconds=0.1) as crashing,
    ):
        run = subprocess.run(
            ["node", "check.mjs", server.url, model, str(broken), crashing],
            cwd=client_folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "done 10" in run.stdout
