"""ASGI, as far as the middleware of this package needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from cardcage_sdk.dialect import Reply

__all__ = ["AsgiApp", "Message", "Receive", "Scope", "Send", "add_headers", "drop_body", "header", "send_reply"]

DROP_SECONDS = 5.0

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


async def drop_body(receive: Receive, *, most_bytes: int) -> bool:
    """Read a request's body and drop it, for at most five seconds, before the request is refused.

    A client that is still writing when the answer comes and the connection closes sees a broken pipe and never the answer
    (seen with httpx and urllib on Hypercorn 0.18).

    Returns:
        Whether all of it came. Otherwise it is answered all the same; whether the client sees that is up to its TCP stack.
    """
    dropped = 0
    try:
        async with asyncio.timeout(DROP_SECONDS):
            while dropped <= most_bytes:
                message = await receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return True
                dropped += len(message.get("body", b""))
    except TimeoutError:
        pass
    return False


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
    if kind != "http.response" and scope["http_version"].startswith("1"):
        # Hypercorn ends the connection after a refused upgrade; a client that is not told would use it again.
        headers.append((b"connection", b"close"))
    await send({"type": f"{kind}.start", "status": reply.status, "headers": headers})
    body = b"" if scope.get("method") == "HEAD" else reply.body
    await send({"type": f"{kind}.body", "body": body, "more_body": False})
