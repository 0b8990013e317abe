"""Memory of the host, as far as this process may use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardcage_sdk.hardware.files import ROOT, cgroup_directories, read_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MemoryFacts", "read_memory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """What is known of the memory, in bytes; None where unknown.

    Attributes:
        total_bytes: Memory of the machine, or the control group's limit where that is less.
        available_bytes: What can be had without swapping, as the kernel estimates it, or what the limit leaves. Page cache of
            the control group counts as available.
    """

    total_bytes: int | None = None
    available_bytes: int | None = None


def read_memory(root: Path = ROOT) -> MemoryFacts:
    """Read the facts about memory."""
    fields = _keyed(read_text(root / "proc/meminfo"), factor=1024)
    total, available = fields.get("MemTotal"), fields.get("MemAvailable")
    for directory in cgroup_directories(root, "memory"):
        limit = _number(directory, "memory.max", "memory.limit_in_bytes")
        if limit is None or (total is not None and limit >= total):
            continue  # version 1 writes a huge number for no limit
        total = limit
        used = _number(directory, "memory.current", "memory.usage_in_bytes")
        if used is not None:
            statistics = _keyed(read_text(directory / "memory.stat"))
            cache = statistics.get("inactive_file", 0) + statistics.get("active_file", 0)
            left = max(0, limit - max(0, used - cache))
            available = left if available is None else min(available, left)
    return MemoryFacts(total_bytes=total, available_bytes=available)


def _keyed(text: str | None, *, factor: int = 1) -> dict[str, int]:
    """Numbers of a file with a name and a number a line, as `MemTotal:  1000 kB` or `inactive_file 1000`."""
    out = {}
    for line in (text or "").splitlines():
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            out[words[0]] = int(words[1]) * factor
    return out


def _number(directory: Path, *names: str) -> int | None:
    for name in names:
        text = (read_text(directory / name) or "").strip()
        if text.isdigit():
            return int(text)
    return None
