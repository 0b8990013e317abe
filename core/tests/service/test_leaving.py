"""Clients that leave at any moment: nothing of them may stay."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing

import pytest

from cardcage_sdk.embeddings import EmbedRequest
from cardcage_sdk.errors import QueueFullError

LEAVINGS = 1000


async def leave_at_random(cage, model, dice):
    """Read some events, or be cancelled at some moment, or stay to the end."""
    request = cage.request(model, f"client {dice.random()}")
    how = dice.choice(["close", "cancel", "stay"])
    try:
        if how == "cancel":
            task = asyncio.create_task(cage.events(request))
            await asyncio.sleep(dice.random() * 0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return how
        wanted = dice.randrange(8) if how == "close" else None
        async with aclosing(cage.service.chat(request)) as events:
            if wanted == 0:
                return how
            async for _ in events:
                if wanted is not None:
                    wanted -= 1
                    if wanted == 0:
                        return how
    except QueueFullError:
        return "full"
    return how


@pytest.mark.parametrize("shape", ["scripted", "scripted-batch"])
async def test_a_thousand_random_leavings_lose_no_lease(cage, shape):
    await cage.load("one", shape, instances=2, places=8, delay_seconds=0.002, prefill_steps=2, answer="word " * 6)
    pids = sorted(cage.pids("one"))
    dice = random.Random(20261201)
    left = dict.fromkeys(["close", "cancel", "stay", "full"], 0)

    async def client():
        while left["close"] + left["cancel"] < LEAVINGS:
            left[await leave_at_random(cage, "one", dice)] += 1

    await asyncio.gather(*(client() for _ in range(16)))
    await cage.until(lambda: cage.service.model("one").running == 0)
    assert cage.service.model("one").queued == 0
    assert cage.service.active_requests == 0
    assert min(left["close"], left["cancel"], left["stay"]) > 100
    assert sorted(cage.pids("one")) == pids
    # Every seat is there, of the same workers: so many run at once, and one more has to wait.
    seats = 16 if shape == "scripted" else 2
    last = [asyncio.create_task(cage.text("one", "again")) for _ in range(seats + 1)]
    await cage.until(lambda: cage.service.model("one").running == seats and cage.service.model("one").queued == 1)
    assert await asyncio.gather(*last) == ["word word word word word word "] * (seats + 1)


@pytest.mark.parametrize("shape", ["scripted", "scripted-batch"])
@pytest.mark.parametrize("moment", ["queued", "prefill", "decode"])
async def test_leaving_frees_the_client_at_once_and_the_instance_soon(cage, shape, moment):
    members = {"prefill_steps": 400} if moment == "prefill" else {}
    await cage.load("one", shape, delay_seconds=0.01, answer="word " * 400, **members)
    capacity = 8 if shape == "scripted" else 1
    holders = [
        asyncio.create_task(cage.events(cage.request("one"))) for _ in range(capacity if moment == "queued" else 0)
    ]
    await cage.until(lambda: cage.service.model("one").running == len(holders))
    async with aclosing(cage.service.chat(cage.request("one"))) as events:
        await anext(events)
        if moment != "queued" and not (moment == "prefill" and shape == "scripted"):
            await anext(events)
        began = time.monotonic()
    for holder in holders:
        holder.cancel()
    await cage.until(lambda: (status := cage.service.model("one")).running == 0 and status.queued == 0)
    assert time.monotonic() - began < 0.5
    await asyncio.gather(*holders, return_exceptions=True)


async def test_leaving_an_embedding(cage):
    await cage.load("one", "scripted", tasks=["embed"])
    tasks = [
        asyncio.create_task(cage.service.embed(EmbedRequest(id=f"e{number}", model="one", inputs=("a",) * 500)))
        for number in range(50)
    ]
    for number, task in enumerate(tasks):
        await asyncio.sleep(0)
        if number % 2:
            task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(1 for outcome in outcomes if not isinstance(outcome, BaseException)) >= 20
    await cage.until(lambda: cage.service.model("one").running == 0)
