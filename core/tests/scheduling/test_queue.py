"""The queue: places, order, positions, time."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardcage.scheduling.queue import Lane, RequestQueue, lane_of
from cardcage_sdk.capabilities import Task
from cardcage_sdk.errors import DrainingError, QueueFullError, QueueTimeoutError


def soon():
    return asyncio.get_running_loop().time() + 30.0


async def lined_up(queue, name, lane=Lane.CHAT):
    ticket = queue.enter(name, lane, free_seats=0)
    queue.line_up(ticket)
    return ticket


def test_lanes_of_tasks():
    assert [lane_of(task) for task in (Task.CHAT, Task.EMBED, Task.RERANK)] == [Lane.CHAT, Lane.BATCH, Lane.BATCH]


async def test_first_come_first_served_with_positions():
    queue: RequestQueue[str] = RequestQueue("m", places=5)
    tickets = [await lined_up(queue, name) for name in "abc"]
    assert [ticket.position for ticket in tickets] == [0, 1, 2]
    queue.leave(tickets[1])
    assert tickets[2].position == 1
    assert queue.next(Lane.CHAT) is tickets[0]
    assert tickets[2].position == 0
    assert queue.next(Lane.BATCH) is None


async def test_lanes_do_not_stand_in_each_others_way():
    queue: RequestQueue[str] = RequestQueue("m", places=5)
    await lined_up(queue, "chat")
    embedding = await lined_up(queue, "embed", Lane.BATCH)
    assert embedding.position == 0
    assert queue.next(Lane.BATCH) is embedding
    assert queue.waiting == 1


async def test_those_being_prepared_hold_a_place():
    queue: RequestQueue[str] = RequestQueue("m", places=2)
    first = queue.enter("a", Lane.CHAT, free_seats=0)
    queue.enter("b", Lane.BATCH, free_seats=0)
    with pytest.raises(QueueFullError):
        queue.enter("c", Lane.CHAT, free_seats=0)
    queue.leave(first)
    queue.enter("c", Lane.CHAT, free_seats=0)
    assert queue.held == 2
    assert queue.waiting == 0


@given(places=st.integers(0, 6), seats=st.integers(0, 6), comers=st.integers(0, 20))
def test_as_many_are_let_in_as_there_are_seats_and_places(places, seats, comers):
    queue: RequestQueue[str] = RequestQueue("m", places=places)
    let_in = 0
    for number in range(comers):
        try:
            queue.enter(str(number), Lane.CHAT, free_seats=seats)
        except QueueFullError:
            continue
        let_in += 1
    assert let_in == min(comers, places + seats)


async def test_turn_tells_positions_and_then_the_lease():
    queue: RequestQueue[str] = RequestQueue("m", places=5)
    first, second = [await lined_up(queue, name) for name in "ab"]
    assert await queue.turn(second, deadline=soon(), told=None) == 1
    news = asyncio.create_task(queue.turn(second, deadline=soon(), told=1))
    await asyncio.sleep(0)
    queue.leave(first)
    assert await news == 0
    granted = queue.next(Lane.CHAT)
    assert granted is second
    granted.grant("lease")
    assert await queue.turn(second, deadline=soon(), told=0) is None
    assert second.lease == "lease"


async def test_a_wait_ends_at_its_deadline_unless_the_lease_came():
    queue: RequestQueue[str] = RequestQueue("m", places=5)
    ticket = await lined_up(queue, "a")
    past = asyncio.get_running_loop().time()
    with pytest.raises(QueueTimeoutError):
        await queue.turn(ticket, deadline=past, told=0)
    ticket.grant("lease")
    assert await queue.turn(ticket, deadline=past, told=0) is None


async def test_a_flush_tells_everyone_an_error_of_their_own():
    queue: RequestQueue[str] = RequestQueue("m", places=5)
    tickets = [await lined_up(queue, name) for name in "ab"]
    assert queue.flush(DrainingError("over")) == 2
    errors = []
    for ticket in tickets:
        with pytest.raises(DrainingError, match="over") as caught:
            await queue.turn(ticket, deadline=soon(), told=0)
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert queue.held == 0
