"""`keep_alive` in all its forms, and Go's durations. Pure."""

import math
import re
from typing import Any

from cardcage_sdk.errors import InvalidRequestError

__all__ = ["decode_keep_alive"]

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_STEP = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([^\d.]*)")
_KINDS = {bool: "bool", dict: "map[string]interface {}", list: "[]interface {}"}


def decode_keep_alive(value: Any) -> float | None:
    """Decode a request's `keep_alive`.

    Args:
        value: Null or absent, a number of seconds, or a duration as `10m`.

    Returns:
        Seconds; infinity for never, None for the server's default.

    Raises:
        InvalidRequestError: In the words of Go.
    """
    if value is None:
        return None
    if isinstance(value, bool | dict | list):
        raise InvalidRequestError(f"Unsupported type: '{_KINDS[type(value)]}'", param="keep_alive")
    seconds = _duration(value) if isinstance(value, str) else float(value)
    return math.inf if seconds < 0 else seconds


def _duration(text: str) -> float:
    """A duration in seconds; a bare number, which Ollama takes in its environment only, is taken as seconds too."""
    body = text.strip()
    sign = -1.0 if body.startswith("-") else 1.0
    body = body.removeprefix("-").removeprefix("+")
    if re.fullmatch(r"\d+(?:\.\d*)?|\.\d+", body):
        return sign * float(body)
    total, at = 0.0, 0
    while at < len(body):
        step = _STEP.match(body, at)
        if step is None:
            raise InvalidRequestError(f'time: invalid duration "{text}"', param="keep_alive")
        if not step[2]:
            raise InvalidRequestError(f'time: missing unit in duration "{text}"', param="keep_alive")
        if step[2] not in _UNITS:
            raise InvalidRequestError(f'time: unknown unit "{step[2]}" in duration "{text}"', param="keep_alive")
        total += float(step[1]) * _UNITS[step[2]]
        at = step.end()
    if not body:
        raise InvalidRequestError(f'time: invalid duration "{text}"', param="keep_alive")
    return sign * total
