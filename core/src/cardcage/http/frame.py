"""The outermost layer: a request id on everything, and one access-log line a request."""

from __future__ import annotations

import re
import time
import uuid
from typing import TYPE_CHECKING

import structlog

from cardcage.http.asgi import AsgiApp, Message, Receive, Scope, Send, add_headers, header
from cardcage.http.query import hide_query_key

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["RequestFrame"]

log = structlog.get_logger("cardcage.access")

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


class RequestFrame:
    """ASGI middleware.

    The id is the client's `x-request-id` where that is sane, else a new one. It is bound to every log line of the request,
    sent back, and set in the request's headers, where a dialect reads it.

    The access line holds the path without its query, since a query may hold a key, and no header and no body.
    """

    def __init__(self, app: AsgiApp, *, quiet_paths: Collection[str] = ()) -> None:
        """Wrap `app`; `quiet_paths` are logged at debug, since something polls them."""
        self._app = app
        self._quiet_paths = frozenset(quiet_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of any kind; only requests and WebSockets are framed."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        hide_query_key(scope)
        given = header(scope, b"x-request-id")
        request_id = given if given is not None and _SANE_ID.fullmatch(given) else uuid.uuid4().hex
        id_header = (b"x-request-id", request_id.encode())
        scope = {**scope, "headers": [*(item for item in scope["headers"] if item[0] != id_header[0]), id_header]}
        status: int | None = None
        finished = False

        async def send_framed(message: Message) -> None:
            nonlocal status, finished
            if message["type"] in {"http.response.start", "websocket.http.response.start"}:
                status = message["status"]
                message = add_headers(message, [id_header])
            elif message["type"] == "websocket.accept":
                status = 101
            elif message["type"] == "websocket.close":
                status = status or 403
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                finished = True

        started = time.perf_counter()
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        try:
            await self._app(scope, receive, send_framed)
        finally:
            is_quiet = scope["path"] in self._quiet_paths and (status or 0) < 400
            write = log.debug if is_quiet else log.info
            left = {} if finished or scope["type"] == "websocket" else {"client_left": True}
            write(
                "request",
                method=scope.get("method", "WEBSOCKET"),
                path=scope["path"],
                status=status,
                duration_ms=round((time.perf_counter() - started) * 1000, 1),
                client=(scope.get("client") or ("-",))[0],
                **left,
            )
            structlog.contextvars.clear_contextvars()
