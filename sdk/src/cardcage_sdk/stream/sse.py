"""Server-sent events, as the WHATWG's HTML standard has them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cardcage_sdk.stream.jsontext import encode_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage_sdk.chat import JsonValue

__all__ = ["HEADERS", "PING", "encode_comment", "encode_event", "encode_json_event"]

HEADERS: Final[Mapping[str, str]] = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
"""Headers of every stream: not to be cached, and not to be collected by a proxy on the way."""

PING: Final = b": ping\n\n"
"""A comment that keeps a connection alive. Clients drop it; an empty `data` line they would try to read as JSON."""

_LINE_END = re.compile(r"\r\n|\r|\n")


def encode_event(data: str, *, event: str | None = None, event_id: str | None = None) -> bytes:
    """One event; text of several lines becomes several `data` lines, which readers join again.

    Raises:
        ValueError: A name or id with a line end, or an id with a null character, which readers ignore.
    """
    lines = []
    if event is not None:
        lines.append(f"event: {_one_line(event)}")
    if event_id is not None:
        if "\0" in event_id:
            raise ValueError("an event's id must not contain a null character")
        lines.append(f"id: {_one_line(event_id)}")
    lines += [f"data: {line}" for line in _LINE_END.split(data)]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


def encode_json_event(value: JsonValue, *, event: str | None = None, event_id: str | None = None) -> bytes:
    """One event with JSON in it, on one line.

    Raises:
        ValueError: As `encode_event`, and for numbers that are not finite.
    """
    return encode_event(encode_json(value).decode(), event=event, event_id=event_id)


def encode_comment(text: str) -> bytes:
    """Lines that readers drop."""
    return ("".join(f": {line}\n" for line in _LINE_END.split(text)) + "\n").encode("utf-8", "replace")


def _one_line(value: str) -> str:
    if _LINE_END.search(value):
        raise ValueError("an event's name or id must be one line")
    return value
