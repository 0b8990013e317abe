"""What chat and legacy completions share: running requests, and the life of a stream.

No byte is sent before the (first) request is accepted, so that what is the client's fault has its status. After that the
first piece decides; when none comes for `ping_seconds`, the status 200 is committed with a comment, and an error from then
on is an event of the stream.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from quart import Response

from cardcage_dialect_openai.encode import AnswerHead, fingerprint
from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.sse import DONE, encode_error_event
from cardcage_dialect_openai.streaming import SILENCE, EventPump, Marker, OwnedBody
from cardcage_sdk.capabilities import Feature
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.errors import CardcageError, InternalError, ModelNotFoundError
from cardcage_sdk.events import Accepted, ChatEvent, Progress
from cardcage_sdk.service import ModelStatus, Service
from cardcage_sdk.stream.sse import HEADERS, PING, encode_json_event

__all__ = ["Encoder", "answer_head", "can_think", "new_id", "run_requests", "stream_response", "wanted_model"]

_log = logging.getLogger(__name__)

NumberedEvent: TypeAlias = tuple[int, ChatEvent]
"""An event with the number of the request that it belongs to."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """Turns numbered events into chunks; made when the first event is there, since only then the model is known.

    Attributes:
        feed: Chunks of one event.
        end: Chunks after the last event; raises where an answer is not whole.
    """

    feed: Callable[[int, ChatEvent], Sequence[Any]]
    end: Callable[[], Sequence[Any]]


def new_id(prefix: str) -> str:
    """An id with 122 random bits."""
    return f"{prefix}-{uuid.uuid4().hex}"


async def wanted_model(service: Service, settings: Settings, name: str) -> str:
    """The id of the model that a request names; where the settings say so, it is loaded on demand first.

    Raises:
        ModelNotFoundError: On demand only: there is none of this name. Otherwise the request itself finds out.
        CardcageError: The load failed.
    """
    return (await service.ensure_loaded(name)).id if settings.on_demand else name


def can_think(service: Service, model_id: str) -> bool:
    """The model's reasoning can be switched; False also where nothing is known of it yet."""
    status = _status(service, model_id)
    return status is not None and Feature.THINKING in status.capabilities.features


def answer_head(service: Service, model_id: str, *, answer_id: str, name: str) -> AnswerHead:
    """Identity of an answer that begins now; `name` is the model as the client named it."""
    status = _status(service, model_id)
    # The first event is there, so the model is loaded; only an unload that ends requests could have been faster.
    mark = "fp_unloaded" if status is None else fingerprint(status)
    return AnswerHead(id=answer_id, created=int(time.time()), model=name, fingerprint=mark)


def _status(service: Service, model_id: str) -> ModelStatus | None:
    try:
        return service.model(model_id)
    except ModelNotFoundError:
        return None


async def run_requests(
    service: Service, requests: Sequence[ChatRequest], *, check_all_first: bool = False
) -> AsyncGenerator[NumberedEvent, None]:
    """Run requests one after the other, so that however many there are they hold one lease.

    Args:
        service: Runs them.
        requests: At least one.
        check_all_first: Have the later requests accepted before the first one runs, so that a stream does not begin
            which one of them would spoil. They are accepted again when their turn comes.
    """
    if check_all_first:
        for request in requests[1:]:
            async with contextlib.aclosing(service.chat(replace(request, id=f"{request.id}-check"))) as events:
                async for event in events:
                    if isinstance(event, Accepted):
                        break
    for number, request in enumerate(requests):
        async with contextlib.aclosing(service.chat(request)) as events:
            async for event in events:
                yield number, event


async def stream_response(
    events: AsyncGenerator[NumberedEvent, None], make_encoder: Callable[[], Encoder], *, ping_seconds: float
) -> Response:
    """Wait until the answer has begun, then return the response that streams it.

    Raises:
        CardcageError: The request failed before its answer began; it has a status then.
    """
    pump = EventPump(events)
    try:
        early, is_silent = await _first_events(pump, ping_seconds)
        encoder = make_encoder()
    except BaseException:  # also when the client leaves: the worker is told before anything else happens
        await pump.aclose()
        raise
    body = OwnedBody(_stream_body(pump, early, encoder, is_silent=is_silent, ping_seconds=ping_seconds), pump.aclose)
    response = Response(body, headers=dict(HEADERS))
    response.timeout = None  # Quart would cut the stream after 60 seconds
    return response


async def _first_events(pump: EventPump[NumberedEvent], ping_seconds: float) -> tuple[list[NumberedEvent], bool]:
    """Events up to the first piece of the answer, and whether waiting for that was given up."""
    loop = asyncio.get_running_loop()
    early: list[NumberedEvent] = []
    deadline: float | None = None
    while True:
        item = await pump.next(None if deadline is None else deadline - loop.time())
        if isinstance(item, Marker):
            return early, item is SILENCE
        early.append(item)
        if isinstance(item[1], Accepted):
            deadline = deadline or loop.time() + ping_seconds
        elif not isinstance(item[1], Progress):
            return early, False


async def _stream_body(
    pump: EventPump[NumberedEvent],
    early: Sequence[NumberedEvent],
    encoder: Encoder,
    *,
    is_silent: bool,
    ping_seconds: float,
) -> AsyncGenerator[bytes, None]:
    try:
        for number, event in early:
            for chunk in encoder.feed(number, event):
                yield encode_json_event(chunk)
        if is_silent:
            yield PING
        async for piece in _later_pieces(pump, encoder, ping_seconds):
            yield piece
        for chunk in encoder.end():
            yield encode_json_event(chunk)
        yield DONE
    except CardcageError as error:
        yield encode_error_event(error)
    except Exception:  # noqa: BLE001 - the status is sent, so nobody above could tell the client any more
        _log.exception("a stream failed in the dialect")
        yield encode_error_event(InternalError())


async def _later_pieces(
    pump: EventPump[NumberedEvent], encoder: Encoder, ping_seconds: float
) -> AsyncGenerator[bytes, None]:
    loop = asyncio.get_running_loop()
    sent_at = loop.time()
    while True:
        item = await pump.next(sent_at + ping_seconds - loop.time())
        if isinstance(item, Marker):
            if item is not SILENCE:
                return
            yield PING
            sent_at = loop.time()
            continue
        for chunk in encoder.feed(*item):
            yield encode_json_event(chunk)
            sent_at = loop.time()
