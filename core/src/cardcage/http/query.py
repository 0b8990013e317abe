"""Keys in queries: a browser cannot set a header on a WebSocket, so some clients send theirs as `?api_key=`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from cardcage.http.asgi import Scope

__all__ = ["QUERY_KEY", "hide_query_key"]

QUERY_KEY = "cardcage.query_key"
"""Where a scope carries the keys that were taken out of its query."""


def hide_query_key(scope: Scope) -> None:
    """Take `api_key` out of a scope's query, in place, so that nobody behind can log it; idempotent.

    In place, because the server below keeps the same object for its own access log.
    """
    query: bytes = scope.get("query_string", b"")
    if b"api_key" not in query and b"%" not in query:
        return
    keys = [value for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True) if name == "api_key"]
    if not keys:
        return
    kept = [part for part in query.split(b"&") if not _names_key(part)]
    scope["query_string"] = b"&".join(kept)
    scope[QUERY_KEY] = (*scope.get(QUERY_KEY, ()), *keys)


def _names_key(part: bytes) -> bool:
    pairs = parse_qsl(part.decode("latin-1"), keep_blank_values=True)
    return any(name == "api_key" for name, _ in pairs)
