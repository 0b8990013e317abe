"""`cardcage stop`: a server that a command left running is ended as SIGTERM ends it."""

import json

import pytest

pytestmark = pytest.mark.timeout(120)


def test_stop_ends_the_server_and_then_there_is_none(deploy):
    deployment = deploy().serve()
    pid = deployment.holder()["pid"]
    stopped = deployment.command("stop", "--json")
    assert (stopped.returncode, json.loads(stopped.stdout)) == (0, {"stopped": True, "pid": pid, "url": deployment.url})
    assert deployment.process.wait(timeout=5) == 0
    again = deployment.command("stop")
    assert again.returncode == 3
    assert again.stderr == f"cardcage: error: no server uses the data directory '{deployment.data_dir}'\n"


def test_stop_ends_one_that_run_left_in_the_background(deploy, scripted):
    model = scripted(answer="Hello.")
    deployment = deploy()
    assert deployment.command("run", str(model), "hi").returncode == 0
    stopped = deployment.command("stop")
    assert stopped.returncode == 0, stopped.stderr
    assert "has ended" in stopped.stderr
    assert deployment.command("ps").returncode == 3
