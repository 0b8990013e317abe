"""Core, one platform and one dialect, installed from built wheels and not editable, serve a request."""

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

REPOSITORY = Path(__file__).parents[2]
MEMBERS = ("sdk", "core", "plugins/openai", "platforms/llamacpp")

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, **options)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A fresh environment with the members' wheels; what they need of others is taken from this environment by a path file.

    So nothing is downloaded, and none of our own packages can come from anywhere but the wheels: the path file's directory
    comes after the environment's own, and it holds no package of ours but by editable redirections, which are not followed
    from there.
    """
    folder = tmp_path_factory.mktemp("wheels")
    wheels = folder / "dist"
    for member in MEMBERS:
        command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(wheels), member)
        run(*command, cwd=REPOSITORY)
    assert len(list(wheels.glob("*.whl"))) == len(MEMBERS)
    venv = folder / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", str(venv))
    python = venv / "bin/python"
    run(
        *(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"),
        *map(str, sorted(wheels.glob("*.whl"))),
    )
    (site,) = venv.glob("lib/python*/site-packages")
    outer = Path(pytest.__file__).parents[1]
    (site / "others.pth").write_text(f"{outer}\n")
    return venv


def test_the_packages_come_from_the_wheels(environment):
    code = "import cardcage, cardcage_sdk, cardcage_dialect_openai, cardcage_platform_llamacpp as p; "
    code += "print(cardcage.__file__, cardcage_sdk.__file__, cardcage_dialect_openai.__file__, p.__file__)"
    paths = run(str(environment / "bin/python"), "-P", "-c", code).split()
    assert all(path.startswith(str(environment)) for path in paths), paths


def test_they_serve_a_request(environment, smollm2_store, tmp_path):
    cardcage = environment / "bin/cardcage"
    environ = {**os.environ, "CARDCAGE_DATA_DIR": str(tmp_path / "data"), "CARDCAGE_STORE": str(smollm2_store)}
    environ |= {"CARDCAGE_PORT": "0", "CARDCAGE_CONFIG": "", "CARDCAGE_URL": ""}
    listed = run(str(cardcage), "plugins", env=environ, cwd=tmp_path)
    states = {line.split()[0]: line.split()[4] for line in listed.splitlines()[1:]}
    assert states["openai"] == "loaded"
    assert states["llamacpp"] == "loaded"
    with subprocess.Popen(
        [str(cardcage), "serve"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environ,
        cwd=tmp_path,
    ) as server:
        try:
            url = server.stdout.readline().split()[-1]
            with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
                path = str(smollm2_store / "llamacpp/cpu/smollm2-135m")
                loaded = http.post("/v1/models/load", json={"model_id": "m", "model_path": path})
                assert loaded.json()["actual_instance_count"] == 1, loaded.text
                question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
                body = {"model": "m", "messages": question, "temperature": 0, "max_tokens": 20}
                answer = http.post("/v1/chat/completions", json=body).json()
            assert "Paris" in answer["choices"][0]["message"]["content"]
        finally:
            server.terminate()
        assert server.wait(timeout=60) == 0
