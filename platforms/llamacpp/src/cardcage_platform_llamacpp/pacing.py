"""How many threads to use right now, when other processes want the cores too.

llama.cpp's threads meet at a barrier some 500 times a token and spin there. With the cores to themselves that is by far the
fastest (2 threads on 2 cores: 180 tokens per second; 27 to 75 where the threads sleep instead). With one busy process beside
them, a thread that is not running keeps all others spinning, and the same set-up falls below 20, while one thread alone goes
on at 95. So the pacer watches how long our threads were ready but not running, gives a core away when that is much, and takes
it back when cores lie idle.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CpuMeter", "Meter", "ThreadPacer"]

WINDOW_SECONDS = 0.2
"""Between two looks. Long enough for a stable reading, short enough that a reader hardly notices the slow part."""

CROWDED = 0.12
"""Part of the time that a thread may be kept waiting before a core is given away."""

SPARE_CORES = 0.85
"""Idle cores that are enough to take one back."""

FIRST_PATIENCE_SECONDS, MOST_PATIENCE_SECONDS = 1.0, 30.0
"""How long cores must have been idle before one is taken back: doubled each time that it turns out to be too early."""


class Meter(Protocol):
    """What the pacer looks at."""

    def waited_seconds(self) -> float | None:
        """Seconds that threads of this process have been ready but not running, all together, since any fixed time."""

    def idle_seconds(self) -> float | None:
        """Seconds that all cores together were idle, since any fixed time."""


class CpuMeter:
    """Reads the Linux kernel's figures; None where it does not give them."""

    def waited_seconds(self) -> float | None:
        """Sum of the run delays of this process's threads."""
        total = 0
        try:
            for task in os.listdir("/proc/self/task"):
                with open(f"/proc/self/task/{task}/schedstat", encoding="ascii") as file:
                    total += int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            return None
        return total / 1e9

    def idle_seconds(self) -> float | None:
        """Idle time of all cores of the machine."""
        try:
            with open("/proc/stat", encoding="ascii") as file:
                fields = file.readline().split()
            return (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None


class ThreadPacer:
    """Decides the number of threads between two steps.

    Attributes:
        threads: To be used now.
    """

    def __init__(self, most: int, meter: Meter, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._meter = meter
        self._clock = clock
        self._patience = FIRST_PATIENCE_SECONDS
        self._quiet_seconds = 0.0
        self._raised_at: float | None = None
        self.threads = most
        self.resume()

    def resume(self) -> None:
        """Start a new window; to be called when work begins after a pause, in which nothing could be seen."""
        self._since = self._clock()
        self._waited = self._meter.waited_seconds()
        self._idle = self._meter.idle_seconds()

    def limit(self, most: int) -> None:
        """Core shares the cores out anew."""
        self._most = most
        self.threads = most
        self._patience = FIRST_PATIENCE_SECONDS
        self.resume()

    def look(self) -> bool:
        """Called between steps; True where `threads` changed."""
        now = self._clock()
        elapsed = now - self._since
        if elapsed < WINDOW_SECONDS or self._most == 1:
            return False
        waited, idle = self._waited, self._idle
        self.resume()
        if waited is None or idle is None or self._waited is None or self._idle is None:
            return False
        if (self._waited - waited) / (elapsed * self.threads) > CROWDED and self.threads > 1:
            self._give(now)
            return True
        if self.threads < self._most and (self._idle - idle) / elapsed >= SPARE_CORES:
            self._quiet_seconds += elapsed
            if self._quiet_seconds >= self._patience:
                self._quiet_seconds = 0.0
                self._raised_at = now
                self.threads += 1
                return True
        else:
            self._quiet_seconds = 0.0
        return False

    def _give(self, now: float) -> None:
        too_early = self._raised_at is not None and now - self._raised_at < MOST_PATIENCE_SECONDS
        self._patience = min(self._patience * 2, MOST_PATIENCE_SECONDS) if too_early else FIRST_PATIENCE_SECONDS
        self._quiet_seconds = 0.0
        self.threads -= 1
