"""The seats of a pool: who may have one, who has one, and when it is free again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import structlog

from cardcage.scheduling.queue import Lane, RequestQueue, Ticket, fresh_error
from cardcage.workers.life import EndCause
from cardcage.workers.tasks import Pulse, TaskSet
from cardcage_sdk.errors import CardcageError, InternalError, QueueTimeoutError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from cardcage.workers.instance import Worker
    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
    from cardcage_sdk.engine import Request
    from cardcage_sdk.events import Accepted, ChatEvent

__all__ = ["Lease", "Member", "PoolTicket", "Seats"]


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """A worker in its pool.

    Attributes:
        seats: Requests that it may be given at once, by lane.
        leases: Requests that hold a seat, by lane; those whose engine has not let go of them yet count.
        cancel_seconds: Within this time its engine lets go of a request.
        is_resizing: Its engine is yet to be told of fewer slots.
    """

    worker: Worker
    seats: dict[Lane, int]
    cancel_seconds: float
    leases: dict[Lane, int] = field(default_factory=lambda: dict.fromkeys(Lane, 0))
    is_resizing: bool = False

    @property
    def load(self) -> int:
        """Leases of all lanes."""
        return sum(self.leases.values())

    def free(self, lane: Lane) -> int:
        """Seats of a lane that a request could have now."""
        return max(0, self.seats[lane] - self.leases[lane]) if self.worker.takes_requests else 0


class Lease:
    """One request's hold on a seat, given back exactly once.

    After it was given back the seat is free only when the engine has let go of the request; until then the instance drains.
    """

    def __init__(self, seats: Seats, member: Member, lane: Lane, request_id: str) -> None:
        self._seats = seats
        self._member = member
        self._lane = lane
        self._request_id = request_id
        self._was_used = False
        self._was_released = False

    def __repr__(self) -> str:
        return f"Lease({self._request_id!r}, worker={self._member.worker.number}, released={self._was_released})"

    def chat(self, request: ChatRequest, accepted: Accepted) -> AsyncGenerator[ChatEvent, None]:
        """Run the request; see `Worker.chat`."""
        self._use()
        return self._member.worker.chat(request, accepted)

    async def embed(self, request: EmbedRequest, accepted: Accepted) -> EmbedResult:
        """Run the request; see `Worker.embed`."""
        self._use()
        return await self._member.worker.embed(request, accepted)

    async def rerank(self, request: RerankRequest, accepted: Accepted) -> RerankResult:
        """Run the request; see `Worker.rerank`."""
        self._use()
        return await self._member.worker.rerank(request, accepted)

    def release(self) -> None:
        """Give it back.

        Raises:
            InternalError: It was given back before; the seat would be given to two requests.
        """
        if self._was_released:
            raise InternalError(f"lease of request '{self._request_id}' was released twice")
        self._was_released = True
        self._seats.take_back(self._member, self._lane, self._request_id, was_used=self._was_used)

    def _use(self) -> None:
        if self._was_released or self._was_used:
            raise InternalError(f"lease of request '{self._request_id}' was used twice or after its release")
        self._was_used = True


PoolTicket: TypeAlias = Ticket[Lease]


class Seats:
    """All seats of one pool, with the queue for them.

    Attributes:
        members: The pool's workers by number, oldest first.
        queue: Requests without a seat.
    """

    def __init__(
        self, model: str, *, places: int, settle: Callable[[Member], None], on_change: Callable[[], None]
    ) -> None:
        """Begin without seats.

        Args:
            model: Model id, for errors and logs.
            places: Waiting places.
            settle: Called when a seat of a worker became free.
            on_change: Called after that.
        """
        self.members: dict[int, Member] = {}
        self.queue: RequestQueue[Lease] = RequestQueue(model, places=places)
        self._model = model
        self._settle = settle
        self._on_change = on_change
        self._over: CardcageError | None = None
        self._news = Pulse()
        self._tasks = TaskSet(f"seats {model}")
        self._log = structlog.get_logger("cardcage.seats").bind(model=model)

    @property
    def taken(self) -> int:
        """Requests that hold a seat, those included whose engine has not let go yet."""
        return sum(member.load for member in self.members.values())

    @property
    def serving(self) -> list[Member]:
        """Workers that take requests."""
        return [member for member in self.members.values() if member.worker.takes_requests]

    def free(self, lane: Lane) -> int:
        """Seats of a lane that a request could have now."""
        return sum(member.free(lane) for member in self.members.values())

    # --- open and closed

    def add(self, member: Member) -> None:
        """A worker is ready."""
        self.members[member.worker.number] = member
        self._news.tell()
        self.dispatch()

    def remove(self, member: Member) -> None:
        """A worker is dead."""
        del self.members[member.worker.number]
        self._news.tell()

    def close(self, error: CardcageError) -> None:
        """Refuse everyone who comes or waits with this error; those who run go on."""
        self._over = error
        self.queue.flush(error)
        self._news.tell()

    def reopen(self) -> None:
        """Let requests in again."""
        self._over = None

    def refuse_when_closed(self) -> None:
        """Raise what `close` was called with."""
        if self._over is not None:
            raise fresh_error(self._over)

    async def end(self) -> None:
        """Wait no longer for engines to let go: their workers are about to be ended."""
        await self._tasks.cancel()

    # --- requests

    def enter(self, request_id: str, lane: Lane) -> PoolTicket:
        """Let a request in, before it is prepared; whoever called this calls `leave` with the ticket in the end.

        Raises:
            QueueFullError: All seats and all waiting places are taken.
            CardcageError: The pool is being closed, or has failed.
        """
        self.refuse_when_closed()
        return self.queue.enter(request_id, lane, free_seats=self.free(lane))

    async def prepare(self, request: Request, *, deadline: float) -> Accepted:
        """Have a worker validate and count a request; waits for one where all are being replaced.

        Args:
            request: Whole, defaults merged in.
            deadline: Event-loop time at which the wait for a worker ends.
        """
        began = asyncio.get_running_loop().time()
        while not (serving := self.serving):
            self.refuse_when_closed()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.next()
            except TimeoutError:
                waited = asyncio.get_running_loop().time() - began
                raise QueueTimeoutError(self._model, waited_seconds=round(waited, 3)) from None
        least_loaded = min(serving, key=lambda member: (member.load, member.worker.number))
        return await least_loaded.worker.prepare(request)

    def line_up(self, ticket: PoolTicket) -> None:
        """Put a prepared request in line; it may have its lease when this returns."""
        self.refuse_when_closed()
        self.queue.line_up(ticket)
        self.dispatch()

    def leave(self, ticket: PoolTicket) -> None:
        """End a request's stay, wherever it is: give back its place or its lease."""
        if ticket.lease is not None:
            ticket.lease.release()
        else:
            self.queue.leave(ticket)

    def take_back(self, member: Member, lane: Lane, request_id: str, *, was_used: bool) -> None:
        """Free a seat when its engine has let go; called by `Lease.release` only."""
        if was_used and member.worker.holds(request_id):
            self._tasks.spawn(self._reclaim(member, lane, request_id), name=f"reclaim {request_id}")
        else:
            self._free(member, lane)

    async def _reclaim(self, member: Member, lane: Lane, request_id: str) -> None:
        """Wait until the engine has let go of a request; kill the worker where that takes longer than it declares."""
        worker, allowed = member.worker, member.cancel_seconds
        try:
            async with asyncio.timeout(allowed):
                await worker.released(request_id)
        except TimeoutError:
            self._log.error("cancelled request not released", worker=worker.number, request=request_id, seconds=allowed)
            await worker.kill(EndCause.CANCEL_OVERDUE, silent_seconds=allowed)
        self._free(member, lane)

    def _free(self, member: Member, lane: Lane) -> None:
        member.leases[lane] -= 1
        if member.leases[lane] < 0:
            raise InternalError(f"worker {member.worker.number} has fewer than no leases")
        self._settle(member)
        self.dispatch()
        self._on_change()

    def dispatch(self) -> None:
        """Give free seats to those first in line, on the least loaded worker."""
        for lane in Lane:
            while self.free(lane) > 0 and (ticket := self.queue.next(lane)) is not None:
                open_members = [member for member in self.serving if member.free(lane) > 0]
                member = min(open_members, key=lambda member: (member.load, member.worker.number))
                member.leases[lane] += 1
                ticket.grant(Lease(self, member, lane, ticket.request_id))
