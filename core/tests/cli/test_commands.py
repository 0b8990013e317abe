"""The command line as a process of its own: what it prints, where, and its exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
# Not pydantic: typer itself takes it for a command's parameters, where it is installed.
HEAVY = {
    "quart",
    "hypercorn",
    "httpx",
    "structlog",
    "cardcage.config",
    "cardcage.plugins",
    "cardcage.app",
}


@pytest.fixture
def cardcage(tmp_path):
    """Runs a command with a data directory, a port and a home of its own."""

    def run(*arguments: str, config: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "config.toml"
        file.write_text(f'[paths]\ndata_dir = "{tmp_path / "data"}"\n{config}')
        return subprocess.run(
            [sys.executable, "-m", "cardcage", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
            # Port 1 is never served, so that no server of this machine is found by chance.
            env={
                **os.environ,
                "CARDCAGE_CONFIG": str(file),
                "CARDCAGE_PORT": "1",
                "CARDCAGE_URL": "",
                "CARDCAGE_STORE": "",
                "CARDCAGE_DATA_DIR": "",
                **environ,
            },
        )

    return run


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["run", "--help"], ["serve", "--help"]])
def test_help_imports_nothing_heavy(arguments):
    code = (
        "import sys\n"
        f"sys.argv = ['cardcage', *{arguments!r}]\n"
        "from cardcage.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    code = end.code\n"
        f"loaded = sorted(set(sys.modules) & {HEAVY!r})\n"
        "print('LOADED', loaded, code)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] in {"LOADED [] 0", "LOADED [] None"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nonsense"], 2, "nonsense"),
        (["run"], 2, "model"),
        (["run", "m"], 2, "there is no prompt"),
        (["ps"], 3, "no server answers at http://127.0.0.1:1; start one with 'cardcage serve'"),
        (["unload", "m"], 3, "no server answers"),
        (["run", "m", "hi", "--url", "http://127.0.0.1:1"], 3, "no server answers"),
        (["ps", "--config", "/no/such/file.toml"], 4, "/no/such/file.toml: cannot be read"),
        (["serve", "--port", "many"], 2, "--port"),
        (["serve", "--port", "70000"], 4, "--port"),
        (["serve", "--log-level", "loud"], 4, "--log-level"),
        (["serve", "--plugin", "/no/such/plugin.py"], 4, "/no/such/plugin.py"),
        (["serve", "--host", "no.such.host.invalid"], 4, "Cannot listen on no.such.host.invalid"),
    ],
)
def test_exit_codes_and_one_line(cardcage, arguments, code, words):
    result = cardcage(*arguments)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    if code != 2:
        assert result.stderr.startswith("cardcage: error: ")
        assert result.stderr.count("\n") == 1


def test_a_wrong_file_is_one_line_with_table_and_key(cardcage, tmp_path):
    result = cardcage("serve", config="[server]\nprot = 1\n")
    assert result.returncode == 4
    assert (
        result.stderr == f"cardcage: error: {tmp_path}/config.toml: [server] unknown key 'prot'; did you mean 'port'?\n"
    )


def test_plugins_lists_failures_without_a_server(cardcage, tmp_path):
    site = tmp_path / "site"
    info = site / "tiny_broken-0.7.dist-info"
    info.mkdir(parents=True)
    (site / "tiny_broken.py").write_text("raise RuntimeError('no driver here')")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-broken\nVersion: 0.7\n")
    (info / "entry_points.txt").write_text("[cardcage.platforms]\nbroken = tiny_broken\n")
    result = cardcage("plugins", "--plugin", str(EXAMPLES / "minimal_platform.py"), PYTHONPATH=str(site))
    assert result.returncode == 0, result.stderr
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert lines["NAME"].split() == ["NAME", "KIND", "DISTRIBUTION", "VERSION", "STATE", "REASON"]
    assert lines["broken"].split(maxsplit=5) == [
        *("broken", "platform", "tiny-broken", "0.7", "failed"),
        "import raised RuntimeError: no driver here",
    ]
    assert "loaded" in lines["minimal"]
    as_json = json.loads(cardcage("plugins", "--json", PYTHONPATH=str(site)).stdout)
    (broken,) = [plugin for plugin in as_json["plugins"] if plugin["name"] == "broken"]
    assert (broken["state"], broken["reason"]) == ("failed", "import raised RuntimeError: no driver here")


def test_plugins_tells_a_conflict_that_would_refuse_the_start(cardcage, tmp_path):
    copy = tmp_path / "copy.py"
    copy.write_text((EXAMPLES / "minimal_platform.py").read_text())
    arguments = ("--plugin", str(EXAMPLES / "minimal_platform.py"), "--plugin", str(copy))
    listed = cardcage("plugins", *arguments)
    assert listed.returncode == 0
    assert "refused" in listed.stdout
    assert "would refuse to start" in listed.stderr
    refused = cardcage("serve", *arguments)
    assert refused.returncode == 4
    assert str(copy) in refused.stderr
    assert str(EXAMPLES / "minimal_platform.py") in refused.stderr


def test_platform_probes_here_where_no_server_runs(cardcage):
    result = cardcage("platform", "--json", config=f'[plugins]\nfiles = ["{EXAMPLES}/minimal_platform.py"]\n')
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["service"] == "not running"
    (minimal,) = [item for item in found["platforms"] if item["id"] == "minimal"]
    assert (minimal["display_name"], minimal["available"], minimal["detected_chips"]) == ("Minimal", True, [])


NOISY = """
import ctypes, os, sys
from cardcage_sdk import hookimpl
from cardcage_sdk.testing.platforms import ScriptedPlatform

print("noise")
os.write(1, b"noise of a descriptor\\n")
ctypes.CDLL(None).printf(b"noise of C\\n")

class Noisy(ScriptedPlatform):
    name = "noisy"

    def probe(self):
        print("noise of a probe")
        raise OSError("the bus is dead")

@hookimpl
def register_platforms():
    print("noise of a hook")
    return [Noisy]
"""


@pytest.mark.parametrize("command", ["plugins", "platform", "doctor"])
def test_what_plugins_print_or_raise_does_not_spoil_the_answer(cardcage, tmp_path, command):
    (tmp_path / "noisy.py").write_text(NOISY)
    config = f'[plugins]\nfiles = ["{tmp_path}/noisy.py"]\n'
    result = cardcage(command, "--json", config=config, CARDCAGE_PORT="39265")
    assert "noisy" in json.dumps(json.loads(result.stdout))
    assert "noise of a descriptor" in result.stderr
    assert "noise of C" in result.stderr
    assert "Traceback" not in result.stderr
    if command != "plugins":
        assert "its probe failed: OSError: the bus is dead" in result.stdout


def test_doctor_shows_where_each_value_came_from(cardcage, tmp_path):
    file = f'[plugins]\nfiles = ["{EXAMPLES}/minimal_platform.py"]\n[server]\nlog_level = "debug"\n'
    result = cardcage("doctor", "--json", config=file, CARDCAGE_PORT="39265")
    found = json.loads(result.stdout)
    settings = found["configuration"]
    assert settings["server.port"] == {"value": 39265, "source": "environment CARDCAGE_PORT"}
    assert settings["server.log_level"] == {"value": "debug", "source": str(tmp_path / "config.toml")}
    assert settings["server.host"] == {"value": "127.0.0.1", "source": "built-in"}
    assert settings["plugins.files"]["value"] == [str(EXAMPLES / "minimal_platform.py")]
    by_subject = {(item["topic"], item["subject"]): item for item in found["findings"]}
    assert by_subject["platform", "minimal"]["grade"] == "ok"
    assert by_subject["server", "service"]["detail"] == "not running"
    assert by_subject["server", "127.0.0.1:39265"]["grade"] == "ok"


def test_doctor_names_faults_and_exits_1(cardcage, tmp_path):
    (tmp_path / "bad.py").write_text("1 / 0")
    result = cardcage("doctor", config=f'[plugins]\nfiles = ["{tmp_path}/bad.py"]\n', CARDCAGE_PORT="39265")
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stdout
    assert result.stderr.startswith("cardcage: error: ")


def test_doctor_tells_broken_models(cardcage, tmp_path):
    broken = tmp_path / "data/models/alpha/cpu/broken-1m"
    broken.mkdir(parents=True)
    (broken / "model.toml").write_text("schema = 9\n")
    result = cardcage("doctor", CARDCAGE_PORT="39265")
    assert "broken-1m" in result.stdout
    assert "schema 9" in result.stdout


def test_doctor_tells_what_no_load_of_the_configuration_would_get_on_with(cardcage, tmp_path):
    file = (
        f'[plugins]\nfiles = ["{EXAMPLES}/minimal_platform.py"]\n[scheduling]\nplatform_order = ["nobody"]\n'
        f"[platforms.minimal]\nnope = 1\n"
        f'[[models]]\nmodel_id = "gone"\nmodel_path = "{tmp_path}/gone"\nplatform = "minimal"\noptions = {{ zip = 1 }}\n'
    )
    result = cardcage("doctor", "--json", config=file, CARDCAGE_PORT="39265")
    assert result.returncode == 1
    findings = [item for item in json.loads(result.stdout)["findings"] if item["topic"] == "configuration"]
    told = {(item["subject"], item["grade"]): item["detail"] for item in findings}
    assert told["options", "fault"].startswith("[platforms.minimal] nope: ")
    assert told["platform_order", "warning"] == "platform 'nobody' is not loaded"
    models = [item["detail"] for item in findings if item["subject"] == "model gone"]
    assert models[0] == f"there is no '{tmp_path}/gone'"
    assert models[1].startswith("options: zip: ")


def test_doctor_of_a_running_server(start_server):
    server = start_server()
    result = server.command("doctor", "--json", check=False)
    by_subject = {item["subject"]: item for item in json.loads(result.stdout)["findings"]}
    assert f"process {server.process.pid}" in by_subject["lock"]["detail"]
    assert by_subject["service"]["detail"] == f"running at {server.url}, ready"


def test_commands_find_the_server_of_their_data_directory(start_server):
    """It listens on a port that only the lock file tells."""
    server = start_server()
    result = server.command("platform", "--json")
    assert json.loads(result.stdout)["url"] == server.url
