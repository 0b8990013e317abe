"""The queue of one pool: first come first served, bounded in places and in time, position known.

Everything happens in the event loop's thread; nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from typing import Generic, TypeVar

from cardcage_sdk.capabilities import Task
from cardcage_sdk.errors import CardcageError, InternalError, QueueFullError, QueueTimeoutError, from_wire

__all__ = ["Lane", "RequestQueue", "Ticket", "fresh_error", "lane_of"]

LeaseT = TypeVar("LeaseT")


class Lane(StrEnum):
    """What kind of seat a request needs. Each lane is first come first served of its own."""

    CHAT = "chat"
    """Generation: admitted by instances."""
    BATCH = "batch"
    """Embedding and rerank: admitted by the declared number in flight, so that an engine can batch across requests."""


def lane_of(task: Task) -> Lane:
    """The lane that a task is admitted by."""
    return Lane.CHAT if task is Task.CHAT else Lane.BATCH


class Ticket(Generic[LeaseT]):
    """One request's place, from the moment it is let in until it leaves.

    It first only holds a place (while the request is prepared), then stands in line, then has a lease.

    Attributes:
        request_id: The request that it belongs to.
        lane: The kind of seat that it waits for.
        lease: The lease once it was granted, else None.
        error: What ended its wait, else None.
        lined_up_at: Event-loop time in seconds at which it was put in line.
        position: Requests of its lane ahead of it while it stands in line, else None.
    """

    def __init__(self, request_id: str, lane: Lane) -> None:
        self.request_id = request_id
        self.lane = lane
        self.lease: LeaseT | None = None
        self.error: CardcageError | None = None
        self.lined_up_at = 0.0
        self.position: int | None = None
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"Ticket({self.request_id!r}, lane={self.lane.value}, position={self.position}, lease={self.lease!r})"

    @property
    def is_settled(self) -> bool:
        """It has a lease or was refused."""
        return self.lease is not None or self.error is not None

    def move_to(self, position: int) -> None:
        """Tell the waiting request its new position."""
        if position != self.position:
            self.position = position
            self._changed.set()

    def grant(self, lease: LeaseT) -> None:
        """Give it the lease that it waits for."""
        self.lease = lease
        self.position = None
        self._changed.set()

    def refuse(self, error: CardcageError) -> None:
        """End its wait with an error."""
        self.error = error
        self.position = None
        self._changed.set()

    async def change(self) -> None:
        """Return when position, lease or error may have changed since the last call."""
        await self._changed.wait()
        self._changed.clear()


def fresh_error(error: CardcageError) -> CardcageError:
    """The same error as an instance of its own: one that several tasks raised would collect all their tracebacks."""
    return from_wire(error.to_wire())


class RequestQueue(Generic[LeaseT]):
    """Requests of one pool that have no seat yet.

    Attributes:
        places: Most requests that may wait; those being prepared count.
    """

    def __init__(self, model: str, *, places: int) -> None:
        self.model = model
        self.places = places
        self._entering: dict[Lane, set[Ticket[LeaseT]]] = {lane: set() for lane in Lane}
        self._lines: dict[Lane, deque[Ticket[LeaseT]]] = {lane: deque() for lane in Lane}

    @property
    def waiting(self) -> int:
        """Requests that stand in line."""
        return sum(len(line) for line in self._lines.values())

    @property
    def held(self) -> int:
        """Requests that hold a place: in line, or still being prepared."""
        return self.waiting + sum(len(entering) for entering in self._entering.values())

    def enter(self, request_id: str, lane: Lane, *, free_seats: int) -> Ticket[LeaseT]:
        """Let a request in, before it is prepared.

        Args:
            request_id: The request.
            lane: What it waits for.
            free_seats: Seats of that lane that are free now; a request that will get one at once needs no place.

        Raises:
            QueueFullError: Every place is held.
        """
        before = len(self._entering[lane]) + len(self._lines[lane])
        if before >= free_seats and self.held - free_seats >= self.places:
            raise QueueFullError(self.model, places=self.places)
        ticket: Ticket[LeaseT] = Ticket(request_id, lane)
        self._entering[lane].add(ticket)
        return ticket

    def line_up(self, ticket: Ticket[LeaseT]) -> None:
        """Put a request that was prepared at the end of its line."""
        self._entering[ticket.lane].remove(ticket)
        line = self._lines[ticket.lane]
        line.append(ticket)
        ticket.lined_up_at = asyncio.get_running_loop().time()
        ticket.move_to(len(line) - 1)

    def next(self, lane: Lane) -> Ticket[LeaseT] | None:
        """Take the first of a line out of it, for the caller to grant it a lease."""
        line = self._lines[lane]
        if not line:
            return None
        ticket = line.popleft()
        self._renumber(lane)
        return ticket

    def leave(self, ticket: Ticket[LeaseT]) -> None:
        """Give up the place of a ticket that has no lease; does nothing where it has none any more."""
        self._entering[ticket.lane].discard(ticket)
        line = self._lines[ticket.lane]
        if ticket in line:
            line.remove(ticket)
            self._renumber(ticket.lane)

    def flush(self, error: CardcageError) -> int:
        """Refuse everyone who stands in line; returns how many. Those being prepared find out when they line up."""
        flushed = 0
        for line in self._lines.values():
            while line:
                line.popleft().refuse(error)
                flushed += 1
        return flushed

    async def turn(self, ticket: Ticket[LeaseT], *, deadline: float, told: int | None) -> int | None:
        """Wait for news of a ticket that has lined up.

        Args:
            ticket: The ticket.
            deadline: Event-loop time at which the wait ends.
            told: Position that the client knows, or None.

        Returns:
            A position other than `told`, or None when the ticket has a lease.

        Raises:
            QueueTimeoutError: The deadline passed.
            CardcageError: What the queue was flushed with.
        """
        loop = asyncio.get_running_loop()
        while True:
            if ticket.error is not None:
                raise fresh_error(ticket.error)
            if ticket.lease is not None:
                return None
            if ticket.position is None:
                raise InternalError("a ticket waits for its turn outside of any line")
            if ticket.position != told:
                return ticket.position
            try:
                async with asyncio.timeout_at(deadline):
                    await ticket.change()
            except TimeoutError:
                # A lease granted in the same turn of the loop wins: it would have to be given back otherwise.
                if not ticket.is_settled:
                    waited = loop.time() - ticket.lined_up_at
                    raise QueueTimeoutError(self.model, waited_seconds=round(waited, 3)) from None

    def _renumber(self, lane: Lane) -> None:
        for place, ticket in enumerate(self._lines[lane]):
            ticket.move_to(place)
