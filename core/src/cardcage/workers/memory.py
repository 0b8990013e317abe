"""Free memory of the host, and evidence that the kernel killed for want of it. Reads procfs and cgroup files only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryReader", "MemorySample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """The host's memory at one moment.

    Attributes:
        free_bytes: What could be had without swapping, within the limit of this server's control group; None if unknown.
        kills: Processes that the kernel has killed for want of memory since it started, as far as can be seen.
    """

    free_bytes: int | None
    kills: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReader:
    """Reads the files; a machine without one of them is a machine without that fact.

    Attributes:
        proc: Where procfs is mounted.
        cgroup: Directory of this process's control group (version 2), or None to find it.
    """

    proc: Path = Path("/proc")
    cgroup: Path | None = None

    def sample(self) -> MemorySample:
        """Read now; takes well under a millisecond."""
        free = _number_after(self.proc / "meminfo", "MemAvailable:")
        free_bytes = None if free is None else free * 1024
        kills = _number_after(self.proc / "vmstat", "oom_kill ") or 0
        group = self.cgroup or self._own_cgroup()
        if group is not None:
            limit, current = _number(group / "memory.max"), _number(group / "memory.current")
            if limit is not None and current is not None:
                # Page cache counts as used by the group but is given up under pressure.
                cached = _number_after(group / "memory.stat", "file ") or 0
                room = max(0, limit - current + cached)
                free_bytes = room if free_bytes is None else min(free_bytes, room)
            kills += _number_after(group / "memory.events", "oom_kill ") or 0
        return MemorySample(free_bytes=free_bytes, kills=kills)

    def _own_cgroup(self) -> Path | None:
        for line in _read(self.proc / "self" / "cgroup").splitlines():
            if line.startswith("0::"):
                return Path("/sys/fs/cgroup") / line[3:].lstrip("/")
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _number_after(path: Path, key: str) -> int | None:
    """The number that follows `key` at the start of a line, as in `MemAvailable:  123 kB`."""
    for line in _read(path).splitlines():
        if line.startswith(key):
            words = line[len(key) :].split()
            if words and words[0].isdecimal():
                return int(words[0])
    return None
