"""The `ollama` dialect, as core finds it through its entry point."""

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

__all__ = ["OllamaDialect", "register_dialects"]

_INFERENCE = ("/api/generate", "/api/chat", "/api/embed", "/api/embeddings")
_READING = ("/api/show",)


class OllamaDialect(Dialect):
    """Ollama's native API."""

    name = "ollama"
    prefixes = ("/", "/api")
    # What Ollama itself lets in: desktop programs, editors and browser extensions, whose schemes no web page has.
    allowed_origins = (
        "app://*",
        "file://",
        "file://*",
        "tauri://*",
        "vscode-webview://*",
        "vscode-file://*",
        "chrome-extension://*",
        "moz-extension://*",
        "safari-web-extension://*",
        "http://0.0.0.0",
        "http://0.0.0.0:*",
        "https://0.0.0.0",
        "https://0.0.0.0:*",
    )
    upload_paths = ("/api/blobs",)
    # Clients look here for a sign of life before they send a key.
    open_paths = ("/", "/api/version")

    def required_scope(self, method: str, path: str) -> Scope:
        """Everything that changes models needs a scope of its own; see `Dialect.required_scope`."""
        if path.rstrip("/") in _INFERENCE:
            return Scope.INFERENCE
        if method in {"GET", "HEAD", "OPTIONS"} or path.rstrip("/") in _READING:
            return Scope.MODELS_READ
        return Scope.MODELS_MANAGE

    def blueprint(self, service: Service, settings: Mapping[str, JsonValue]) -> Blueprint:
        """Build the routes; see `Dialect.blueprint`."""
        from cardcage_dialect_ollama.routes import build_blueprint
        from cardcage_dialect_ollama.settings import read_settings

        return build_blueprint(service, read_settings(settings))

    def error_reply(self, error: CardcageError, path: str) -> Reply:
        """Render an error; see `Dialect.error_reply`."""
        from cardcage_dialect_ollama.errors import error_reply
        from cardcage_dialect_ollama.routes.replies import redirect_reply
        from cardcage_sdk.errors import RouteNotFoundError

        if isinstance(error, RouteNotFoundError) and path.startswith("/api/") and path.endswith("/"):
            return redirect_reply(path)
        return error_reply(error)


@hookimpl
def register_dialects() -> Sequence[type[Dialect]]:
    """Declare this dialect."""
    return [OllamaDialect]
