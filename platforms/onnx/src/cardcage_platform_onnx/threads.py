"""How many CPU threads a model may keep busy. Standard library only."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["choose_threads", "physical_cores"]


def physical_cores(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Cores that this process may run on, with the hardware threads of one core counted once."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        try:
            cores.add((root / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text(encoding="ascii").strip())
        except OSError:
            cores.add(str(cpu))  # a kernel or system that does not tell: each counts
    return max(1, len(cores))


def choose_threads(*, wanted: int | None, share: int | None) -> int:
    """Threads of one model.

    Args:
        wanted: What model or load asks for at most.
        share: What core gives this worker; None where it does not say. Then all cores but one: with another process busy, a
            thread on every core was no faster than one fewer, and slowed that process.
    """
    threads = share if share is not None else max(1, physical_cores() - 1)
    return max(1, threads if wanted is None else min(wanted, threads))
