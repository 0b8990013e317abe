"""The `openai` dialect, as core finds it through its entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardcage_sdk.dialect import Dialect, Reply, Scope
from cardcage_sdk.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from quart import Blueprint

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.errors import CardcageError
    from cardcage_sdk.service import Service

__all__ = ["OpenAIDialect", "register_dialects"]

_READING_METHODS = {"GET", "HEAD", "OPTIONS"}


class OpenAIDialect(Dialect):
    """OpenAI's API with LlamaPi's management routes."""

    name = "openai"
    prefixes = ("/v1", "/health")
    any_origin_paths = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank")

    open_paths = ("/health",)

    def required_scope(self, method: str, path: str) -> Scope:
        """Changing models needs a scope of its own; see `Dialect.required_scope`."""
        if path.startswith("/v1/models/") and method not in _READING_METHODS:
            return Scope.MODELS_MANAGE
        return super().required_scope(method, path)

    def blueprint(self, service: Service, settings: Mapping[str, JsonValue]) -> Blueprint:
        """Build the routes; see `Dialect.blueprint`."""
        from cardcage_dialect_openai.routes import build_blueprint
        from cardcage_dialect_openai.settings import read_settings

        return build_blueprint(service, read_settings(settings))

    def error_reply(self, error: CardcageError, path: str) -> Reply:
        """Render an error; see `Dialect.error_reply`."""
        from cardcage_dialect_openai.errors import error_reply

        del path
        return error_reply(error)


@hookimpl
def register_dialects() -> Sequence[type[Dialect]]:
    """Declare this dialect."""
    return [OpenAIDialect]
