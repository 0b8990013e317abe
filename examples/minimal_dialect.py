"""A dialect of one route: the whole of a third-party API, in one file.

Try it without installing anything::

    cardcage serve --plugin examples/minimal_dialect.py
    curl -N http://127.0.0.1:9265/minimal/ask/MODEL -d 'What is the capital of France?'

It answers in plain text, as it comes. To ship it, put it into a package `cardcage_dialect_<name>` and name the module of
`register_dialects` in its metadata::

    [project.entry-points."cardcage.dialects"]
    minimal = "cardcage_dialect_minimal.plugin"
"""

from __future__ import annotations

import uuid
from contextlib import aclosing
from typing import TYPE_CHECKING

from quart import Blueprint, Response, request

from cardcage_sdk.chat import ChatRequest, Message, TextPart
from cardcage_sdk.dialect import Dialect, Reply
from cardcage_sdk.errors import (
    BusyError,
    CardcageError,
    ConfigError,
    InvalidRequestError,
    ModelNotFoundError,
    RequestError,
    RouteNotFoundError,
)
from cardcage_sdk.events import TextDelta
from cardcage_sdk.hookspecs import hookimpl

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.events import ChatEvent
    from cardcage_sdk.service import Service


class MinimalDialect(Dialect):
    """`POST /minimal/ask/<model>` with the question as the body."""

    # CONTRACT: equal to the entry point's name, and the table of the configuration: [dialects.minimal].
    name = "minimal"
    # CONTRACT: every route lies under these. Their owner also renders unknown paths, oversized bodies and the like.
    prefixes = ("/minimal",)

    def blueprint(self, service: Service, settings: Mapping[str, JsonValue]) -> Blueprint:
        """CONTRACT: refuse wrong settings with ConfigError; the server then does not start."""
        if settings:
            raise ConfigError(f"[dialects.minimal] has no settings, but got: {', '.join(settings)}")
        blueprint = Blueprint("minimal", __name__)

        @blueprint.post("/minimal/ask/<model>")
        async def ask(model: str) -> Response:
            question = (await request.get_data()).decode(errors="replace").strip()
            if not question:
                raise InvalidRequestError("The body must hold the question")
            message = Message(role="user", content=(TextPart(question),))
            events = service.chat(ChatRequest(id=uuid.uuid4().hex, model=model, messages=(message,)))
            # CONTRACT: the first event is `Accepted`. Until then no byte is sent, so an error still gets its status.
            await anext(events)
            response = Response(_as_text(events), content_type="text/plain; charset=utf-8")
            response.timeout = None
            return response

        return blueprint

    def error_reply(self, error: CardcageError, path: str) -> Reply:
        """CONTRACT: renders every class of the tree, and never raises. A client's fault is never a 5xx."""
        status = 503 if isinstance(error, BusyError) else 400 if isinstance(error, RequestError) else 500
        if isinstance(error, ModelNotFoundError | RouteNotFoundError):
            status = 404
        return Reply(status=status, body=f"{error.message}\n".encode(), content_type="text/plain; charset=utf-8")


async def _as_text(events: AsyncGenerator[ChatEvent, None]) -> AsyncGenerator[bytes, None]:
    # CONTRACT: closing the generator tells the engine to stop. A client that hangs up arrives here as a cancellation, and
    # `aclosing` passes it on. After the first byte an error cannot be a status any more, so it becomes part of the text.
    async with aclosing(events):
        try:
            async for event in events:
                if isinstance(event, TextDelta):
                    yield event.text.encode()
        except CardcageError as error:
            yield f"\n[error: {error.message}]".encode()
    yield b"\n"


@hookimpl
def register_dialects() -> Sequence[type[Dialect]]:
    """CONTRACT: called once at start-up; declares, and does nothing else."""
    return [MinimalDialect]
