"""`pull`, `list`, `rm`, `enable` and `disable` as a person types them, against a real server and real hubs."""

from __future__ import annotations

import difflib
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hubs import Fault, Hub
from served import Served, environment, make_home

GGUF = os.urandom(1 << 20) * 2
REPO = "Tiny/Talker-0.5B-GGUF"
FILE = "talker-0.5b-q4_0.gguf"


@pytest.fixture
def home(tmp_path: Path, hubs: dict[str, Hub]) -> Iterator[Served]:
    hubs["huggingface"].repositories[REPO] = {FILE: GGUF, "talker-0.5b-q8_0.gguf": GGUF[::-1]}
    made = make_home(tmp_path / "home", hubs)
    yield made
    made.stop()


@pytest.fixture
def served(home: Served) -> Served:
    home.start()
    return home


def on_terminal(home: Served, *arguments: str, answers: str = "") -> tuple[int, str]:
    """Run a command on a terminal of its own and type `answers` as soon as it asks; returns exit status and screen."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "cardcage", *arguments, "--config", str(home.config_file)]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env={**environment(), "TERM": "xterm", "COLUMNS": "120"}
    )
    os.close(slave)
    screen = b""
    deadline = time.monotonic() + 50
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.2)[0]:
            try:
                screen += os.read(master, 65536)
            except OSError:  # the other end is closed: the command has ended
                break
        if answers and screen.rstrip().endswith(b"]"):
            os.write(master, f"{answers}\n".encode())
            answers = ""
    status = process.wait(timeout=10)
    os.close(master)
    return status, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode())


def test_pull_list_and_rm(served: Served) -> None:
    pulled = served.command("pull", f"huggingface:{REPO}")
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout == f"talker:0.5b-q4_0@gguf-cpu  2.1 MB  {served.store}/gguf/cpu/talker-0.5b-q4_0\n"
    assert "checking 100 % of 2.1 MB" in pulled.stderr or "downloading" in pulled.stderr
    again = served.command("pull", f"huggingface:{REPO}", "--json")
    assert json.loads(again.stdout)["fetched"] is False
    listed = served.command("list")
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["MODEL", "TYPE", "PLATFORM", "SIZE", "LOCAL"],
        ["talker:0.5b-q4_0", "-", "gguf/cpu", "2.1", "MB", "yes"],
    ]
    everything = json.loads(served.command("list", "--all", "--json").stdout)
    assert [item["name"] for item in everything["models"]] == ["talker:0.5b-q4_0"]
    assert "smollm2:135m" in [item["reference"] for item in everything["offers"]]
    variants = served.command("list", f"huggingface:{REPO}")
    assert [line.split()[0] for line in variants.stdout.splitlines()[1:]] == [f"{REPO}:Q4_0", f"{REPO}:Q8_0"]
    removed = served.command("rm", "talker")
    assert (removed.returncode, removed.stdout) == (0, "model 'talker:0.5b-q4_0@gguf-cpu' removed\n")
    gone = served.command("rm", "talker")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr == "cardcage: error: Model 'talker' not found\n"


def test_failures_are_one_line(served: Served, hubs: dict[str, Hub]) -> None:
    hubs["huggingface"].repositories["Tiny/Board-1B"] = {"Board-1B_RK3588.rkllm": GGUF}
    unfit = served.command("pull", "huggingface:Tiny/Board-1B")
    assert unfit.returncode == 1
    assert unfit.stderr == (
        "cardcage: error: No variant of 'huggingface:Tiny/Board-1B' fits this machine: Board-1B_RK3588.rkllm: "
        "gguf: it has no *.gguf file; npu: no NPU was found\n"
    )
    hubs["huggingface"].faults.append(Fault(path=f"/{FILE}", times=9, is_wrong=True))
    corrupt = served.command("pull", f"huggingface:{REPO}")
    assert corrupt.returncode == 1
    assert corrupt.stderr.splitlines()[-1].startswith(f"cardcage: error: File '{FILE}' was not fetched correctly")
    named = served.command("pull", "huggingface:Tiny/Board-1B", "-p", "npu/rk3588", "--name", "board:1")
    assert named.returncode == 0, named.stderr


def test_without_a_server_list_and_rm_work_on_the_store_itself(home: Served) -> None:
    folder = home.store / "gguf/cpu/mine-1b"
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text('schema = 1\nname = "mine"\nsize = "1b"\nplatform = "gguf"\nchips = ["cpu"]\n')
    (folder / "m.gguf").write_bytes(b"x")
    listed = home.command("list", "--json")
    assert [item["id"] for item in json.loads(listed.stdout)["models"]] == ["mine:1b@gguf-cpu"]
    assert home.command("rm", "mine").returncode == 0
    assert list(home.store.iterdir()) == []
    assert home.command("list", "--online").returncode == 3


def test_a_terminal_shows_bars_and_is_asked_before_a_model_is_deleted(served: Served) -> None:
    status, screen = on_terminal(served, "pull", f"huggingface:{REPO}")
    assert status == 0, screen
    assert FILE in screen
    assert "━" in screen
    status, screen = on_terminal(served, "rm", "talker", answers="n")
    assert (status, "nothing was deleted" in screen) == (1, True)
    status, screen = on_terminal(served, "rm", "talker", answers="y")
    assert status == 0, screen
    assert "Delete talker:0.5b-q4_0@gguf-cpu (2.1 MB)? [y/N]" in screen
    assert json.loads(served.command("list", "--json").stdout)["models"] == []


def test_a_terminal_is_asked_which_variant_is_meant(served: Served, hubs: dict[str, Hub]) -> None:
    described = 'schema = 1\nname = "two"\nsize = "1b"\nplatform = "%s"\nchips = ["cpu"]\n'
    for name in ("gguf", "twin"):
        folder = served.store / name / "cpu/two-1b"
        folder.mkdir(parents=True)
        (folder / "model.toml").write_text(described % name)
        (folder / "m.gguf").write_bytes(b"x")
    piped = served.command("enable", "two")
    assert (piped.returncode, "--platform" in piped.stderr) == (1, True)
    status, screen = on_terminal(served, "enable", "two", "--id", "second", answers="2")
    assert status == 0, screen
    assert "1  two:1b@gguf-cpu" in screen
    assert f'model_path = "{served.store}/twin/cpu/two-1b"' in served.config_file.read_text()


@pytest.mark.parametrize("stops", [False, True])
def test_ctrl_c_leaves_the_download_alone_unless_told_otherwise(
    served: Served, hubs: dict[str, Hub], stops: bool
) -> None:
    gate = threading.Event()
    hubs["huggingface"].faults.append(Fault(path="/resolve/", cut_at=0.5, gate=gate))
    command = [sys.executable, "-m", "cardcage", "pull", f"huggingface:{REPO}", "--config", str(served.config_file)]
    command += ["--stop-on-interrupt"] if stops else []
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment()
    ) as run:
        assert run.stderr is not None
        while "50 %" not in run.stderr.readline() and run.poll() is None:
            pass
        run.send_signal(2)
        said = run.stderr.read()
        assert run.wait(timeout=20) == 130
    states = [pull["status"] for pull in served.request("GET", "/v1/models/pulls").json()["data"]]
    if stops:
        assert states[0] == "cancelled"
        assert "stopped" in said
    else:
        assert states == ["downloading"]
        assert "the server goes on" in said
    gate.set()
    assert served.pull(f"huggingface:{REPO}")[-1]["status"] == "done"


def test_ctrl_c_also_stops_a_pull_whose_source_has_not_answered(served: Served, hubs: dict[str, Hub]) -> None:
    gate = threading.Event()
    hubs["huggingface"].faults.append(Fault(path="/api/models/", times=9, gate=gate))
    command = [sys.executable, "-m", "cardcage", "pull", f"huggingface:{REPO}", "--stop-on-interrupt"]
    with subprocess.Popen(
        [*command, "--config", str(served.config_file)], stderr=subprocess.PIPE, text=True, env=environment()
    ) as run:
        while not hubs["huggingface"].ranges("/api/models/"):
            time.sleep(0.01)
        run.send_signal(2)
        assert run.stderr is not None
        said = run.stderr.read()
        assert (run.wait(timeout=20), "stopped" in said) == (130, True)
    (state,) = served.request("GET", "/v1/models/pulls").json()["data"]
    assert state["status"] == "cancelled"
    gate.set()


def test_a_name_is_never_a_way_to_another_route(served: Served, hubs: dict[str, Hub]) -> None:
    gate = threading.Event()
    hubs["huggingface"].faults.append(Fault(path="/resolve/", cut_at=0.5, gate=gate))
    with served.pulling(f"huggingface:{REPO}") as states:
        pull_id = next(states)["id"]
        for name in (
            f"../pulls/{pull_id}",
            "..",
            ".",
            f"x/../../pulls/{pull_id}",
            f"..%2Fpulls%2F{pull_id}",
            "",
            "a\nb",
        ):
            refused = served.command("rm", name)
            assert (refused.returncode, "is no model's name" in refused.stderr) == (1, True), (name, refused.stderr)
        gate.set()
        assert list(states)[-1]["status"] == "done"
    assert served.command("rm", "../available/talker").returncode == 1
    assert len(json.loads(served.command("list", "--json").stdout)["models"]) == 1


def test_no_name_of_a_repository_speaks_to_the_terminal(served: Served, hubs: dict[str, Hub]) -> None:
    hubs["huggingface"].repositories["Tiny/Evil"] = {"a\x1b]0;x\x07.gguf": GGUF, "b\x1b[31m.rkllm": GGUF}
    for arguments in (["list", "huggingface:Tiny/Evil"], ["pull", "huggingface:Tiny/Evil"]):
        told = served.command(*arguments)
        assert "\\x1b" in told.stdout + told.stderr
        assert "\x1b" not in told.stdout + told.stderr


def test_several_who_change_the_configuration_at_once_all_do(home: Served) -> None:
    folder = home.store / "gguf/cpu/mine-1b"
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text('schema = 1\nname = "mine"\nsize = "1b"\nplatform = "gguf"\nchips = ["cpu"]\n')
    (folder / "m.gguf").write_bytes(b"x")
    before = home.config_file.read_text()
    ids = [f"id{number}" for number in range(6)]
    with ThreadPoolExecutor() as commands:
        for changes in ([("enable", "mine", "--id", name) for name in ids], [("disable", name) for name in ids]):
            ended = list(commands.map(lambda arguments: home.command(*arguments), changes))
            assert [command.returncode for command in ended] == [0] * 6, [command.stderr for command in ended]
            entries = tomllib.loads(home.config_file.read_text()).get("models", [])
            assert sorted(entry["model_id"] for entry in entries) == (ids if changes[0][0] == "enable" else [])
    assert home.config_file.read_text() == before


def test_enable_adds_exactly_one_entry_and_disable_takes_it_away(served: Served) -> None:
    assert served.command("pull", f"huggingface:{REPO}").returncode == 0
    file = served.config_file
    file.chmod(0o640)
    before = file.read_text()
    enabled = served.command("enable", "talker", "--id", "helper", "--instances", "2")
    assert enabled.returncode == 0, enabled.stderr
    after = file.read_text()
    assert [line for line in difflib.ndiff(before.splitlines(), after.splitlines()) if line[0] != " "] == [
        "+ ",
        "+ [[models]]",
        '+ model_id = "helper"',
        f'+ model_path = "{served.store}/gguf/cpu/talker-0.5b-q4_0"',
        "+ instance_count = 2",
    ]
    assert file.stat().st_mode & 0o777 == 0o640
    assert "already" in served.command("enable", "talker", "--id", "helper").stdout
    assert file.read_text() == after
    assert served.command("enable", "talker", "--id", "helper", "--instances", "3").returncode == 0
    assert file.read_text() == after.replace("instance_count = 2", "instance_count = 3")
    removed = served.command("rm", "talker")
    assert (removed.returncode, "cardcage disable helper" in removed.stderr) == (0, True)
    assert served.command("pull", f"huggingface:{REPO}").returncode == 0
    # The name that it was fetched by is known to the server only.
    disabled = served.command("disable", f"{REPO}:Q4_0")
    assert disabled.returncode == 0, disabled.stderr
    assert file.read_text() == before
    refused = served.command("disable", "talker")
    assert (refused.returncode, "enabled are: none" in refused.stderr) == (1, True)
    assert [path.name for path in file.parent.iterdir() if path.name.startswith(".config")] == []
    bad = served.command("enable", "talker", "--id", "white space")
    assert bad.returncode == 2


def test_completion_knows_the_models_of_the_store(home: Served) -> None:
    folder = home.store / "gguf/cpu/mine-1b"
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text('schema = 1\nname = "mine"\nsize = "1b"\nplatform = "gguf"\nchips = ["cpu"]\n')
    (folder / "m.gguf").write_bytes(b"x")
    completed = subprocess.run(
        [Path(sys.executable).with_name("cardcage")],
        env={
            **environment(),
            "CARDCAGE_CONFIG": str(home.config_file),
            "_CARDCAGE_COMPLETE": "complete_bash",
            "COMP_WORDS": "cardcage rm mi",
            "COMP_CWORD": "2",
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert "mine" in completed.stdout, completed.stderr
