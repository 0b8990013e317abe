"""Paired comparisons on a machine whose speed drifts: interleave, take ratios pair by pair, give the median and its interval."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median with a distribution-free confidence interval from order statistics.

    Attributes:
        coverage: The interval's true confidence, at least what was asked for where enough pairs exist.
    """

    median: float
    low: float
    high: float
    coverage: float
    pairs: int

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}] ({self.coverage:.1%} interval, {self.pairs} pairs)"


def median_interval(ratios: Sequence[float], confidence: float = 0.95) -> Interval:
    """The median and the narrowest symmetric pair of order statistics that covers it with `confidence`.

    The number of values below the true median is binomial(n, 1/2), whatever the distribution of the ratios is.

    Raises:
        ValueError: Too few values for the confidence asked.
    """
    values = sorted(ratios)
    count = len(values)
    tail, rank = 0.0, 0
    while rank < count // 2:
        step = comb(count, rank) / 2**count
        if 2 * (tail + step) > 1 - confidence:
            break
        tail += step
        rank += 1
    if rank == 0:
        raise ValueError(f"{count} pairs are too few for an interval of {confidence:.0%}")
    return Interval(
        median=statistics.median(values),
        low=values[rank - 1],
        high=values[count - rank],
        coverage=1 - 2 * tail,
        pairs=count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measured call: what it returned, wall seconds, and CPU seconds that strangers used meanwhile."""

    value: float
    seconds: float
    foreign_cpu_seconds: float


def process_tree(root: int) -> list[int]:
    """A process and all its living descendants."""
    found = [root]
    for pid in found:
        for task in _listdir(f"/proc/{pid}/task"):
            found.extend(int(child) for child in _read(f"/proc/{pid}/task/{task}/children").split())
    return found


def own_cpu_seconds(roots: Sequence[int]) -> float:
    """CPU seconds of these processes and their living descendants so far."""
    total = 0
    for pid in {pid for root in roots for pid in process_tree(root)}:
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        if fields:
            total += int(fields[11]) + int(fields[12])
    return total / CLOCK_TICKS


def busy_cpu_seconds() -> float:
    """CPU seconds that all cores of the machine were busy so far, stolen time included."""
    fields = [int(field) for field in _read("/proc/stat").splitlines()[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / CLOCK_TICKS


def measure(call: Callable[[], float], *, own: Sequence[int]) -> Measured:
    """Run `call` and watch what others do on the machine meanwhile; `own` are the roots of the processes that take part."""
    busy, mine, start = busy_cpu_seconds(), own_cpu_seconds(own), time.perf_counter()
    value = call()
    seconds = time.perf_counter() - start
    foreign = (busy_cpu_seconds() - busy) - (own_cpu_seconds(own) - mine)
    return Measured(value=value, seconds=seconds, foreign_cpu_seconds=max(0.0, foreign))


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return ""  # the process has ended since it was listed


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, ProcessLookupError):
        return []
