"""Bodies that are files: with a limit of their own, and read from the client only as fast as the route takes them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from quart.wrappers.request import Body

from cardcage.http.bodies import TimedRequest
from cardcage_sdk.errors import PayloadTooLargeError

if TYPE_CHECKING:
    from cardcage.http.asgi import AsgiApp, Message, Receive, Scope, Send
    from cardcage.http.ownership import PathOwners

__all__ = ["StreamedBody", "UploadGate", "UploadRequest"]

UPLOAD_KEY = "cardcage.upload"
"""Where an ASGI scope carries the `UploadFlow` of its body."""

MOST_WAITING_BYTES = 4 << 20
"""Bytes that wait for the route; with so many the client is not read from."""


class UploadFlow:
    """What reading from the client and reading by the route share."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.has_room = asyncio.Event()
        self.has_room.set()


class StreamedBody(Body):
    """A body that counts all its bytes, not only those that wait, and holds the client back while too many do."""

    def __init__(self, expected_content_length: int | None, flow: UploadFlow) -> None:
        super().__init__(expected_content_length, flow.limit_bytes)
        self._flow = flow
        self._seen_bytes = 0

    async def __anext__(self) -> bytes:
        """The next bytes; makes room for more."""
        data = await super().__anext__()
        self._flow.has_room.set()
        return data

    def append(self, data: bytes) -> None:
        """Take bytes of the client."""
        self._seen_bytes += len(data)
        if self._seen_bytes > self._flow.limit_bytes:
            self._must_raise = PayloadTooLargeError(limit_bytes=self._flow.limit_bytes)
            self.set_complete()
            return
        super().append(data)
        if len(self._data) >= MOST_WAITING_BYTES:
            self._flow.has_room.clear()


class UploadRequest(TimedRequest):
    """A request whose body is streamed where its path is one for uploads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        flow = self.scope.get(UPLOAD_KEY)  # a key of our own
        if isinstance(flow, UploadFlow):
            self.body = StreamedBody(self.content_length, flow)
            self.arrival_seconds = None


class UploadGate:
    """ASGI middleware right around the application: the other end of `UploadRequest`."""

    def __init__(self, app: AsgiApp, *, owners: PathOwners, limit_bytes: int) -> None:
        self._app = app
        self._owners = owners
        self._limit_bytes = limit_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection; all but uploads pass unchanged."""
        if scope["type"] != "http" or not self._owners.is_upload(scope["path"]):
            await self._app(scope, receive, send)
            return
        flow = UploadFlow(self._limit_bytes)

        async def receive_with_room() -> Message:
            await flow.has_room.wait()
            return await receive()

        await self._app({**scope, UPLOAD_KEY: flow}, receive_with_room, send)
