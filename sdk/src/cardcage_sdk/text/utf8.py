"""Assembly of characters from tokens that end in the middle of one."""

from __future__ import annotations

import codecs
import re

__all__ = ["Utf8Assembler"]

_SURROGATE = re.compile("[\ud800-\udfff]")


class Utf8Assembler:
    """Gives out whole characters only, and U+FFFD for bytes that can become none.

    However the bytes are cut into pieces, the joined result is that of decoding them at once.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: str | bytes) -> str:
        """Take a piece and return the characters that it completes."""
        if isinstance(data, bytes):
            return self._decoder.decode(data)
        # A runtime that mixes bytes and text has ended the character itself. Half a surrogate pair has no UTF-8 form.
        return self.finish() + (data if data.isascii() else _SURROGATE.sub("\ufffd", data))

    def finish(self) -> str:
        """Return U+FFFD for a character that will never be completed, and start anew."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
