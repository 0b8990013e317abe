"""The CPU: how much of it this process may use, and what it can do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardcage_sdk.hardware.files import ROOT, cgroup_directories, read_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CpuFacts", "read_cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuFacts:
    """What is known of the CPU.

    Attributes:
        usable: Logical CPUs worth of time that this process may use: those that it may be scheduled on, or fewer where a
            control group limits its time. At least 1.
        allowed: Logical CPUs that it may be scheduled on.
        model: Name for people; empty where unknown.
        flags: Instruction-set extensions as the kernel names them, of all CPUs in common (`avx2`, `asimddp`, ...).
    """

    usable: int
    allowed: int
    model: str = ""
    flags: frozenset[str] = frozenset()


def read_cpu(root: Path = ROOT) -> CpuFacts:
    """Read the facts about the CPU."""
    allowed = _allowed(root)
    limit = _time_limit(root)
    usable = allowed if limit is None else min(allowed, max(1, math.floor(limit)))
    model, flags = _describe(root)
    return CpuFacts(usable=usable, allowed=allowed, model=model, flags=flags)


def _allowed(root: Path) -> int:
    for line in (read_text(root / "proc/self/status") or "").splitlines():
        key, _, value = line.partition(":")
        if key == "Cpus_allowed_list":
            return max(1, _count(value.strip()))
    online = read_text(root / "sys/devices/system/cpu/online")
    return max(1, _count(online.strip())) if online else 1


def _count(cpu_list: str) -> int:
    """Number of CPUs in a list such as `0-3,8`."""
    count = 0
    for part in cpu_list.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            count += int(last) - int(first) + 1 if last.isdigit() else 1
    return count


def _time_limit(root: Path) -> float | None:
    """CPUs worth of time that the control groups allow, or None for no limit."""
    limits = []
    for directory in cgroup_directories(root, "cpu"):
        quota, _, period = (read_text(directory / "cpu.max") or "").strip().partition(" ")
        if not quota:
            quota = (read_text(directory / "cpu.cfs_quota_us") or "").strip()
            period = (read_text(directory / "cpu.cfs_period_us") or "").strip()
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def _describe(root: Path) -> tuple[str, frozenset[str]]:
    model = ""
    flags: frozenset[str] | None = None
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key in {"model name", "Model", "Hardware"} and not model:
            model = value
        elif key in {"flags", "Features"}:
            these = frozenset(value.split())
            flags = these if flags is None else flags & these
    return model, flags or frozenset()
