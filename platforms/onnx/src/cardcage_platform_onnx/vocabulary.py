"""The tokenizer of a chat model: prompts to ids, ids to bytes. Worker only."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from cardcage_sdk.errors import InvalidModelError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Vocabulary"]

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Vocabulary:
    """Ids and bytes of a model's tokens. Used by one thread.

    Attributes:
        size: Ids are below this.
        special: Ids of control tokens, which give no text.
        control: Spellings of the control tokens.
    """

    def __init__(self, path: Path) -> None:
        """Read `tokenizer.json`.

        Raises:
            InvalidModelError: It is no tokenizer.
        """
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
            declared = json.loads(path.read_text(encoding="utf-8"))
        except Exception as error:  # tokenizers raises plain Exception for every malformed file
            raise InvalidModelError(f"'{path}' is no tokenizer: {error}", param="model_path") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        added = {int(token["id"]): token for token in declared.get("added_tokens", [])}
        self.special = frozenset(number for number, token in added.items() if token.get("special"))
        self.control = frozenset(added[number]["content"] for number in self.special)
        self._added = {number: str(token["content"]) for number, token in added.items()}
        self._byte_of = _byte_alphabet() if _has(declared.get("decoder"), "ByteLevel") else None

    def encode(self, text: str, *, is_start: bool, is_client_text: bool = False) -> list[int]:
        """Tokens of a piece of a prompt.

        Args:
            text: The piece.
            is_start: The tokenizer adds what it puts before a text, as a begin token.
            is_client_text: Spellings of control tokens in it are text.
        """
        self._tokenizer.encode_special_tokens = is_client_text
        return list(self._tokenizer.encode(text, add_special_tokens=is_start).ids)

    def check(self, ids: Sequence[int]) -> list[int]:
        """A prompt that came as token ids.

        Raises:
            InvalidRequestError: It is empty, or an id is outside the vocabulary.
        """
        if not ids:
            raise InvalidRequestError("The prompt has no tokens", param="prompt")
        for token in ids:
            if not 0 <= token < self.size:
                raise InvalidRequestError(
                    f"Token id {token} is outside this model's vocabulary of {self.size}", param="prompt"
                )
        return list(ids)

    def spelling(self, token: int) -> bytes:
        """A token's bytes, control tokens by their names."""
        if token in self._added:
            return self._added[token].encode()
        text = self._tokenizer.id_to_token(token)
        if text is None:
            return b""
        if self._byte_of is not None:
            return bytes(self._byte_of[char] for char in text if char in self._byte_of)
        byte = _BYTE_TOKEN.fullmatch(text)
        if byte is not None:
            return bytes([int(byte[1], 16)])
        return str(text).replace("\u2581", " ").encode()

    def text(self, token: int) -> bytes:
        """What a generated token adds to the answer; a control token adds nothing."""
        return b"" if token in self.special else self.spelling(token)


def _has(decoder: Any, kind: str) -> bool:
    """A tokenizer's decoder is of a kind, or is a sequence that holds one."""
    if not isinstance(decoder, dict):
        return False
    return decoder.get("type") == kind or any(_has(part, kind) for part in decoder.get("decoders", []))


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes bytes as: printable ones for themselves, the others from U+0100 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(0x100) if byte not in set(printable)]
    return alphabet | {chr(0x100 + place): byte for place, byte in enumerate(rest)}
