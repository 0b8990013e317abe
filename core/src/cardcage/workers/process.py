"""One worker as an operating-system process: started by exec, in a session of its own, reaped, never left behind."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardcage.workers.logs import LogPump

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardcage.workers.settings import SupervisionSettings

__all__ = ["ExitStatus", "WorkerProcess", "worker_command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitStatus:
    """How a process ended: exactly one of the two is set.

    Attributes:
        signal: Name of the signal, as `SIGSEGV`.
        exit_code: What it returned.
    """

    signal: str | None = None
    exit_code: int | None = None

    @classmethod
    def of(cls, return_code: int) -> ExitStatus:
        """From `Popen.returncode`, which is negative for a signal."""
        if return_code >= 0:
            return cls(exit_code=return_code)
        try:
            return cls(signal=signal.Signals(-return_code).name)
        except ValueError:
            return cls(signal=f"SIG{-return_code}")

    def __str__(self) -> str:
        return f"by {self.signal}" if self.signal else f"with exit status {self.exit_code}"


def worker_command(python: str, fd: int) -> tuple[str, ...]:
    """The command of a worker process whose end of the pipe is descriptor `fd`.

    `-P` keeps the directory that the server happens to run in out of the worker's import path.
    """
    return (python, "-P", "-m", "cardcage_sdk.worker", "--fd", str(fd))


class WorkerProcess:
    """A child process in the hands of the event loop.

    Constructed, used and ended in the event loop's thread. That matters: the worker asks the kernel to be killed when its
    parent goes, and the kernel takes for the parent the *thread* that started it.

    Attributes:
        pid: Its process id, which is also the id of its session and process group.
        ended: Resolves to the exit status when the process has ended and was reaped; the rest of its group is killed by then.
        logs: Reads what it prints.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        pipe_fd: int,
        environment: Mapping[str, str],
        settings: SupervisionSettings,
        model: str,
        worker: int,
    ) -> None:
        """Start it.

        Args:
            command: Program and arguments.
            pipe_fd: Descriptor that it inherits besides 0, 1 and 2; the caller still owns its own copy.
            environment: Variables over the server's own.
            settings: Bounds of the log.
            model: Model id, for the log.
            worker: Number of the worker, for the log.

        Raises:
            OSError: The program cannot be started.
        """
        self._loop = asyncio.get_running_loop()
        read_fd, write_fd = os.pipe()
        try:
            # Popen returns when exec has succeeded: a few milliseconds. From a helper thread it would not block the loop, but
            # see the class docstring.
            self._popen = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=write_fd,
                stderr=write_fd,
                pass_fds=(pipe_fd,),
                start_new_session=True,
                # Unbuffered, or the last words before a crash are lost; the fault handler prints where a signal struck.
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **environment},
            )
        except OSError:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self.pid = self._popen.pid
        # A dump of a model's gigabytes would keep the pipe open, and its clients waiting, until it is written. 1 rather than 0:
        # where dumps go to a program, the kernel asks it for 0 bytes but not for 1. Only the soft limit: who needs a dump can.
        hard = resource.prlimit(self.pid, resource.RLIMIT_CORE)[1]
        soft = 1 if hard == resource.RLIM_INFINITY else min(1, hard)
        resource.prlimit(self.pid, resource.RLIMIT_CORE, (soft, hard))
        self.ended: asyncio.Future[ExitStatus] = self._loop.create_future()
        self.logs = LogPump(
            read_fd,
            model=model,
            worker=worker,
            max_lines=settings.log_tail_lines,
            max_line_bytes=settings.log_line_bytes,
            lines_per_second=settings.log_lines_per_second,
        )
        self._watch()

    @property
    def is_alive(self) -> bool:
        """It was not reaped yet."""
        return not self.ended.done()

    def kill(self) -> None:
        """Kill it and everything in its process group, now."""
        if self.is_alive:
            self._kill_group()

    def _kill_group(self) -> None:
        # Called only before the process is reaped: until then nobody else can have its id.
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            # Between fork and setsid there is no such group yet; Popen has returned, so this is only a zombie's.
            self._popen.kill()

    def _watch(self) -> None:
        """Have `_reap` called when the process has ended."""
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            # Kernels before 5.3, which some boards' vendors still ship, have no pidfd: a thread waits instead.
            threading.Thread(target=self._wait_in_thread, name=f"reaper-{self.pid}", daemon=True).start()
        else:
            self._loop.add_reader(self._pidfd, self._pidfd_readable)

    def _pidfd_readable(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._reap()

    def _wait_in_thread(self) -> None:
        # WNOWAIT leaves the zombie for the loop's thread to reap, so that the group can be killed while the id is taken.
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        try:
            self._loop.call_soon_threadsafe(self._reap)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
            self._popen.wait()

    def _reap(self) -> None:
        self._kill_group()
        return_code = self._popen.wait()
        if not self.ended.done():
            self.ended.set_result(ExitStatus.of(return_code))
