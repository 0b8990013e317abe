"""The one-file platform and dialect of `examples/`, used as their first lines say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = ", ".join(f'"{EXAMPLES / name}"' for name in ("minimal_platform.py", "minimal_dialect.py"))

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def minimal(deploy, tmp_path):
    (tmp_path / "hello.minimal").write_text("any text")
    deployment = deploy()
    text = deployment.config_file.read_text()
    deployment.config_file.write_text(text.replace("files = [", f"files = [{FILES}, "))
    return deployment.serve()


def test_the_platform_answers_through_every_dialect(minimal, tmp_path):
    model = tmp_path / "hello.minimal"
    answer = minimal.command("run", str(model), "one two three")
    assert (answer.returncode, answer.stdout) == (0, "three two one \n")
    assert minimal.command("load", str(model), "--id", "hi").returncode == 0
    with minimal.http() as http:
        asked = http.post("/minimal/ask/hi", content="who is there")
        assert (asked.status_code, asked.text) == (200, "there is who \n")
        assert http.post("/minimal/ask/nobody", content="x").status_code == 404
        assert http.post("/minimal/ask/hi", content="").status_code == 400
        unknown = http.get("/minimal/none")
        assert (unknown.status_code, unknown.text) == (404, "Unknown path '/minimal/none'\n")
        # What the platform does not declare is refused by core, before the engine is asked.
        body = {"model": "hi", "messages": [{"role": "user", "content": "x"}], "temperature": 0.5}
        refused = http.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")


def test_the_dialect_refuses_settings_that_it_does_not_know(minimal):
    assert minimal.process.poll() is None
    minimal.stop()
    with minimal.config_file.open("a") as file:
        file.write("\n[dialects.minimal]\ncolour = 1\n")
    refused = minimal.command("serve")
    assert refused.returncode == 4
    assert refused.stderr.splitlines()[-1] == "cardcage: error: [dialects.minimal] has no settings, but got: colour"


KIT = """
from cardcage_sdk.testing import PlatformSuite
from minimal_platform import MinimalPlatform


class TestMinimal(PlatformSuite):
    platform = MinimalPlatform
    model = "hello.minimal"
"""


def test_the_platform_passes_the_conformance_kit(tmp_path):
    shutil.copy(EXAMPLES / "minimal_platform.py", tmp_path)
    (tmp_path / "hello.minimal").write_text("any text")
    (tmp_path / "test_minimal.py").write_text(KIT)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "test_minimal.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
