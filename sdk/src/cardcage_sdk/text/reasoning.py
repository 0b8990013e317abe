"""The split between what a model thinks and what it answers."""

from __future__ import annotations

from typing import Literal, TypeAlias

from cardcage_sdk.text.pieces import EMPTY, Piece, begun_length

__all__ = ["ReasoningSplitter", "Segment"]

Segment: TypeAlias = tuple[Literal["text", "reasoning"], Piece]


class ReasoningSplitter:
    """Splits text at a pair of tags such as `<think>` and `</think>`.

    Reasoning is at the beginning of an answer or nowhere: it is open from the start where the prompt already opened it,
    or where the opening tag is the first thing but white space. A tag anywhere else is text, for a model may well speak
    about tags. White space around the reasoning belongs to the tags and is dropped.

    Attributes:
        ended: The closing tag was seen.
    """

    def __init__(self, tags: tuple[str, str], *, starts_inside: bool = False) -> None:
        self._open, self._close = tags
        self._state: Literal["start", "opened", "inside", "closed", "answer"] = "opened" if starts_inside else "start"
        self._may_repeat = starts_inside  # some models repeat the opening tag that the prompt already has
        self._held = EMPTY
        self.ended = False

    @property
    def is_inside(self) -> bool:
        """What comes next is reasoning, as far as is known."""
        return self._state in {"opened", "inside"}

    def feed(self, piece: Piece) -> list[Segment]:
        """Take a piece and return what is now certain, in order."""
        if self._state == "answer":
            return [("text", piece)] if piece else []
        self._held += piece
        out: list[Segment] = []
        if self._state in {"start", "opened"}:
            self._begin()
        if self._state == "inside":
            out += self._inside()
        if self._state == "closed":
            self._strip_left()
            if self._held:
                self._state = "answer"
        if self._state == "answer" and self._held:
            out.append(("text", self._held))
            self._held = EMPTY
        return out

    def finish(self) -> list[Segment]:
        """Return what was held back: no tag came of it."""
        rest, self._held = self._held, EMPTY
        if self._state in {"opened", "inside"} and not rest.text.strip():
            rest = EMPTY
        if self._state == "closed" or not rest:
            return []
        return [("reasoning" if self.is_inside else "text", rest)]

    def _begin(self) -> None:
        """Leave `start` or `opened` as soon as the first characters say where."""
        text = self._held.text.lstrip()
        blank = len(self._held) - len(text)
        if self._state == "start" or self._may_repeat:
            if text.startswith(self._open):
                self._held = self._held.cut(blank + len(self._open))
                self._state, self._may_repeat = "opened", False
                self._begin()
                return
            if self._open.startswith(text):
                return
        if self._state == "start":
            self._state = "answer"
        elif text:
            self._held = self._held.cut(blank)
            self._state = "inside"

    def _inside(self) -> list[Segment]:
        text = self._held.text
        end = text.find(self._close)
        if end >= 0:
            thought = self._held.cut(0, len(text[:end].rstrip()))
            self._held = self._held.cut(end + len(self._close))
            self._state, self.ended = "closed", True
        else:
            certain = len(text[: len(text) - begun_length(text, (self._close,))].rstrip())
            thought, self._held = self._held.cut(0, certain), self._held.cut(certain)
        return [("reasoning", thought)] if thought else []

    def _strip_left(self) -> None:
        self._held = self._held.cut(len(self._held) - len(self._held.text.lstrip()))
