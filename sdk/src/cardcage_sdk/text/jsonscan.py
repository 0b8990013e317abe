"""Where a JSON object ends, found while it arrives."""

from __future__ import annotations

import re

__all__ = ["ObjectScanner"]

_STRUCTURE = re.compile(r'["{}\[\]<]')
_STRING_PART = re.compile(r'["\\]')
_CLOSERS = {"{": "}", "[": "]"}


class ObjectScanner:
    """Follows strings and brackets of JSON text through any number of pieces.

    It does not validate: it says where the outermost object or array closes, and that brackets do not match, or that a `<`
    stands outside of a string, which no JSON has.

    Attributes:
        is_broken: The text can no longer be JSON.
    """

    def __init__(self, *, already_open: str = "") -> None:
        """Start before the first bracket, or inside the brackets of `already_open`."""
        self._expected = [_CLOSERS[bracket] for bracket in already_open]
        self._in_string = False
        self._escaped = False
        self.is_broken = False

    def scan(self, text: str) -> int | None:
        """Read on.

        Returns:
            The position right after the outermost closing bracket, or of the character that breaks it (`is_broken`), or
            None where the text ended before either. Not to be called again after anything but None.
        """
        position = 0
        if self._escaped and text:
            self._escaped = False
            position = 1
        while True:
            match = (_STRING_PART if self._in_string else _STRUCTURE).search(text, position)
            if match is None:
                return None
            position = match.end()
            character = match.group()
            if character == '"':
                self._in_string = not self._in_string
            elif character == "\\":
                if position == len(text):
                    self._escaped = True
                    return None
                position += 1
            elif character in _CLOSERS:
                self._expected.append(_CLOSERS[character])
            elif not self._expected or self._expected.pop() != character:
                self.is_broken = True
                return match.start()
            elif not self._expected:
                return position
