"""Which texts are computed together: by a budget of padded tokens, of like length, fair among requests. Pure.

Batching by count wastes most of the work: texts of mixed lengths, 32 at a time as they come, run at a sixth of the speed
that they have sorted by length under a budget of padded tokens (bench/embeddings.py). Fairness: each batch starts from the
next request in turn, so a request with one text waits for one batch however long the other requests are; the rest of a
batch is filled by length alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Batcher", "Item", "padded_length"]

RUN_OVERHEAD_TOKENS = 12
"""What one run costs beyond its tokens, in tokens: a text may waste about as much padding to save a run of its own."""


@dataclass(slots=True, kw_only=True, eq=False)
class Item:
    """One text of a request, as tokens.

    Attributes:
        index: Its place among the request's inputs.
        ids: int32, shape (length,).
        types: uint8, the same shape, or None where all are 0.
        number: Order of arrival.
    """

    request_id: str
    index: int
    ids: npt.NDArray[np.int32]
    types: npt.NDArray[np.uint8] | None = None
    number: int = field(default=0)

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.ids)


def padded_length(length: int, allowed: Sequence[int]) -> int:
    """The length that a text is padded to: the next of `allowed` (ascending) where that is not empty."""
    if not allowed:
        return length
    place = bisect_left(allowed, length)
    return allowed[place] if place < len(allowed) else length


class Batcher:
    """Tokenised texts that wait, of all requests.

    Args:
        budget_tokens: Rows times padded length of one batch; a single text may be longer.
        max_rows: Rows of one batch at most; 1 computes every text alone.
        lengths: Padded lengths that may occur, ascending; empty allows any.
    """

    def __init__(self, *, budget_tokens: int, max_rows: int | None = None, lengths: Sequence[int] = ()) -> None:
        self._budget = budget_tokens
        self._max_rows = max_rows
        self._lengths = tuple(sorted(lengths))
        self._sorted: list[tuple[int, int, Item]] = []
        self._by_request: dict[str, deque[Item]] = {}
        self._turn: deque[str] = deque()
        self._count = 0

    def __len__(self) -> int:
        """Texts that wait."""
        return len(self._sorted)

    def waiting(self, request_id: str) -> int:
        """Texts of one request that wait."""
        return len(self._by_request.get(request_id, ()))

    def put(self, item: Item) -> None:
        """Let a text wait."""
        self._count += 1
        item.number = self._count
        insort(self._sorted, (item.length, item.number, item))
        if item.request_id not in self._by_request:
            self._by_request[item.request_id] = deque()
            self._turn.append(item.request_id)
        self._by_request[item.request_id].append(item)

    def drop(self, request_id: str) -> None:
        """Forget all texts of a request."""
        if self._by_request.pop(request_id, None) is not None:
            self._turn.remove(request_id)
            self._sorted = [entry for entry in self._sorted if entry[2].request_id != request_id]

    def take(self) -> list[Item]:
        """The next batch, at most one text over the budget; empty when nothing waits.

        The first text is the oldest of the request whose turn it is. Neighbours by length join, the one that wastes
        least first, while the padding that a text causes costs less than a run of its own would.
        """
        if not self._sorted:
            return []
        anchor = self._by_request[self._turn[0]][0]
        self._turn.rotate(-1)
        place = bisect_left(self._sorted, (anchor.length, anchor.number))
        low = high = place  # the batch is self._sorted[low : high + 1]
        width = padded_length(anchor.length, self._lengths)
        while self._max_rows is None or high - low + 1 < self._max_rows:
            rows = high - low + 2
            best: tuple[int, int, int] | None = None  # waste, new width, -1 for shorter or 1 for longer
            if low > 0:
                length = self._sorted[low - 1][0]
                waste = width - length
                if waste <= RUN_OVERHEAD_TOKENS + length // 4 and rows * width <= self._budget:
                    best = (waste, width, -1)
            if high + 1 < len(self._sorted):
                length = self._sorted[high + 1][0]
                wider = padded_length(length, self._lengths)
                waste = (rows - 1) * (wider - width) + wider - length
                if (
                    waste <= RUN_OVERHEAD_TOKENS + length // 4
                    and rows * wider <= self._budget
                    and (best is None or waste < best[0])
                ):
                    best = (waste, wider, 1)
            if best is None:
                break
            width = best[1]
            if best[2] < 0:
                low -= 1
            else:
                high += 1
        batch = [entry[2] for entry in self._sorted[low : high + 1]]
        del self._sorted[low : high + 1]
        taken = {id(item) for item in batch}
        for request_id in {item.request_id for item in batch}:
            queue = self._by_request[request_id]
            if len(queue) == 1 or len(batch) == 1:
                queue.popleft()
            else:
                queue = self._by_request[request_id] = deque(item for item in queue if id(item) not in taken)
            if not queue:
                del self._by_request[request_id]
                self._turn.remove(request_id)
        return batch
