"""JSON and server-sent events as bytes. Pure."""

import json
from typing import Any

from cardcage_dialect_openai.errors import encode_error
from cardcage_sdk.errors import CardcageError

__all__ = ["DONE", "PING", "encode_error_event", "encode_event", "encode_json"]

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"


def encode_json(value: Any) -> bytes:
    """JSON as bytes. NaN and infinity are a fault of the caller and raise; a lone surrogate becomes `?`."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def encode_event(value: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + encode_json(value) + b"\n\n"


def encode_error_event(error: CardcageError) -> bytes:
    """The event that ends a stream which failed after its first byte; no `[DONE]` follows it."""
    return b"event: error\ndata: " + encode_json(encode_error(error)) + b"\n\n"
