"""The JavaScript client, langchain-ollama and llm-ollama against a real server. Heavy: they are fetched from npm and PyPI.

CARDCAGE_HEAVY=1 python -m pytest plugins/ollama/tests/test_other_clients.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ollama_serving import Server, serve

HERE = Path(__file__).parent
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not os.environ.get("CARDCAGE_HEAVY"), reason="fetches packages: set CARDCAGE_HEAVY=1"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("clients")) as started:
        started.add(name="fox:1b", answer="Hello there, friend.", rules={"weather": CALL}, reasoning="Let me think.")
        started.add(name="vec:1b", tasks=["embed"])
        yield started


def run(*command: str | Path, cwd: Path, environ: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env={**os.environ, **(environ or {})},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(folder: Path, *packages: str) -> Path:
    """A virtual environment of its own: all clients in one make pip go back years."""
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    binaries = folder / "venv" / "bin"
    run(binaries / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages, cwd=folder)
    return binaries


@pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed")
def test_the_javascript_client(server: Server, tmp_path: Path) -> None:
    for file in (HERE / "js").iterdir():
        shutil.copy(file, tmp_path)
    run("npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error", cwd=tmp_path)
    assert "done 11" in run("node", "check.mjs", server.url, "fox:1b", "vec:1b", cwd=tmp_path)


def test_langchain(server: Server, tmp_path: Path) -> None:
    binaries = install(tmp_path, "langchain-ollama==1.1.0")
    script = HERE / "clients" / "check_langchain.py"
    assert "done langchain" in run(binaries / "python", script, server.url, "fox:1b", "vec:1b", cwd=tmp_path)


def test_llm(server: Server, tmp_path: Path) -> None:
    binaries = install(tmp_path, "llm==0.36", "llm-ollama==0.19.1")
    environ = {"OLLAMA_HOST": server.url, "LLM_USER_PATH": str(tmp_path / "user")}
    script = HERE / "clients" / "check_llm.sh"
    assert "done llm" in run("sh", script, binaries, "fox:1b", "vec:1b", cwd=tmp_path, environ=environ)
