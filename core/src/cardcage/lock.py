"""What only one server can have: the data directory (a lock that the kernel releases with the process) and the port."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from cardcage_sdk.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DataDirInUseError", "DataDirLock", "LockHolder", "PortInUseError", "read_holder"]

LOCK_FILE = "server.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockHolder:
    """Who holds the lock, as it wrote itself; `url` is empty until it serves (or where someone else's hypercorn does)."""

    pid: int
    parent_pid: int
    url: str = ""


class DataDirInUseError(ConfigError):
    """Another server uses this data directory."""


class PortInUseError(ConfigError):
    """The address is taken by another program."""


class DataDirLock:
    """The held lock. The descriptor is not inherited by workers, so that it ends with this process."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, data_dir: Path) -> DataDirLock:
        """Take the lock, and create the directory (0700) if it is missing.

        Raises:
            DataDirInUseError: Another server holds it; the message names its process, or says that a hypercorn with several
                workers is the cause.
            ConfigError: The directory cannot be created or written.
        """
        path = data_dir / LOCK_FILE
        try:
            data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(f"Data directory '{data_dir}' cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _parse(descriptor)
            os.close(descriptor)
            raise DataDirInUseError(_refusal(data_dir, holder)) from error
        lock = cls(path, descriptor)
        lock.announce("")
        return lock

    def announce(self, url: str) -> None:
        """Write who serves here and where, for the command line to find."""
        if self._descriptor is None:
            return
        holder = LockHolder(pid=os.getpid(), parent_pid=os.getppid(), url=url)
        data = json.dumps(asdict(holder)).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)

    def release(self) -> None:
        """Give the lock back; the file stays, since removing it would race with the next server. Idempotent."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def read_holder(data_dir: Path) -> LockHolder | None:
    """The server that holds the lock now, or None.

    A holder that has not written itself yet has process id 0.
    """
    try:
        descriptor = os.open(data_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _parse(descriptor) or LockHolder(pid=0, parent_pid=0)
    else:
        return None
    finally:
        os.close(descriptor)


def _parse(descriptor: int) -> LockHolder | None:
    try:
        return LockHolder(**json.loads(os.pread(descriptor, 4096, 0)))
    except (ValueError, TypeError):
        return None  # empty or half written: the holder is just starting


def _refusal(data_dir: Path, holder: LockHolder | None) -> str:
    if holder is not None and holder.parent_pid == os.getppid() and holder.parent_pid > 1 and not holder.url:
        return (
            f"Data directory '{data_dir}' is used by process {holder.pid} of the same hypercorn: serve with exactly one worker "
            "(--workers 1), because queues, leases and engines belong to one server process"
        )
    who = f"process {holder.pid}" if holder is not None else "another process"
    where = f" at {holder.url}" if holder is not None and holder.url else ""
    return f"Another server ({who}{where}) uses the data directory '{data_dir}'; stop it or name another one"
