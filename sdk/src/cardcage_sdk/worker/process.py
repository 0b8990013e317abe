"""Start and end of the worker process."""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import signal
import socket
import sys

from cardcage_sdk.worker.loop import WorkerLoop

__all__ = ["die_with_parent", "main"]

_PR_SET_PDEATHSIG = 1
_IOLBF = 1


def main(argv: list[str] | None = None) -> int:
    """Run a worker; does not return where it ends as it should.

    Ends with `os._exit` after flushing: destructors of vendor libraries that run after `close` crash more often than they help.
    """
    parser = argparse.ArgumentParser(prog="python -m cardcage_sdk.worker", description="Started by the server only.")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket to the server")
    fd: int = parser.parse_args(argv).fd
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    die_with_parent()
    _flush_lines()
    os.set_inheritable(fd, False)  # a grandchild that kept it would keep the pipe from ending
    code = WorkerLoop(socket.socket(fileno=fd)).run()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code)


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends.

    It reaches even a process whose native code holds the GIL. For engines that start children of their own: call it in the
    child (`preexec_fn`), for nothing else reaches grandchildren.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _flush_lines() -> None:
    """Write what Python and C code print line by line: a crash would take a full buffer's worth of explanation with it."""
    if sys.stdout is not None:
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper in a process of our own
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _IOLBF, 0)
