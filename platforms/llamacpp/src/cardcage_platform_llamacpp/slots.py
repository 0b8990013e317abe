"""Which slot a new sequence gets, and what of another's work it can start from. Decisions only: no llama.cpp here.

A slot is one sequence id of the context with a key-value stream of its own. What a sequence computed stays in its slot after
it ended, and is good for any later prompt that begins the same way. Two facts of llama.cpp decide (measured):

- A step is fast when the ids of its rows are consecutive; with gaps it is cut into several passes, twice as slow.
- A stream can be copied to another whole, then cut. The copy costs less than computing some tens of tokens.

Several requests that arrive at once with one long common beginning are served by letting the others wait until the first has
computed it, then copying.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Tokens = npt.NDArray[np.int32]

__all__ = ["Occupant", "Placement", "Slot", "SlotTable", "common_prefix"]

MIN_COPY_GAIN = 32
"""Tokens that a copy must save over what the slot holds already; more for long contexts, whose copy costs more."""

MIN_WAIT_GAIN = 48
"""Tokens that waiting for another's prefill must save over what is computed now."""

_EMPTY: Tokens = np.zeros(0, dtype=np.int32)


def common_prefix(left: Tokens, right: Tokens) -> int:
    """Length of the common beginning of two token arrays."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


@dataclass(slots=True, eq=False)
class Occupant:
    """A sequence as far as slots care.

    Attributes:
        tokens: Prompt and answer so far, in a buffer that never moves.
        length: How many of `tokens` are there.
        computed: How many of them the slot's stream holds.
    """

    tokens: Tokens
    length: int
    computed: int = 0


@dataclass(slots=True, eq=False)
class Slot:
    """One stream; `left` is what remains in it of the last occupant."""

    index: int
    occupant: Occupant | None = None
    left: Tokens = field(default_factory=lambda: _EMPTY)
    last_used: int = 0

    @property
    def held(self) -> Tokens:
        """Tokens whose state the stream holds."""
        if self.occupant is not None:
            return self.occupant.tokens[: self.occupant.computed]
        return self.left


@dataclass(frozen=True, slots=True)
class Placement:
    """Put the sequence into `slot`, after copying all of `source` there if that is set, and keep `keep` tokens."""

    slot: Slot
    keep: int
    source: Slot | None = None


class SlotTable:
    """All slots of a context."""

    def __init__(self, count: int, *, can_reuse: bool, context_tokens: int = 0) -> None:
        """Start empty.

        Args:
            count: Number of slots.
            can_reuse: False for models whose state cannot be cut at a token.
            context_tokens: Length of each slot's stream.
        """
        self.slots = [Slot(index) for index in range(count)]
        self._can_reuse = can_reuse
        self._min_copy_gain = max(MIN_COPY_GAIN, context_tokens // 256)
        self._clock = 0

    @property
    def occupied(self) -> list[Slot]:
        """Slots in use, by index."""
        return [slot for slot in self.slots if slot.occupant is not None]

    @property
    def has_room(self) -> bool:
        """Whether any slot is free."""
        return any(slot.occupant is None for slot in self.slots)

    def place(self, tokens: Tokens, *, reuse: bool) -> Placement | None:
        """Choose a slot for a sequence; None means wait, for a free slot or for another's prefill.

        At least the last token is never kept: its logits are needed.
        """
        candidates = self._candidates()
        if not candidates:
            return None
        limit = len(tokens) - 1
        if not (reuse and self._can_reuse) or limit < 1:
            return Placement(min(candidates, key=_age), keep=0)
        prefixes = {slot.index: min(common_prefix(slot.held, tokens), limit) for slot in self.slots}
        best = max(self.slots, key=lambda slot: prefixes[slot.index])
        if self._promised(tokens, limit) - prefixes[best.index] >= MIN_WAIT_GAIN:
            return None
        home = max(candidates, key=lambda slot: prefixes[slot.index])
        # Going on where a conversation stopped loses nothing; anything else should spoil the oldest slot.
        if prefixes[home.index] * 2 < len(home.held):
            home = min(candidates, key=_age)
        keep = prefixes[home.index]
        if best is not home and prefixes[best.index] - keep >= self._min_copy_gain:
            return Placement(home, keep=prefixes[best.index], source=best)
        return Placement(home, keep=keep)

    def _candidates(self) -> list[Slot]:
        """Free slots that leave the ids in use consecutive: holes first, then the neighbours."""
        free = [slot for slot in self.slots if slot.occupant is None]
        used = [slot.index for slot in self.occupied]
        if not used:
            return free
        low, high = used[0], used[-1]
        holes = [slot for slot in free if low < slot.index < high]
        return holes or [slot for slot in free if slot.index in {low - 1, high + 1}]

    def _promised(self, tokens: Tokens, limit: int) -> int:
        """The longest beginning that a running prefill is about to compute."""
        return max(
            (
                min(common_prefix(slot.occupant.tokens[: slot.occupant.length], tokens), limit)
                for slot in self.slots
                if slot.occupant is not None and slot.occupant.computed < slot.occupant.length - 1
            ),
            default=0,
        )

    def occupy(self, placement: Placement, occupant: Occupant) -> None:
        """Note that a placement was carried out."""
        occupant.computed = placement.keep
        placement.slot.occupant = occupant
        placement.slot.left = _EMPTY

    def release(self, slot: Slot) -> None:
        """The occupant leaves; what it computed stays."""
        if slot.occupant is None:
            return
        self._clock += 1
        slot.last_used = self._clock
        slot.left = slot.occupant.tokens[: slot.occupant.computed].copy()
        slot.occupant = None

    def forget(self) -> None:
        """The context was cleared: nothing is held any more."""
        for slot in self.slots:
            slot.occupant = None
            slot.left = _EMPTY


def _age(slot: Slot) -> tuple[bool, int, int]:
    """Empty slots first, then the longest unused, then the lowest."""
    return (len(slot.held) > 0, slot.last_used, slot.index)
