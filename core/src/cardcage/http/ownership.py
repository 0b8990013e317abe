"""Who owns a path, and so in whose form an error under it is rendered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import structlog

from cardcage.plugins.registry import CORE_PREFIXES
from cardcage_sdk.dialect import Reply
from cardcage_sdk.errors import (
    AuthenticationError,
    BusyError,
    CardcageError,
    ForbiddenError,
    MethodNotAllowedError,
    ModelNotFoundError,
    PayloadTooLargeError,
    RequestError,
    RequestTimeoutError,
    RouteNotFoundError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardcage_sdk.dialect import Dialect

__all__ = ["PathOwners", "core_reply"]

log = structlog.get_logger("cardcage.http")

STATUSES: tuple[tuple[type[CardcageError], int], ...] = (
    (RouteNotFoundError, 404),
    (ModelNotFoundError, 404),
    (MethodNotAllowedError, 405),
    (PayloadTooLargeError, 413),
    (RequestTimeoutError, 408),
    (AuthenticationError, 401),
    (ForbiddenError, 403),
    (RequestError, 400),
    (BusyError, 503),
)
"""Core's own statuses, first match; everything else is 500."""


class PathOwners:
    """The dialects by the prefixes that they own. The longest prefix that covers a path owns it."""

    def __init__(self, dialects: Iterable[Dialect]) -> None:
        pairs = [(prefix.rstrip("/"), dialect) for dialect in dialects for prefix in dialect.prefixes]
        self._pairs = sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)

    def owner(self, path: str) -> Dialect | None:
        """The dialect that owns a path; None is core itself or nobody."""
        if any(_covers(prefix, path) for prefix in CORE_PREFIXES):
            return None
        return next((dialect for prefix, dialect in self._pairs if _covers(prefix, path)), None)

    def allows_any_origin(self, path: str) -> bool:
        """Whether web pages of any origin may call this path by default."""
        owner = self.owner(path)
        return owner is not None and path in owner.any_origin_paths

    def always_allowed_origins(self, path: str) -> tuple[str, ...]:
        """Patterns of origins whose pages may call this path by default."""
        owner = self.owner(path)
        return () if owner is None else owner.allowed_origins

    def is_upload(self, path: str) -> bool:
        """Whether the body of a request for this path is a file."""
        owner = self.owner(path)
        return owner is not None and any(_covers(prefix.rstrip("/"), path) for prefix in owner.upload_paths)

    def error_reply(self, error: CardcageError, path: str) -> Reply:
        """An error in the owner's form, or in core's where nobody owns the path."""
        owner = self.owner(path)
        if owner is None:
            return core_reply(error)
        try:
            return owner.error_reply(error, path)
        except Exception:  # named boundary: a dialect's fault must not hide the error that it was to show
            log.exception("the dialect could not render an error", dialect=owner.name, error=error.code)
            return core_reply(error)


def core_reply(error: CardcageError) -> Reply:
    """An error in core's own form: `{"error": {"code", "message", "param"}}`."""
    status = next((status for cls, status in STATUSES if isinstance(error, cls)), 500)
    body = {"error": {"code": error.code, "message": error.message, "param": error.param}}
    headers: dict[str, str] = {}
    if isinstance(error, MethodNotAllowedError) and error.allowed:
        headers["Allow"] = ", ".join(error.allowed)
    if isinstance(error, BusyError):
        headers["Retry-After"] = str(max(1, round(error.retry_after_seconds)))
    return Reply(status=status, body=json.dumps(body, ensure_ascii=False).encode(), headers=headers)


def _covers(prefix: str, path: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")
