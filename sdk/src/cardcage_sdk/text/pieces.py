"""Text that carries the log-probabilities of its tokens along, and the search for what may be about to begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardcage_sdk.events import TokenLogprob

__all__ = ["EMPTY", "Piece", "begun_length"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text.

    Attributes:
        marks: Tokens that begin in it, each with the character that it begins at, in order. Cutting text out takes its
            tokens with it.
    """

    text: str
    marks: tuple[tuple[int, TokenLogprob], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text)

    def __len__(self) -> int:
        return len(self.text)

    def __add__(self, other: Piece) -> Piece:
        if not self.text:
            return other
        if not other.marks:
            return Piece(self.text + other.text, self.marks)
        shift = len(self.text)
        return Piece(
            self.text + other.text, self.marks + tuple((position + shift, mark) for position, mark in other.marks)
        )

    def cut(self, start: int, end: int | None = None) -> Piece:
        """The characters from `start` up to `end`, as a slice would take them; neither may be negative."""
        text = self.text[start:end]
        if not self.marks:
            return Piece(text)
        stop = start + len(text)
        return Piece(text, tuple((position - start, mark) for position, mark in self.marks if start <= position < stop))

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """The tokens that begin in this text."""
        return tuple(mark for _, mark in self.marks)


EMPTY = Piece("")


def begun_length(text: str, needles: Iterable[str]) -> int:
    """Length of the longest end of `text` that is the beginning, but not the whole, of one of `needles` (none empty)."""
    longest = 0
    for needle in needles:
        start = text.find(needle[0], max(0, len(text) - len(needle) + 1))
        while start >= 0:
            if needle.startswith(text[start:]):
                longest = max(longest, len(text) - start)
                break
            start = text.find(needle[0], start + 1)
    return longest
