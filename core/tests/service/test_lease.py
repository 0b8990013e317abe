"""A lease is used once and given back once."""

from __future__ import annotations

import pytest

from cardcage.scheduling.queue import Lane
from cardcage_sdk.errors import InternalError


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
        ticket.lease.chat(request, None)
    assert await cage.text("one")
