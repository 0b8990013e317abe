"""The two events of this API that are no chunk. Pure."""

from cardcage_dialect_openai.errors import encode_error
from cardcage_sdk.errors import CardcageError
from cardcage_sdk.stream.sse import encode_event, encode_json_event

__all__ = ["DONE", "encode_error_event"]

DONE = encode_event("[DONE]")
"""The end of a stream that is whole."""


def encode_error_event(error: CardcageError) -> bytes:
    """The event that ends a stream which failed after its first byte; no `[DONE]` follows it."""
    return encode_json_event(encode_error(error), event="error")
