"""The seats of a pool: who may have one, who has one, and when it is free again."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
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

    The seat is free when the engine has let go of the request. That may be before the lease is given back, where a client
    reads its answer more slowly than the engine writes it, or after, where a client left: until then the instance drains.

    Attributes:
        was_used: The request was started on the worker.
        is_seat_free: The seat was given to the next one, or could be.
        overdue: Ends the worker where its engine does not let go in its declared time.
    """

    def __init__(self, seats: Seats, member: Member, lane: Lane, request_id: str) -> None:
        self.member = member
        self.lane = lane
        self.request_id = request_id
        self.was_used = False
        self.is_seat_free = False
        self.overdue: asyncio.TimerHandle | None = None
        self._seats = seats
        self._was_released = False

    def __repr__(self) -> str:
        return f"Lease({self.request_id!r}, worker={self.member.worker.number}, released={self._was_released})"

    async def chat(self, request: ChatRequest, accepted: Accepted) -> AsyncGenerator[ChatEvent, None]:
        """Run the request; see `Worker.chat`."""
        self._use()
        async with aclosing(self.member.worker.chat(request, accepted)) as events:
            async for event in events:
                yield event

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Run the request; see `Worker.embed`."""
        self._use()
        return await self.member.worker.embed(request)

    async def rerank(self, request: RerankRequest) -> RerankResult:
        """Run the request; see `Worker.rerank`."""
        self._use()
        return await self.member.worker.rerank(request)

    def release(self) -> None:
        """Give it back.

        Raises:
            InternalError: It was given back before; the seat would be given to two requests.
        """
        if self._was_released:
            raise InternalError(f"lease of request '{self.request_id}' was released twice")
        self._was_released = True
        self._seats.take_back(self)

    def _use(self) -> None:
        if self._was_released or self.was_used:
            raise InternalError(f"lease of request '{self.request_id}' was used twice or after its release")
        self.was_used = True
        # The request is sent before anything else gets its turn of the loop, so the follower finds it held.
        self._seats.follow(self)


PoolTicket: TypeAlias = Ticket[Lease]


class Seats:
    """All seats of one pool, with the queue for them.

    Attributes:
        members: The pool's workers by number, oldest first.
        queue: Requests without a seat.
    """

    def __init__(
        self,
        model: str,
        *,
        places: int,
        patience_seconds: float,
        settle: Callable[[Member], None],
        on_change: Callable[[], None],
    ) -> None:
        """Begin without seats.

        Args:
            model: Model id, for errors and logs.
            places: Waiting places.
            patience_seconds: An engine that does not let go has so long where other requests run on it.
            settle: Called when a seat of a worker became free.
            on_change: Called after that.
        """
        self.members: dict[int, Member] = {}
        self.queue: RequestQueue[Lease] = RequestQueue(model, places=places)
        self._model = model
        self._patience_seconds = patience_seconds
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

    def follow(self, lease: Lease) -> None:
        """Free the seat when the engine has let go; called by `Lease` only."""
        self._tasks.spawn(self._follow(lease), name=f"follow {lease.request_id}")

    async def _follow(self, lease: Lease) -> None:
        await lease.member.worker.released(lease.request_id)
        self._free(lease)

    def take_back(self, lease: Lease) -> None:
        """Free the seat, or see to it that the engine lets go in its time; called by `Lease` only."""
        if not lease.was_used or not lease.member.worker.holds(lease.request_id):
            self._free(lease)
        elif not lease.is_seat_free:
            seconds = lease.member.cancel_seconds
            loop = asyncio.get_running_loop()
            lease.overdue = loop.call_later(seconds, self._end_overdue, lease, loop.time())

    def _end_overdue(self, lease: Lease, cancelled_at: float) -> None:
        """End the worker of an engine that does not let go.

        Where other requests run on it they would be ended too, so it then has as long as a silent worker has: a client that
        leaves must not cost others their answers because one step of the engine takes long.
        """
        worker = lease.member.worker
        loop = asyncio.get_running_loop()
        seconds = loop.time() - cancelled_at
        if lease.member.load > 1 and seconds < self._patience_seconds:
            lease.overdue = loop.call_later(lease.member.cancel_seconds, self._end_overdue, lease, cancelled_at)
            return
        self._log.error("engine did not let go", worker=worker.number, request=lease.request_id, seconds=seconds)
        worker.condemn(EndCause.CANCEL_OVERDUE, silent_seconds=seconds)

    def _free(self, lease: Lease) -> None:
        if lease.is_seat_free:
            return
        lease.is_seat_free = True
        if lease.overdue is not None:
            lease.overdue.cancel()
        lease.member.leases[lease.lane] -= 1
        self._settle(lease.member)
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
