"""One request's way: model, checks, prepare, queue, lease, answer, and out again however it ends."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cardcage.scheduling.queue import fresh_error, lane_of
from cardcage.service.defaults import fill_request
from cardcage.service.resident import kind_of
from cardcage_sdk.capabilities import Feature, Task, check_chat
from cardcage_sdk.chat import ImagePart
from cardcage_sdk.embeddings import EmbedRequest
from cardcage_sdk.errors import (
    CardcageError,
    DrainingError,
    InternalError,
    InvalidRequestError,
    PathNotAllowedError,
    UnsupportedError,
    WrongModelTypeError,
)
from cardcage_sdk.events import (
    Accepted,
    ChatEvent,
    Finished,
    Progress,
    ReasoningDelta,
    TextDelta,
    Timings,
    ToolCallDelta,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from cardcage.config import Config
    from cardcage.scheduling.pool import Pool
    from cardcage.scheduling.seats import Lease, PoolTicket
    from cardcage.service.counters import RequestCounters
    from cardcage.service.residency import Residency
    from cardcage.service.resident import Plan
    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.embeddings import EmbedResult, RerankRequest, RerankResult
    from cardcage_sdk.engine import Request

__all__ = ["Requests"]


@dataclasses.dataclass(slots=True, kw_only=True)
class _Visit:
    """A request while it is at a model.

    Attributes:
        load_seconds: What it waited for the model's load.
        began_at: Event-loop time at which it came.
        queue_seconds: What it waited for its lease.
        has_begun: Its answer has.
    """

    pool: Pool
    plan: Plan
    capabilities: Capabilities
    deadline: float
    load_seconds: float
    began_at: float
    queue_seconds: float = 0.0
    has_begun: bool = False

    @property
    def model(self) -> str:
        """The model's id."""
        return self.pool.spec.model_id


class Requests:
    """Runs requests on loaded models. One object of the event loop."""

    def __init__(self, *, config: Config, residency: Residency, counters: RequestCounters) -> None:
        self._config = config
        self._residency = residency
        self._counters = counters
        self._ids: set[str] = set()
        self._over: CardcageError | None = None
        self._none_left = asyncio.Event()
        self._none_left.set()

    @property
    def active(self) -> int:
        """Requests that are in here in any state."""
        return len(self._ids)

    def begin_ending(self, error: CardcageError) -> None:
        """Take no new request."""
        self._over = error

    async def wait_none_left(self) -> None:
        """Return when no request is in here."""
        await self._none_left.wait()

    # --- tasks

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """See `cardcage_sdk.service.Service.chat`."""
        with self._counted(request.id, Task.CHAT):
            async with self._visit(request.model, Task.CHAT) as visit:
                check_chat(request, visit.capabilities)
                await self._check_paths(request)
                whole = fill_request(request, visit.plan.defaults, visit.capabilities)
                async with self._lined_up(whole, visit, Task.CHAT) as (ticket, accepted):
                    # Its place is taken before the client is told: that the queue is full is known while a status can be sent.
                    yield accepted
                    async for position in self._turn(ticket, visit):
                        yield Progress(queue_position=position)
                    async with aclosing(_lease_of(ticket).chat(whole, accepted)) as events:
                        async for event in events:
                            if not visit.has_begun and isinstance(event, TextDelta | ReasoningDelta | ToolCallDelta):
                                visit.has_begun = True
                                self._counters.observer.on_first_token(visit.model, _now() - visit.began_at)
                            yield self._finished(event, visit) if isinstance(event, Finished) else event

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """See `cardcage_sdk.service.Service.embed`."""
        with self._counted(request.id, Task.EMBED):
            async with self._visit(request.model, Task.EMBED) as visit:
                if request.dimensions is not None and Feature.DIMENSIONS not in visit.capabilities.features:
                    raise UnsupportedError(Feature.DIMENSIONS.value)
                async with self._leased(request, visit, Task.EMBED) as lease:
                    result = await lease.embed(request)
            self._counters.prompt_tokens += sum(result.prompt_tokens)
            self._counters.observer.on_prompt(visit.model, sum(result.prompt_tokens))
            return result

    async def rerank(self, request: RerankRequest) -> RerankResult:
        """See `cardcage_sdk.service.Service.rerank`."""
        with self._counted(request.id, Task.RERANK):
            async with (
                self._visit(request.model, Task.RERANK) as visit,
                self._leased(request, visit, Task.RERANK) as lease,
            ):
                result = await lease.rerank(request)
            self._counters.prompt_tokens += result.prompt_tokens
            self._counters.observer.on_prompt(visit.model, result.prompt_tokens)
            return result

    # --- the parts of the way

    @contextmanager
    def _counted(self, request_id: str, task: Task) -> Iterator[None]:
        """The outermost part: in the server."""
        if self._over is not None:
            raise fresh_error(self._over)
        if request_id in self._ids:
            raise InvalidRequestError(f"request id '{request_id}' is in use", param="id")
        self._ids.add(request_id)
        self._none_left.clear()
        try:
            yield
        except CardcageError as error:
            self._counters.failed[error.code] += 1
            self._counters.observer.on_end(task, error.code)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._counters.left += 1
            self._counters.observer.on_end(task, "left")
            raise
        else:
            self._counters.finished += 1
            self._counters.observer.on_end(task, "finished")
        finally:
            self._ids.discard(request_id)
            if not self._ids:
                self._none_left.set()

    @asynccontextmanager
    async def _visit(self, model_id: str, task: Task) -> AsyncIterator[_Visit]:
        """At a model that is loaded and does the task."""
        began_at = _now()
        resident = self._residency.get(model_id)
        if resident.closing is not None:
            raise DrainingError(f"Model '{model_id}' is being unloaded")
        self._residency.enter(resident)
        try:
            load_seconds = await resident.wait_loaded(timeout_seconds=self._config.server.load_timeout_seconds)
            pool, plan = resident.pool, resident.plan
            if pool is None or plan is None:
                raise InternalError("a loaded model has no pool")
            capabilities = pool.capabilities
            if task not in capabilities.tasks:
                raise WrongModelTypeError(model_id, task=task.value, kind=kind_of(capabilities))
            yield _Visit(
                pool=pool,
                plan=plan,
                capabilities=capabilities,
                deadline=_now() + self._config.server.queue_timeout_seconds,
                load_seconds=load_seconds,
                began_at=began_at,
            )
        finally:
            self._residency.leave(resident)

    @asynccontextmanager
    async def _lined_up(
        self, request: Request, visit: _Visit, task: Task
    ) -> AsyncIterator[tuple[PoolTicket, Accepted]]:
        """Let in, prepared and in line."""
        ticket = visit.pool.seats.enter(request.id, lane_of(task))
        try:
            accepted = await visit.pool.seats.prepare(request, deadline=visit.deadline)
            visit.pool.seats.line_up(ticket)
            yield ticket, accepted
        finally:
            visit.pool.seats.leave(ticket)

    async def _turn(self, ticket: PoolTicket, visit: _Visit) -> AsyncGenerator[int, None]:
        """Positions in the queue as they change; ends when the ticket has its lease."""
        told: int | None = None
        while (position := await visit.pool.seats.queue.turn(ticket, deadline=visit.deadline, told=told)) is not None:
            yield position
            told = position
        visit.queue_seconds = _now() - ticket.lined_up_at
        self._counters.queue_seconds += visit.queue_seconds
        self._counters.observer.on_queued(visit.model, visit.queue_seconds)

    @asynccontextmanager
    async def _leased(self, request: EmbedRequest | RerankRequest, visit: _Visit, task: Task) -> AsyncIterator[Lease]:
        """On a seat, for a request with one answer.

        It is not prepared first: nothing is sent before its one answer, so an error of the call itself still gets its status,
        and tokenising twice is a good part of the work on a short text (`bench/embeddings.py`).
        """
        ticket = visit.pool.seats.enter(request.id, lane_of(task))
        try:
            visit.pool.seats.line_up(ticket)
            async for _ in self._turn(ticket, visit):
                pass
            yield _lease_of(ticket)
        finally:
            visit.pool.seats.leave(ticket)

    # --- details

    def _finished(self, event: Finished, visit: _Visit) -> Finished:
        """Add the service's part of the timings, and count."""
        if event.usage is not None:
            # The choices of a request have one prompt.
            self._counters.prompt_tokens += event.usage.prompt_tokens if event.choice == 0 else 0
            self._counters.completion_tokens += event.usage.completion_tokens
        timings = dataclasses.replace(
            event.timings or Timings(), queue_seconds=visit.queue_seconds, load_seconds=visit.load_seconds
        )
        whole = dataclasses.replace(event, timings=timings)
        self._counters.observer.on_choice(visit.model, whole)
        return whole

    async def _check_paths(self, request: ChatRequest) -> None:
        """Every file that a request names must lie where this server may read for clients."""
        parts = (part for message in request.messages for part in message.content)
        for path in [part.path for part in parts if isinstance(part, ImagePart) and part.path is not None]:
            if not await asyncio.to_thread(self._config.allows_path, Path(path)):
                raise PathNotAllowedError(path, param="messages")


def _now() -> float:
    return asyncio.get_running_loop().time()


def _lease_of(ticket: PoolTicket) -> Lease:
    if ticket.lease is None:
        raise InternalError("a request's turn came without a lease")
    return ticket.lease
