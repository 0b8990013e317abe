"""The access policy at the door: ASGI in, and out again only what may pass."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from cardcage.access.policy import SCOPE_KEY, AccessPolicy, Place
from cardcage.http.asgi import AsgiApp, Message, Receive, Scope, Send, add_headers, drop_body, header, send_reply
from cardcage.http.ownership import core_reply
from cardcage.http.query import QUERY_KEY, hide_query_key
from cardcage_sdk.errors import AuthenticationError, CardcageError

if TYPE_CHECKING:
    from cardcage_sdk.dialect import Reply

__all__ = ["AccessGuard", "credentials_of", "routed_path"]

METHODS = b"GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
EXPOSED = b"x-request-id, retry-after"
PREFLIGHT_SECONDS = b"600"

DROPPED_BYTES = 64 * 1024 * 1024
"""Most of a body that is read of a request that is refused."""

_HEADER_LIST = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}")
_BEARER = re.compile(r"bearer +(\S+) *", re.IGNORECASE)


class AccessGuard:
    """ASGI middleware around everything that serves: no request and no WebSocket reaches a route but through here.

    What may not pass is answered in the form of the dialect that owns the path. What passes carries its `Admission` in the
    scope, the path by which it will be routed, and no key in its query. Preflights are answered here, since a browser sends
    them without a key.
    """

    def __init__(self, app: AsgiApp, policy: AccessPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or refuse it."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        hide_query_key(scope)
        # What is guarded must be what is routed: a request may name its target as a whole URL, or below a prefix.
        scope = {**scope, "path": routed_path(scope), "root_path": ""}
        path: str = scope["path"]
        host = header(scope, b"host") or ""
        try:
            place = self._policy.place(scope.get("server"), path)
        except CardcageError as error:
            await _refuse(scope, receive, send, core_reply(error), error)
            return
        try:
            self._policy.check_reach(place, path=path, host=host)
            origin = header(scope, b"origin")
            if origin is not None:
                is_open = self._policy.check_origin(place, path=path, host=host, origin=origin)
                send = _with_cors(send, origin, is_open=is_open)
        except CardcageError as error:
            await _refuse(scope, receive, send, place.owners.error_reply(error, path), error)
            return
        if _is_preflight(scope) and origin is not None:
            await _answer_preflight(scope, send)
            return
        if await self._admit(scope, receive, send, place):
            await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, place: Place) -> bool:
        """Check the key; answers the refusal and returns False where it does not suffice."""
        path: str = scope["path"]
        try:
            admission = await self._policy.admit(
                place, method=scope.get("method", "GET"), path=path, credentials=credentials_of(scope)
            )
        except CardcageError as error:
            await _refuse(scope, receive, send, place.owners.error_reply(error, path), error)
            return False
        scope[SCOPE_KEY] = admission
        if admission.key is not None:
            structlog.contextvars.bind_contextvars(key=admission.key.name)
        return True


def credentials_of(scope: Scope) -> list[str]:
    """Every text that a request shows as a key: `Authorization: Bearer`, `x-api-key`, `?api_key=`."""
    found: list[str] = []
    bearer = _BEARER.fullmatch(header(scope, b"authorization") or "")
    if bearer is not None:
        found.append(bearer[1])
    plain = header(scope, b"x-api-key")
    if plain is not None:
        found.append(plain.strip())
    return [text for text in [*found, *scope.get(QUERY_KEY, ())] if text]


def routed_path(scope: Scope) -> str:
    """The path that the framework will route by: without scheme and host, and without the prefix that the server adds.

    The framework takes `//v1/models` for `/v1/models`, so that is what has an owner and needs a scope.
    """
    path: str = scope["path"]
    if not path.startswith("/"):
        try:
            path = urlsplit(path).path
        except ValueError:
            path = ""
    root: str = scope.get("root_path", "").rstrip("/")
    if root and (path == root or path.startswith(f"{root}/")):
        path = path[len(root) :]
    return f"/{path.lstrip('/')}"


def _is_preflight(scope: Scope) -> bool:
    return scope.get("method") == "OPTIONS" and header(scope, b"access-control-request-method") is not None


async def _answer_preflight(scope: Scope, send: Send) -> None:
    headers = [(b"access-control-allow-methods", METHODS), (b"access-control-max-age", PREFLIGHT_SECONDS)]
    asked = header(scope, b"access-control-request-headers")
    if asked and _HEADER_LIST.fullmatch(asked):
        headers.append((b"access-control-allow-headers", asked.encode("latin-1")))
    # Chrome asks this of a page of the public network that calls a private address.
    if header(scope, b"access-control-request-private-network") == "true":
        headers.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _with_cors(send: Send, origin: str, *, is_open: bool) -> Send:
    """A `send` that lets the page read the answer, refusals for want of a key included."""
    headers = [
        (b"access-control-allow-origin", b"*" if is_open else origin.encode("latin-1")),
        (b"access-control-expose-headers", EXPOSED),
    ]
    if not is_open:
        headers.append((b"vary", b"Origin"))

    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = add_headers(message, headers)
        await send(message)

    return send_with_cors


async def _refuse(scope: Scope, receive: Receive, send: Send, reply: Reply, error: CardcageError) -> None:
    is_whole = scope["type"] == "websocket" or await drop_body(receive, most_bytes=DROPPED_BYTES)
    given = {name.lower() for name in reply.headers}
    extra: list[tuple[bytes, bytes]] = []
    if isinstance(error, AuthenticationError) and "www-authenticate" not in given:
        extra.append((b"www-authenticate", b'Bearer realm="cardcage"'))
    if not is_whole and scope["http_version"].startswith("1"):
        extra.append((b"connection", b"close"))
    await send_reply(scope, send, reply, extra_headers=tuple(extra))
