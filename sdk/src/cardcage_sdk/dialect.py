"""A dialect: one HTTP or WebSocket API, as a plugin."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.errors import CardcageError
    from cardcage_sdk.service import Service

__all__ = ["Dialect", "Reply", "Scope"]


class Scope(StrEnum):
    """What a key may do."""

    MODELS_READ = "models:read"
    """See models, platforms and their state."""
    MODELS_MANAGE = "models:manage"
    """Load, resize, unload, pull, create and delete models."""
    INFERENCE = "inference"
    """Chat, complete, embed, rerank."""
    RESPONSES_READ = "responses:read"
    """Read stored responses and their events."""
    TASKS_MANAGE = "tasks:manage"
    """Start, follow and cancel detached tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A whole HTTP answer, with no web framework in it."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Dialect(ABC):
    """One API. Constructed once at start-up, in the server process, with no argument.

    A dialect imports the sdk and quart; it reaches models only through `service`, and never knows which platform answers.
    Its layout is always the same: `plugin.py`, `routes/`, `wire/` (pydantic models of the API exactly as clients see it),
    `decode.py` (towards neutral), `encode.py` (away from it), both pure, and `errors.py` (one table of every class of
    `cardcage_sdk.errors` to status and body).
    """

    name: ClassVar[str]
    """**REQUIRED** Id in configuration and logs; the same as the entry point's name."""

    prefixes: ClassVar[tuple[str, ...]]
    """**REQUIRED** Paths that this dialect owns, as `/v1`; `/v1` covers `/v1` and everything below it.

    The owner of the longest matching prefix answers unknown paths, wrong methods, oversized bodies and missing keys in its
    own error form. One prefix claimed by two dialects is a start-up error.
    """

    any_origin_paths: ClassVar[tuple[str, ...]] = ()
    """Paths that web pages of any origin may call by default; everything else takes own and loopback origins only."""

    allowed_origins: ClassVar[tuple[str, ...]] = ()
    """Origins of web pages that may always call this dialect's paths, as `app://*`, beside own and loopback ones; `*` stands
    for any text. For the schemes of desktop programs and browser extensions, which no web page can have."""

    upload_paths: ClassVar[tuple[str, ...]] = ()
    """Prefixes of paths whose bodies are files: they may be as large as `[server] max_upload_bytes`, and arrive only as fast as
    the route reads them (`async for chunk in request.body`). A route there must not ask for the body as a whole."""

    open_paths: ClassVar[tuple[str, ...]] = ()
    """Paths that need no key even where keys are configured, each named in full, as `/health`. Everything else needs one."""

    def required_scope(self, method: str, path: str) -> Scope:
        """Say which scope a key must have for a request under this dialect's prefixes.

        Called for every request where keys are configured, unknown paths included, unless the path is in `open_paths`. The
        default takes reading for seeing models and everything else for inference; a dialect with routes that change models
        overrides it.
        """
        del path
        return Scope.MODELS_READ if method in {"GET", "HEAD", "OPTIONS"} else Scope.INFERENCE

    @abstractmethod
    def blueprint(self, service: Service, settings: Mapping[str, JsonValue]) -> object:
        """Build the routes.

        Called once for each application that is built, in the event loop's thread, before anything is served.

        Args:
            service: All that a dialect may ask of core.
            settings: The table `[dialects.<name>]` of the configuration, unchecked; refuse what is wrong in it.

        Returns:
            A `quart.Blueprint` (typed `object`, because the sdk imports no web framework) whose routes all lie under
            `prefixes`. Streams must set `response.timeout = None`: Quart cuts a response after 60 seconds otherwise.

        Raises:
            ConfigError: A wrong setting; the server does not start.
        """

    @abstractmethod
    def error_reply(self, error: CardcageError, path: str) -> Reply:
        """Render an error that was raised under this dialect's prefixes, by its own routes or by core.

        Called for every class of the tree. Must not raise.
        """
