"""Every error that leaves a route is rendered by the owner of its path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from quart import Quart, Response, has_websocket_context, request, websocket
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from cardcage_sdk.errors import (
    CardcageError,
    InternalError,
    InvalidRequestError,
    MethodNotAllowedError,
    PayloadTooLargeError,
    RequestTimeoutError,
    RouteNotFoundError,
)

if TYPE_CHECKING:
    from cardcage.http.ownership import PathOwners

__all__ = ["register_error_handlers"]

log = structlog.get_logger("cardcage.http")


def register_error_handlers(app: Quart, owners: PathOwners) -> None:
    """Let `owners` render errors of the tree, the framework's own, and faults, also before a WebSocket is accepted."""

    def render(error: CardcageError) -> Response:
        reply = owners.error_reply(error, _path())
        headers = {**reply.headers, "Content-Type": reply.content_type}
        if has_websocket_context():
            headers["Connection"] = "close"  # as `send_reply` has it
        return Response(reply.body, reply.status, headers=headers)

    async def known(error: CardcageError) -> Response:
        if isinstance(error, InternalError):
            log.error("internal error", path=_path(), exc_info=error)
        return render(error)

    async def framework(error: HTTPException) -> Response | HTTPException:
        if error.code is None or error.code < 400:
            return error
        return render(_translate(error, limit_bytes=int(app.config["MAX_CONTENT_LENGTH"])))

    async def fault(error: Exception) -> Response:
        log.error("unhandled exception", path=_path(), exc_info=error)
        return render(InternalError())

    app.register_error_handler(CardcageError, known)
    app.register_error_handler(HTTPException, framework)
    app.register_error_handler(Exception, fault)


def _path() -> str:
    """The path of the running request or WebSocket."""
    return websocket.path if has_websocket_context() else request.path


def _translate(error: HTTPException, *, limit_bytes: int) -> CardcageError:
    """The framework's error as one of the tree."""
    if isinstance(error, MethodNotAllowed):
        allowed = tuple(sorted(error.valid_methods or ()))
        return MethodNotAllowedError(request.method, request.path, allowed=allowed)
    match error.code:
        case 404:
            return RouteNotFoundError(_path())
        case 408:
            return RequestTimeoutError()
        case 413:
            return PayloadTooLargeError(limit_bytes=limit_bytes)
        case code if code is not None and code < 500:
            return InvalidRequestError(error.description or error.name)
        case _:
            return InternalError()
