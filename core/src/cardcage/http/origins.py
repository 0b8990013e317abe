"""Which web pages and host names may call this server: Origin and Host checks, and CORS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cardcage.config import is_loopback
from cardcage.http.asgi import AsgiApp, Message, Receive, Scope, Send, add_headers, header, send_reply
from cardcage_sdk.errors import OriginNotAllowedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from cardcage.http.ownership import PathOwners

__all__ = ["OriginPolicy"]

METHODS = b"GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS"
EXPOSED = b"x-request-id, retry-after"
PREFLIGHT_SECONDS = b"600"

_HEADER_LIST = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~, -]{1,2000}")


class OriginPolicy:
    """ASGI middleware.

    A web page can post JSON to a local server without a preflight, and by DNS rebinding under a host name of its own. So
    an `Origin` is checked on every request that has one: own and loopback origins and those of the configuration may call
    everything, any other origin the paths that their dialect declares open. And on a loopback bind the `Host` must be a
    loopback name, or one of the configuration. Programs other than browsers send no `Origin` and are not concerned.
    """

    def __init__(
        self,
        app: AsgiApp,
        *,
        owners: PathOwners,
        bind_host: str | None,
        allowed_origins: Collection[str] = (),
        allowed_hosts: Collection[str] = (),
    ) -> None:
        """Wrap `app`.

        Args:
            app: The application inside.
            owners: Says which paths are open, and renders the refusal.
            bind_host: The address that the server was told to bind; None (served by someone else's hypercorn) takes the
                address that each connection came in on.
            allowed_origins: Further origins, as `https://chat.example`.
            allowed_hosts: Further host names without port; where given, other names are refused on every bind.
        """
        self._app = app
        self._owners = owners
        self._bind_host = bind_host
        self._origins = frozenset(origin.rstrip("/").lower() for origin in allowed_origins)
        self._hosts = frozenset(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, or refuse it."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        host = header(scope, b"host") or ""
        if not self._host_is_allowed(scope, host):
            await send_reply(scope, send, self._owners.error_reply(OriginNotAllowedError(host), path))
            return
        origin = header(scope, b"origin")
        if origin is None:
            await self._app(scope, receive, send)
            return
        is_open = self._owners.allows_any_origin(path)
        if not is_open and not self._origin_is_allowed(origin, host):
            await send_reply(scope, send, self._owners.error_reply(OriginNotAllowedError(origin), path))
            return
        headers = [
            (b"access-control-allow-origin", b"*" if is_open else origin.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED),
        ]
        if not is_open:
            headers.append((b"vary", b"Origin"))
        if scope.get("method") == "OPTIONS" and header(scope, b"access-control-request-method") is not None:
            await self._preflight(scope, send, headers)
            return

        async def send_with_cors(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = add_headers(message, headers)
            await send(message)

        await self._app(scope, receive, send_with_cors)

    async def _preflight(self, scope: Scope, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        asked = header(scope, b"access-control-request-headers")
        answer = [*headers, (b"access-control-allow-methods", METHODS), (b"access-control-max-age", PREFLIGHT_SECONDS)]
        if asked and _HEADER_LIST.fullmatch(asked):
            answer.append((b"access-control-allow-headers", asked.encode("latin-1")))
        # Chrome asks this of a page of the public network that calls a private address.
        if header(scope, b"access-control-request-private-network") == "true":
            answer.append((b"access-control-allow-private-network", b"true"))
        await send({"type": "http.response.start", "status": 204, "headers": answer})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _host_is_allowed(self, scope: Scope, host: str) -> bool:
        name = _hostname(f"//{host}")
        if not host or name is None:
            return not host  # HTTP/1.0 may leave it out, a browser never does
        if is_loopback(name) or name in self._hosts:
            return True
        if self._hosts:
            return False
        bound = self._bind_host if self._bind_host is not None else (scope.get("server") or ("",))[0]
        return not is_loopback(bound)

    def _origin_is_allowed(self, origin: str, host: str) -> bool:
        wanted = origin.rstrip("/").lower()
        if wanted in self._origins:
            return True
        parts = urlsplit(wanted)
        if parts.scheme not in {"http", "https"}:
            return False
        name = _hostname(wanted)
        return name is not None and (is_loopback(name) or parts.netloc == host.lower())


def _hostname(url: str) -> str | None:
    """The host of a URL, lower case and without port; None where it is malformed."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
