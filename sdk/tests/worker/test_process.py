"""What a worker process is made of, and how it starts and ends."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from cardcage_sdk.ipc.frames import FrameBuffer, Hello, encode_frame

_PRINT_MODULES = (
    "import sys, json; import cardcage_sdk.worker.process; "
    "rss = [line for line in open('/proc/self/status') if line.startswith('VmRSS')][0].split()[1]; "
    "print(json.dumps([sorted(sys.modules), int(rss)]))"
)


def test_a_worker_imports_nothing_heavy() -> None:
    run = subprocess.run([sys.executable, "-c", _PRINT_MODULES], capture_output=True, text=True, check=True)
    modules, _ = json.loads(run.stdout)
    heavy = {
        "pydantic",
        "quart",
        "asyncio",
        "jinja2",
        "numpy",
        "ssl",
        "http",
        "secrets",
        "random",
        "statistics",
        "decimal",
    }
    assert not heavy & {name.partition(".")[0] for name in modules}


def test_a_scripted_engine_costs_no_pydantic_either() -> None:
    code = "import sys, json; import cardcage_sdk.testing.faulty; print(json.dumps(sorted(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pydantic", "asyncio", "pytest"} & set(json.loads(run.stdout))


def spawn(theirs: socket.socket) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "cardcage_sdk.worker", "--fd", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_worker_ends_when_its_pipe_does_before_anything_was_said() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, spawn(theirs) as process:
        theirs.close()
        ours.close()
        assert process.wait(timeout=30) in {0, 1}


def test_frames_that_cannot_be_read_are_answered_with_their_name() -> None:
    for data, words in (
        (b"\xff\xff\xff\xff", "over the limit"),
        (encode_frame(Hello(contract=(77, 0), pid=1)), "contract 77.0 there"),
        (b"\x01\x00\x00\x00\x01", "Malformed frame"),
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs, spawn(theirs) as process:
            theirs.close()
            ours.sendall(data)
            buffer, frames = FrameBuffer(), []
            while piece := ours.recv(65536):
                frames += buffer.feed(piece)
            assert [type(frame).__name__ for frame in frames] == ["Hello", "ErrorReply"]
            assert words in frames[1].error.message  # type: ignore[union-attr]
            assert process.wait(timeout=30) in {0, 1}
            assert process.stdout is not None
            assert words in process.stdout.read()


def test_a_worker_is_not_run_from_the_directory_it_is_started_in(tmp_path: Path) -> None:
    (tmp_path / "msgpack.py").write_text("raise SystemExit('a file of the model directory was imported')")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cardcage_sdk.worker", "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
        )
        with process:
            theirs.close()
            assert ours.recv(4), "the worker says hello"
            ours.close()
