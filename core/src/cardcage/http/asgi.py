"""ASGI, as far as the middleware of this package needs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from cardcage_sdk.dialect import Reply

__all__ = ["AsgiApp", "Message", "Receive", "Scope", "Send", "add_headers", "header", "send_reply"]

Scope: TypeAlias = dict[str, Any]
Message: TypeAlias = dict[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


def header(scope: Scope, name: bytes) -> str | None:
    """The first request header of this (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


def add_headers(message: Message, headers: list[tuple[bytes, bytes]]) -> Message:
    """A `http.response.start` with further headers; those that it already has stay as they are."""
    present = {bytes(key).lower() for key, _ in message.get("headers", [])}
    added = [(key, value) for key, value in headers if key not in present or key == b"vary"]
    return {**message, "headers": [*message.get("headers", []), *added]}


async def send_reply(
    scope: Scope, send: Send, reply: Reply, *, extra_headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    """Answer with a whole reply.

    A WebSocket that is not accepted yet is refused with it, where the server below can do that; else ASGI knows only 403.
    """
    kind = "http.response"
    if scope["type"] == "websocket":
        kind = "websocket.http.response"
        if kind not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008})
            return
    headers = [(b"content-type", reply.content_type.encode()), (b"content-length", str(len(reply.body)).encode())]
    headers += [(key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in reply.headers.items()]
    headers += extra_headers
    await send({"type": f"{kind}.start", "status": reply.status, "headers": headers})
    body = b"" if scope.get("method") == "HEAD" else reply.body
    await send({"type": f"{kind}.body", "body": body, "more_body": False})
