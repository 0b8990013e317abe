"""Free memory of the host, and evidence that the kernel killed for want of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cardcage_sdk.hardware.files import ROOT, cgroup_directories, read_text
from cardcage_sdk.hardware.memory import read_memory

__all__ = ["MemoryReader", "MemorySample"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """The host's memory at one moment.

    Attributes:
        free_bytes: What could be had without swapping, within the limits of this server's control groups; None if unknown.
        kills: Processes that the kernel has killed for want of memory since it started, as far as can be seen.
    """

    free_bytes: int | None
    kills: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReader:
    """Reads procfs and control groups; a machine without one of the files is a machine without that fact.

    Attributes:
        root: Where the file system's root is.
    """

    root: Path = ROOT

    def sample(self) -> MemorySample:
        """Read now; takes well under a millisecond."""
        kills = _kills(self.root / "proc/vmstat")
        for directory in cgroup_directories(self.root, "memory"):
            kills += _kills(directory / "memory.events")
        return MemorySample(free_bytes=read_memory(self.root).available_bytes, kills=kills)


def _kills(path: Path) -> int:
    for line in (read_text(path) or "").splitlines():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.strip().isdecimal():
            return int(count)
    return 0
