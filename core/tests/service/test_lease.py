"""A lease is used once and given back once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cardcage.scheduling.queue import Lane
from cardcage_sdk.errors import InternalError
from cardcage_sdk.events import Accepted, Finished, TextDelta


async def test_a_second_release_is_a_fault_and_frees_nothing(cage):
    await cage.load("one", "scripted-batch")
    seats = cage.service._residency.get("one").pool.seats
    ticket = seats.enter("r", Lane.CHAT)
    seats.line_up(ticket)
    assert ticket.lease is not None
    assert seats.free(Lane.CHAT) == 0
    ticket.lease.release()
    assert seats.free(Lane.CHAT) == 1
    with pytest.raises(InternalError, match="released twice"):
        ticket.lease.release()
    assert seats.free(Lane.CHAT) == 1
    request = cage.request("one")
    with pytest.raises(InternalError, match="after its release"):
        await anext(ticket.lease.chat(request, None))
    assert await cage.text("one")


async def test_a_slow_reader_holds_no_seat_and_is_no_hang(make_cage):
    cage = make_cage(supervision={"hang_floor_seconds": 0.05, "unmeasured_prefill_tokens_per_second": 1000.0})
    await cage.load("one", "scripted-batch", answer="a few words to read")
    async with aclosing(cage.service.chat(cage.request("one"))) as slow:
        assert isinstance(await anext(slow), Accepted)
        assert isinstance(await anext(slow), TextDelta)
        # The engine has said it all; the next request is served while the first client has not read its answer.
        assert await cage.text("one") == "a few words to read"
        assert cage.service.model("one").running == 0
        await asyncio.sleep(0.3)  # several deadlines of the watchdog
        rest = [event async for event in slow]
    assert isinstance(rest[-1], Finished)
    assert cage.supervisor.counters.hung == 0
