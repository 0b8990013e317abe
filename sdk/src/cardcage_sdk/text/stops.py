"""Stop strings, which may lie across any number of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardcage_sdk.text.pieces import EMPTY, Piece, begun_length

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StopFilter"]


class StopFilter:
    """Lets text through up to the first stop string, and holds back an end that may be the beginning of one.

    The first is the one that is complete first; of two that end at the same character, the longer. So the outcome does not
    depend on how the text is cut into pieces.

    Attributes:
        found: The stop string that was met, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Watch for `stops`.

        Raises:
            ValueError: An empty stop string; dialects refuse or drop those.
        """
        if "" in stops:
            raise ValueError("an empty stop string would stop every answer at once")
        self._stops = tuple(dict.fromkeys(stops))
        self._held = EMPTY
        self.found: str | None = None

    def feed(self, piece: Piece) -> Piece:
        """Take a piece and return what is certain to be before any stop string; after one, nothing."""
        if self.found is not None:
            return EMPTY
        if not self._stops:
            return piece
        text = self._held + piece
        hits = [(start + len(stop), start, stop) for stop in self._stops if (start := text.text.find(stop)) >= 0]
        if hits:
            _, start, self.found = min(hits)
            self._held = EMPTY
            return text.cut(0, start)
        keep = len(text) - begun_length(text.text, self._stops)
        self._held = text.cut(keep)
        return text.cut(0, keep)

    def finish(self) -> Piece:
        """Return what was held back: no stop string came of it."""
        rest, self._held = self._held, EMPTY
        return rest
