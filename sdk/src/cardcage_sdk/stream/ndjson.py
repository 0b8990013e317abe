"""Newline-delimited JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cardcage_sdk.stream.jsontext import encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage_sdk.chat import JsonValue

__all__ = ["HEADERS", "encode_line"]

HEADERS: Final[Mapping[str, str]] = {
    "content-type": "application/x-ndjson",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
"""Headers of every stream."""


def encode_line(value: JsonValue) -> bytes:
    """One value and a newline; line ends inside of texts are escaped by JSON itself.

    Raises:
        ValueError: A number that is not finite.
    """
    return encode_json(value) + b"\n"
