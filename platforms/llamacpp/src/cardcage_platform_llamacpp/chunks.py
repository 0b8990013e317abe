"""How many prompt tokens to compute in one step, so that a step takes a bounded time on any machine.

Between two steps is where requests come and go. A step of 512 tokens takes 0.25 s on idle cores and two seconds on busy ones,
and so long would a request that was cancelled keep its slot, and a reader wait for the next word.
"""

from __future__ import annotations

__all__ = ["FEWEST_ROWS", "ChunkPacer"]

UNIT_ROWS = 32
"""A chunk is a multiple of this: the matrix units of CPUs work on 16 rows at once, and each step reads all weights."""

LONGEST_SECONDS = 1.0
"""Of a step of one unit; a model so slow that it takes longer computes less than a unit."""

FEWEST_ROWS = 8
"""Of a chunk; steps of fewer say nothing about those of many."""

FIRST_ROWS = 128
"""Of the first chunk, when nothing was measured yet."""

SHARED_PART = 0.5
"""Of the time of a step, while others generate and wait for their next word."""


class ChunkPacer:
    """Learns from each step how many rows a second the machine computes just now."""

    def __init__(self, *, step_seconds: float, most: int, most_shared: int) -> None:
        """Bound steps.

        Args:
            step_seconds: What a step is to take.
            most: Rows of a chunk at most.
            most_shared: The same while others generate.
        """
        self._step_seconds = step_seconds
        self._most = most
        self._most_shared = min(most_shared, most)
        self._rows_per_second: float | None = None

    def rows(self, *, shared: bool) -> int:
        """Rows of the next chunk; `shared` where others generate."""
        most = self._most_shared if shared else self._most
        if self._rows_per_second is None:
            return min(FIRST_ROWS, most)
        seconds = self._step_seconds * (SHARED_PART if shared else 1.0)
        wanted = int(self._rows_per_second * seconds) // UNIT_ROWS * UNIT_ROWS
        if not wanted:
            wanted = max(min(int(self._rows_per_second * LONGEST_SECONDS), UNIT_ROWS), FEWEST_ROWS)
        return min(wanted, most)

    def measured(self, rows: int, seconds: float) -> None:
        """A step with a chunk, of so many rows in all, took so long."""
        if rows < FEWEST_ROWS:
            return
        rate = rows / max(seconds, 1e-6)
        # Half the new and half the old: one slow step does not halve all that follow, and two in a row nearly do.
        self._rows_per_second = rate if self._rows_per_second is None else (self._rows_per_second + rate) / 2
