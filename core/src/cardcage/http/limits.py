"""Bodies that are too large, refused so that the client gets to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardcage.http.asgi import AsgiApp, Receive, Scope, Send, drop_body, header, send_reply
from cardcage_sdk.errors import PayloadTooLargeError

if TYPE_CHECKING:
    from cardcage.http.ownership import PathOwners

__all__ = ["BodyLimit"]

DRAIN_FACTOR = 4


class BodyLimit:
    """ASGI middleware that answers 413 to a request whose `content-length` is over the limit.

    Quart answers at once and closes the socket while the client still writes; the client then sees a broken pipe and
    never the 413 (seen with httpx and urllib on Hypercorn 0.18). So what comes is read and dropped first, up to four times
    the limit and for at most five seconds. Bodies without a length are counted by Quart as they arrive.
    """

    def __init__(self, app: AsgiApp, *, owners: PathOwners, limit_bytes: int, upload_limit_bytes: int) -> None:
        self._app = app
        self._owners = owners
        self._limit_bytes = limit_bytes
        self._upload_limit_bytes = upload_limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; only HTTP requests have a body."""
        length = header(scope, b"content-length") if scope["type"] == "http" else None
        if length is None or not length.isascii() or not length.isdigit():
            await self._app(scope, receive, send)
            return
        is_upload = self._owners.is_upload(scope["path"])
        limit_bytes = self._upload_limit_bytes if is_upload else self._limit_bytes
        if int(length) <= limit_bytes:
            await self._app(scope, receive, send)
            return
        await drop_body(receive, most_bytes=self._limit_bytes * DRAIN_FACTOR)
        reply = self._owners.error_reply(PayloadTooLargeError(limit_bytes=limit_bytes), scope["path"])
        # HTTP/2 forbids the header and needs no closing: the stream is reset.
        close = ((b"connection", b"close"),) if scope["http_version"].startswith("1") else ()
        await send_reply(scope, send, reply, extra_headers=close)
