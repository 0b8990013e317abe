"""One request for text on its way through the service, streamed or whole. Shared by generate and chat."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from quart import Response

from cardcage_dialect_ollama.decode import fit_to_model
from cardcage_dialect_ollama.encode import Answer, Stopwatch, encode_only
from cardcage_dialect_ollama.fitting import PROMPT_TOO_LONG, chat_that_fits
from cardcage_dialect_ollama.keep_alive import decode_keep_alive
from cardcage_dialect_ollama.names import ModelName
from cardcage_dialect_ollama.options import Options
from cardcage_dialect_ollama.routes.replies import Lines, json_response, stream_lines
from cardcage_dialect_ollama.settings import Settings
from cardcage_dialect_ollama.wire.generation import GenerationBody
from cardcage_sdk.chat import ChatRequest, Message
from cardcage_sdk.errors import (
    ContextLengthExceededError,
    InvalidOptionError,
    InvalidRequestError,
    ModelNotFoundError,
)
from cardcage_sdk.events import Accepted, ChatEvent, Finished, Progress
from cardcage_sdk.service import ModelStatus, Service
from cardcage_sdk.stream.pump import EventPump, Marker

__all__ = ["Errand", "answer", "check_known", "held", "load_only", "new_id", "only_loads", "unload"]


def new_id() -> str:
    """Id of a neutral request."""
    return f"ollama-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What a request wants of a model.

    Attributes:
        task: The route's name, and its form of answers.
        keep_alive: Seconds, infinity for never, None for the server's default.
        arrived: Monotonic time in seconds.
    """

    task: Literal["chat", "generate"]
    name: ModelName
    options: Options
    settings: Settings
    keep_alive: float | None
    arrived: float = field(default_factory=time.monotonic)

    @classmethod
    def of(
        cls,
        task: Literal["chat", "generate"],
        body: GenerationBody,
        name: ModelName,
        options: Options,
        settings: Settings,
    ) -> Errand:
        """The errand of a body."""
        return cls(
            task=task, name=name, options=options, settings=settings, keep_alive=decode_keep_alive(body.keep_alive)
        )


@contextlib.asynccontextmanager
async def held(
    service: Service, name: ModelName, *, keep_alive: float | None, context_tokens: int | None, settings: Settings
) -> AsyncGenerator[ModelStatus, None]:
    """The model, loaded, for as long as the context is open.

    Raises:
        InvalidOptionError: It is loaded with less context, and the settings say that it is not loaded anew for that.
        CardcageError: As `Service.using`.
    """
    is_fixed = settings.num_ctx == "refuse"
    async with service.using(
        name.wanted,
        keep_alive_seconds=keep_alive,
        context_tokens=None if is_fixed else context_tokens,
        is_exact_context=settings.num_ctx == "exact",
    ) as status:
        has = status.info.context_tokens
        if is_fixed and context_tokens is not None and has is not None and context_tokens > has:
            raise InvalidOptionError(
                f'option "num_ctx" is not supported: {name.text} has a context of {has} tokens here', param="num_ctx"
            )
        yield status


def only_loads(body: GenerationBody, *, is_empty: bool) -> Literal["load", "unload", "run"]:
    """What a body asks for: an empty one loads, or unloads with a `keep_alive` of nothing."""
    if not is_empty:
        return "run"
    return "unload" if decode_keep_alive(body.keep_alive) == 0 else "load"


async def load_only(service: Service, errand: Errand) -> Response:
    """Load a model and do nothing with it."""
    with _in_words_of_ollama(errand.name):
        async with held(
            service,
            errand.name,
            keep_alive=errand.keep_alive,
            context_tokens=errand.options.context_tokens,
            settings=errand.settings,
        ):
            pass
    return json_response(encode_only(errand.task, model=errand.name.text, reason="load", now=time.time()))


async def unload(service: Service, errand: Errand) -> Response:
    """Have a model go as soon as nobody uses it; one that is not loaded is gone already."""
    if not await service.let_go(errand.name.wanted):
        check_known(service, errand.name)
    return json_response(encode_only(errand.task, model=errand.name.text, reason="unload", now=time.time()))


def check_known(service: Service, name: ModelName) -> None:
    """Refuse a name that means no model, loaded or in the store.

    Raises:
        ModelNotFoundError: In the words of Ollama.
    """
    wanted = name.wanted.casefold()
    ids = {status.id.casefold() for status in service.models()}
    if ids & {wanted, wanted.removesuffix(":latest")}:
        return
    with _in_words_of_ollama(name):
        service.library.find(name.wanted)


async def answer(
    service: Service,
    errand: Errand,
    request: ChatRequest,
    *,
    body: GenerationBody,
    exchange: tuple[Message, ...] | None = None,
    render: Callable[[ChatRequest, ModelStatus], ChatRequest] | None = None,
) -> Response:
    """Run a request and answer it.

    Args:
        service: Runs it.
        errand: Model and options.
        request: As decoded.
        body: Says whether to stream, and whether a long prompt may be cut.
        exchange: What the next request's `context` is to hold of this one; None for none.
        render: Turns the request into a prompt by a template of its own; runs in the event loop, so it must be bounded.
    """
    watch = Stopwatch(arrived=errand.arrived)
    made = Answer(errand.task, model=errand.name.text, clock=time.time, watch=watch, seed=request.id, exchange=exchange)
    # Without a window that slides, the only way to go on is to begin with less.
    events = _events(service, errand, request, watch, may_cut=body.truncate and body.shift, render=render)
    pump = EventPump(events)
    if body.stream:
        return await stream_lines(_lines(pump, made), pump.aclose)
    try:
        while not isinstance(event := await pump.next(), Marker):
            made.feed(event)
        return json_response(made.whole())
    finally:
        await pump.aclose()


async def _lines(pump: EventPump[ChatEvent], made: Answer) -> Lines:
    while not isinstance(event := await pump.next(), Marker):
        for line in made.feed(event):
            yield line
    yield made.last()


async def _events(
    service: Service,
    errand: Errand,
    request: ChatRequest,
    watch: Stopwatch,
    *,
    may_cut: bool,
    render: Callable[[ChatRequest, ModelStatus], ChatRequest] | None,
) -> AsyncGenerator[ChatEvent, None]:
    with _in_words_of_ollama(errand.name):
        async with held(
            service,
            errand.name,
            keep_alive=errand.keep_alive,
            context_tokens=errand.options.context_tokens,
            settings=errand.settings,
        ) as status:
            watch.held = time.monotonic()
            whole = fit_to_model(request, status, name=errand.name, options=errand.options, task=errand.task)
            if render is not None:
                whole = render(whole, status)
            fitted = chat_that_fits(service, whole, may_cut=may_cut, keep_tokens=errand.options.keep_tokens)
            async with contextlib.aclosing(fitted) as events:
                async for event in events:
                    _note(event, watch)
                    yield event


def _note(event: ChatEvent, watch: Stopwatch) -> None:
    now = time.monotonic()
    if isinstance(event, Accepted):
        watch.accepted = now
    elif isinstance(event, Finished):
        watch.ended = now
    elif not isinstance(event, Progress) and watch.first is None:
        watch.first = now


@contextlib.contextmanager
def _in_words_of_ollama(name: ModelName) -> Iterator[None]:
    """Errors whose texts clients know from Ollama."""
    try:
        yield
    except ModelNotFoundError as error:
        if error.message == f"Model '{error.model}' not found":
            raise ModelNotFoundError(name.text) from error
        raise ModelNotFoundError(name.text, message=error.message) from error
    except ContextLengthExceededError as error:
        raise InvalidRequestError(
            f"{PROMPT_TOO_LONG}: {error.prompt_tokens} tokens of {error.context_tokens}", param="prompt"
        ) from error
