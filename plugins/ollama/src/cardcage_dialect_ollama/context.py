"""`context` of `/api/generate`: an earlier exchange as a list of integers.

Ollama's clients keep the list and send it back as it is; what the integers are is the server's business. Here they hold the
exchange itself, compressed, so that it can be rendered anew by whatever template and engine answers next. Pure.
"""

import json
import zlib
from collections.abc import Sequence

from cardcage_sdk.chat import Message, Role, TextPart
from cardcage_sdk.errors import InvalidRequestError

__all__ = ["decode_context", "encode_context"]

_MARK = 0xCC61
"""First integer of every list."""

_MAX_BYTES = 16 << 20
_ROLES: tuple[Role, ...] = ("system", "user", "assistant")


def encode_context(messages: Sequence[Message]) -> list[int]:
    """An exchange as integers of 16 bits."""
    text = json.dumps([[message.role, message.text] for message in messages], ensure_ascii=False)
    data = zlib.compress(text.encode("utf-8", "surrogatepass"))
    padded = data + b"\0" * (len(data) % 2)
    return [_MARK, len(data) % 2, *(int.from_bytes(padded[at : at + 2], "big") for at in range(0, len(padded), 2))]


def decode_context(context: Sequence[int]) -> tuple[Message, ...]:
    """The exchange of an earlier answer; none where the list is empty.

    Raises:
        InvalidRequestError: The list is from elsewhere, or was changed.
    """
    if not context:
        return ()
    try:
        return _unpacked(context)
    except (ValueError, IndexError, OverflowError, TypeError, RecursionError, zlib.error):
        raise InvalidRequestError("context is none that this server has answered with", param="context") from None


def _unpacked(context: Sequence[int]) -> tuple[Message, ...]:
    if context[0] != _MARK or context[1] not in {0, 1}:
        raise ValueError("another server's tokens")
    data = b"".join(number.to_bytes(2, "big") for number in context[2:])
    unpacker = zlib.decompressobj()
    text = unpacker.decompress(data[:-1] if context[1] else data, _MAX_BYTES)
    if not unpacker.eof:
        raise ValueError("cut short, or too long")
    return tuple(_message(role, content) for role, content in json.loads(text.decode("utf-8", "surrogatepass")))


def _message(role: object, content: object) -> Message:
    known = next((name for name in _ROLES if name == role), None)
    if known is None or not isinstance(content, str):
        raise ValueError("no message")
    return Message(role=known, content=(TextPart(content),))
