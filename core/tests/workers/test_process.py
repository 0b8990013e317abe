"""Real child processes: exit, reaping, groups."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from cardcage.workers.process import ExitStatus, WorkerProcess
from cardcage.workers.settings import SupervisionSettings


def start(*command: str, **environment: str) -> WorkerProcess:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return WorkerProcess(
            command,
            pipe_fd=theirs.fileno(),
            environment=environment,
            settings=SupervisionSettings(),
            model="m",
            worker=1,
        )


async def end_of(process: WorkerProcess) -> ExitStatus:
    status = await process.ended
    await process.logs.wait_ended(timeout_seconds=30)
    process.logs.close()
    return status


def state_of(pid: int) -> str | None:
    """Letter of a process's state, or None where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def shell(script: str, **environment: str) -> WorkerProcess:
    return start("/bin/sh", "-c", script, **environment)


@pytest.fixture(params=["pidfd", "thread"])
def reaping(request, monkeypatch):
    """Both ways to learn of an end: kernels before 5.3 have no pidfd."""
    if request.param == "thread":
        monkeypatch.delattr(os, "pidfd_open")


@pytest.mark.usefixtures("reaping")
@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit 0", ExitStatus(exit_code=0)),
        ("exit 7", ExitStatus(exit_code=7)),
        ("kill -SEGV $$", ExitStatus(signal="SIGSEGV")),
        ("kill -KILL $$", ExitStatus(signal="SIGKILL")),
    ],
)
async def test_how_it_ended_is_known_and_no_zombie_stays(script, status):
    process = shell(script)
    assert await end_of(process) == status
    assert state_of(process.pid) is None
    assert not process.is_alive


@pytest.mark.usefixtures("reaping")
async def test_its_group_goes_with_it():
    process = shell("sleep 3600 & echo $!; exec sleep 0.01")
    await end_of(process)
    grandchild = int(process.logs.tail)
    # Not our child, so not ours to reap: gone, or a zombie of whoever adopted it.
    while state_of(grandchild) not in {None, "Z"}:  # noqa: ASYNC110 - the kernel sets no event here
        await asyncio.sleep(0.002)


async def test_kill_ends_the_whole_group_at_once():
    process = shell("sleep 3600 & wait")
    process.kill()
    assert await end_of(process) == ExitStatus(signal="SIGKILL")
    process.kill()


async def test_it_is_a_session_of_its_own_with_both_outputs_and_no_input():
    process = shell(
        "cat; echo out; echo err >&2; echo $SPECIAL; ps -o sid= -p $$ || cut -d' ' -f6 /proc/$$/stat", SPECIAL="set"
    )
    await end_of(process)
    lines = process.logs.tail.split("\n")
    assert lines[:3] == ["out", "err", "set"]
    assert int(lines[3]) == process.pid


async def test_a_program_that_is_not_there_leaves_nothing_open():
    before = open_descriptors()
    with pytest.raises(OSError, match="No such file"):
        start("/no/such/program")
    assert open_descriptors() == before


async def test_only_the_pipe_is_inherited():
    extra = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(extra, True)
    try:
        process = start(sys.executable, "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))")
        await end_of(process)
    finally:
        os.close(extra)
    # 0, 1, 2, the pipe, and the directory that is being listed.
    assert len(process.logs.tail.split(",")) == 5
