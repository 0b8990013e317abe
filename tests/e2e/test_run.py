"""`cardcage run` and its neighbours on scripted models: servers in the background, leases between runs, conversations."""

import itertools
import json
import os
import pty
import select
import signal
import time

import pytest

from cardcage.lock import read_holder

ANSWER = "Paris is the capital of France."

pytestmark = pytest.mark.timeout(180)


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, deployment, *arguments):
        self.master, slave = pty.openpty()
        self.process = deployment.start_command(
            *arguments, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.seen = ""
        self.position = 0

    def expect(self, text, seconds=60):
        """Read until a text comes after the last one that was expected."""
        deadline = time.monotonic() + seconds
        while text not in self.seen[self.position :]:
            readable, _, _ = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))
            assert readable, f"{text!r} did not come: {self.seen[self.position :]!r}"
            try:
                self.seen += os.read(self.master, 4096).decode(errors="replace")
            except OSError:
                assert text in self.seen[self.position :], f"it ended: {self.seen!r}"
        self.position = self.seen.index(text, self.position) + len(text)

    def say(self, text):
        os.write(self.master, text.encode())

    def end(self):
        """Its exit code, once it has ended by itself."""
        return self.process.wait(timeout=60)

    def close(self):
        self.process.kill()
        self.process.wait(timeout=60)
        os.close(self.master)


@pytest.fixture
def on_terminal():
    """Starts commands on terminals of their own; what is left of them ends with the test."""
    opened = []

    def start(deployment, *arguments):
        opened.append(Terminal(deployment, *arguments))
        return opened[-1]

    yield start
    for terminal in opened:
        terminal.close()


def test_run_starts_a_server_loads_answers_unloads_and_leaves_the_server(deploy, scripted):
    deployment = deploy()
    model = scripted(answer=ANSWER)
    result = deployment.command("run", str(model), "What is the capital of France?", "--stats")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{ANSWER}\n"
    assert "starting a server in the background" in result.stderr
    assert "completion tokens: 6" in result.stderr
    holder = read_holder(deployment.data_dir)
    assert holder is not None
    assert deployment.models() == []
    # The second finds it.
    again = deployment.command("run", str(model), "And again?", "--json")
    assert "starting" not in again.stderr
    answer = json.loads(again.stdout)
    assert (answer["text"], answer["finish_reason"], answer["stopped"]) == (ANSWER, "stop", False)
    assert answer["stats"]["completion_tokens"] == 6
    assert read_holder(deployment.data_dir) == holder


def test_two_runs_at_once_start_one_server_and_share_one_model(deploy, scripted):
    deployment = deploy()
    model = scripted(answer=" ".join(["w"] * 30), delay_seconds=0.05)
    runs = [deployment.start_command("run", str(model), "go", stdout=-1, stderr=-1, text=True) for _ in range(2)]
    results = [run.communicate(timeout=90) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], results
    assert [out for out, _ in results] == [" ".join(["w"] * 30) + "\n"] * 2
    assert deployment.models() == []
    assert len(deployment.events("model unloaded")) == len(deployment.events("model loaded"))


def test_a_run_that_ends_leaves_the_model_to_another_run(deploy, scripted, on_terminal):
    deployment = deploy().serve()
    model = scripted(answer=ANSWER)
    terminal = on_terminal(deployment, "run", str(model))
    terminal.expect(">>> ")
    assert deployment.command("run", str(model), "hi").stdout == f"{ANSWER}\n"
    assert deployment.models() == ["talker.scripted"]
    terminal.say("still there?\r")
    terminal.expect(ANSWER)
    terminal.expect(">>> ")
    # The last one out takes with it what a run loaded.
    terminal.say("/exit\r")
    assert terminal.end() == 0
    assert deployment.models() == []


def test_the_run_that_loaded_may_go_first(deploy, scripted, on_terminal):
    deployment = deploy().serve()
    model = scripted(answer=ANSWER)
    first = on_terminal(deployment, "run", str(model))
    first.expect(">>> ")
    second = on_terminal(deployment, "run", str(model))
    second.expect(">>> ")
    first.say("\x04")
    assert first.end() == 0
    second.say("still there?\r")
    second.expect(ANSWER)
    second.expect(">>> ")
    second.say("\x04")
    assert second.end() == 0
    assert deployment.models() == []


def test_a_run_that_is_killed_holds_nothing(deploy, scripted, on_terminal):
    deployment = deploy().serve()
    model = scripted(answer=ANSWER)
    terminal = on_terminal(deployment, "run", str(model))
    terminal.expect(">>> ")
    terminal.process.kill()
    terminal.end()
    assert deployment.models() == ["talker.scripted"]
    assert deployment.command("run", str(model), "hi").stdout == f"{ANSWER}\n"
    assert deployment.models() == []


def test_run_never_unloads_what_was_loaded_by_name(deploy, scripted):
    deployment = deploy().serve()
    model = scripted(answer=ANSWER)
    assert deployment.command("load", str(model), "--id", "mine").returncode == 0
    assert deployment.command("run", "mine", "hi").stdout == f"{ANSWER}\n"
    assert deployment.command("run", str(model), "hi").stdout == f"{ANSWER}\n"
    assert deployment.models() == ["mine"]


def test_load_takes_a_model_over_from_a_run(deploy, scripted, on_terminal):
    deployment = deploy().serve()
    model = scripted(answer=ANSWER)
    terminal = on_terminal(deployment, "run", str(model))
    terminal.expect(">>> ")
    assert "is loaded already" in deployment.command("load", str(model)).stderr
    terminal.say("/exit\r")
    assert terminal.end() == 0
    assert deployment.models() == ["talker.scripted"]


def test_run_leaves_a_model_that_a_request_of_somebody_else_runs_on(deploy, scripted, on_terminal):
    deployment = deploy().serve()
    model = scripted(answer=" ".join(["w"] * 5000), delay_seconds=0.05)
    terminal = on_terminal(deployment, "run", str(model))
    terminal.expect(">>> ")
    body = {"model": "talker.scripted", "messages": [{"role": "user", "content": "x"}], "stream": True}
    with deployment.http() as http, http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        terminal.say("/exit\r")
        assert terminal.end() == 0
        assert deployment.models() == ["talker.scripted"]
        assert any(line.startswith("data: {") for line in itertools.islice(lines, 10))


def test_the_prompt_may_come_by_standard_input(deploy, scripted):
    deployment = deploy().serve()
    model = scripted(echo=True)
    result = deployment.command("run", str(model), stdin="Say this.\n")
    assert (result.returncode, result.stdout) == (0, "Say this.\n")


def test_options_and_system_prompt_are_sent(deploy, scripted):
    deployment = deploy().serve()
    model = scripted(answer="one two three four")
    result = deployment.command("run", str(model), "x", "--max-tokens", "2", "--system", "Be brief.", "--json")
    answer = json.loads(result.stdout)
    assert (answer["text"], answer["finish_reason"]) == ("one two", "length")
    longer = json.loads(deployment.command("run", str(model), "x", "--json").stdout)
    assert answer["stats"]["prompt_tokens"] > longer["stats"]["prompt_tokens"]


def test_load_ps_resize_unload(deploy, scripted):
    deployment = deploy().serve()
    model = scripted(answer=ANSWER)
    loaded = json.loads(deployment.command("load", str(model), "--id", "模型", "--json").stdout)
    assert (loaded["requested_instance_count"], loaded["actual_instance_count"]) == (1, 1)
    table = deployment.command("ps").stdout.splitlines()
    assert table[0].split() == ["ID", "MODEL", "TYPE", "PLATFORM", "STATUS", "INSTANCES", "ENABLE"]
    assert table[1].split() == ["模型", "talker.scripted", "chat", "scripted", "ready", "1/1", "no"]
    assert "loaded already" in deployment.command("load", "模型").stderr
    grown = json.loads(deployment.command("load", "模型", "--instances", "2", "--json").stdout)
    assert (grown["requested_instance_count"], grown["actual_instance_count"]) == (2, 2)
    assert deployment.command("unload", "模型").returncode == 0
    assert deployment.models() == []
    gone = deployment.command("unload", "模型")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.startswith("cardcage: error: ")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "nobody", "hi"], 1, "there is no model 'nobody'"),
        (["load", "nobody"], 1, "there is no model 'nobody'"),
        (["run", "./nothing.gguf", "hi"], 1, "There is no model at"),
        (["load", "MODEL", "--id", "two words"], 2, "white space"),
        (["load", "MODEL", "--id", "x" * 21], 2, "21 columns"),
        (["load", "MODEL", "--option", "novalue"], 2, "NAME=VALUE"),
    ],
)
def test_what_cannot_be_is_one_line(deploy, scripted, arguments, code, words):
    deployment = deploy().serve()
    model = str(scripted())
    result = deployment.command(*(model if word == "MODEL" else word for word in arguments))
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert deployment.models() == []


def test_a_conversation_on_a_terminal(deploy, scripted, on_terminal):
    deployment = deploy().serve()
    rules = {"first": "the first answer", "two\nlines": "lines were joined", "long": " ".join(["w"] * 500)}
    model = scripted(rules=rules, answer="nothing", delay_seconds=0.02)
    terminal = on_terminal(deployment, "run", str(model))
    terminal.expect(">>> ")
    terminal.say("first\r")
    terminal.expect("the first answer")
    terminal.expect(">>> ")
    terminal.say('"""two\r')
    terminal.expect("... ")
    terminal.say('lines"""\r')
    terminal.expect("lines were joined")
    terminal.expect(">>> ")
    terminal.say("/set max_tokens 1\r")
    terminal.expect("max_tokens = 1")
    terminal.expect(">>> ")
    terminal.say("/set max_tokens\r")
    terminal.expect(">>> ")
    terminal.say("/show info\r")
    terminal.expect("platform: scripted")
    terminal.expect(">>> ")
    # Ctrl+C stops the answer, not the conversation.
    terminal.say("long\r")
    terminal.expect("w w w w w")
    terminal.process.send_signal(signal.SIGINT)
    terminal.expect(">>> ")
    assert terminal.seen.count("w w w w w") < 90
    terminal.say("\x04")
    assert terminal.end() == 0
    assert deployment.models() == []
