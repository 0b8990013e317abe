"""The two ends that metrics have in HTTP: every request is counted, and `/metrics` shows it all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from quart import Blueprint, Response, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

from cardcage.access.guard import routed_path
from cardcage.http.asgi import AsgiApp, Message, Receive, Scope, Send

if TYPE_CHECKING:
    from werkzeug.routing import Map

    from cardcage.http.ownership import PathOwners
    from cardcage.metrics.instruments import Metrics

__all__ = ["RequestMeter", "RouteNames", "metrics_blueprint"]

UNMATCHED = "unmatched"
"""The route of every path that the application does not serve."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

LEFT = "499"
"""Status of a request whose client went away before the answer began; nginx's number for it."""


def metrics_blueprint(metrics: Metrics) -> Blueprint:
    """`/metrics`."""
    blueprint = Blueprint("cardcage_metrics", __name__)

    @blueprint.get("/metrics")
    async def show() -> Response:
        # In the loop's thread on purpose: it reads what belongs to the loop, and takes a few milliseconds.
        page, content_type = metrics.page(request.headers.get("Accept", ""))
        return Response(page, content_type=content_type)

    return blueprint


class RouteNames:
    """Names of routes with few values: the rule as it was written, and who owns it."""

    def __init__(self, url_map: Map, owners: PathOwners) -> None:
        self._adapter = url_map.bind("localhost")
        self._owners = owners

    def name(self, scope: Scope) -> tuple[str, str]:
        """Dialect and route of a request; `core` and `none` stand for routes of no dialect, `unmatched` for unknown paths."""
        path = routed_path(scope)
        is_websocket = scope["type"] == "websocket"
        try:
            rule, _ = self._adapter.match(
                path, method=scope.get("method", "GET"), return_rule=True, websocket=is_websocket
            )
        except RequestRedirect:
            return self._owner(path), UNMATCHED
        except HTTPException:
            return self._owner(path), UNMATCHED
        return self._owner(path, is_served=True), rule.rule

    def _owner(self, path: str, *, is_served: bool = False) -> str:
        owner = self._owners.owner(path)
        if owner is not None:
            return owner.name
        return "core" if is_served else "none"


class RequestMeter:
    """ASGI middleware that counts and times what passes, refusals included."""

    def __init__(self, app: AsgiApp, metrics: Metrics, routes: RouteNames) -> None:
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        # Before it is answered: the application may replace the path in its own copy of the scope only.
        dialect, route = self._routes.name(scope)
        method = "WEBSOCKET" if scope["type"] == "websocket" else scope["method"]
        status = LEFT

        async def send_counted(message: Message) -> None:
            nonlocal status
            match message["type"]:
                case "http.response.start" | "websocket.http.response.start":
                    status = str(message["status"])
                case "websocket.accept":
                    status = "101"
                case "websocket.close" if status == LEFT:
                    status = "403"
            await send(message)

        began_at = time.perf_counter()
        self._metrics.http_active.inc()
        try:
            await self._app(scope, receive, send_counted)
        finally:
            self._metrics.http_active.dec()
            self._metrics.http_seconds.labels(dialect, route).observe(time.perf_counter() - began_at)
            shown = method if method in METHODS or method == "WEBSOCKET" else "other"
            self._metrics.http_requests.labels(dialect, route, shown, status).inc()
