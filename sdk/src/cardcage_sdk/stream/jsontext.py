"""JSON as it goes to clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cardcage_sdk.chat import JsonValue

__all__ = ["encode_json"]


def encode_json(value: JsonValue) -> bytes:
    """Compact UTF-8 JSON on one line.

    Characters are not escaped: answers in other scripts would be three times as long, and every reader takes UTF-8. What has no
    UTF-8 form, half a surrogate pair, is escaped after all.

    Raises:
        ValueError: A number that is not finite; JSON has none, and what Python would write for it breaks every other parser.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
