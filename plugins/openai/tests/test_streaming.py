"""The pump between the service's generator and a response body, on a real event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncGenerator

import pytest

from cardcage_dialect_openai.streaming import END, SILENCE, EventPump, OwnedBody
from cardcage_sdk.errors import EngineCrashedError


class Source:
    """A generator that records how it ended and yields when told."""

    def __init__(self, events: list[str], *, then: BaseException | str = "end") -> None:
        self.ended = asyncio.Event()
        self.yielded = 0
        self.go_on = asyncio.Event()
        self._events = events
        self._then = then

    async def run(self) -> AsyncGenerator[str, None]:
        try:
            # A time-out across yields works only where one task runs the whole generator.
            async with asyncio.timeout(30):
                for event in self._events:
                    self.yielded += 1
                    yield event
                if isinstance(self._then, BaseException):
                    raise self._then
                if self._then == "wait":
                    await self.go_on.wait()
                    yield "late"
        finally:
            await asyncio.sleep(0)  # closing may await
            self.ended.set()


async def test_events_in_order_then_the_end() -> None:
    source = Source(["a", "b", "c"])
    pump = EventPump(source.run())
    assert [await pump.next() for _ in range(5)] == ["a", "b", "c", END, END]
    assert source.ended.is_set()
    await pump.aclose()


async def test_an_error_comes_after_all_events_before_it() -> None:
    pump = EventPump(Source(["a"], then=EngineCrashedError("m", signal="SIGSEGV")).run())
    assert await pump.next() == "a"
    with pytest.raises(EngineCrashedError):
        await pump.next()
    await pump.aclose()


async def test_waiting_in_vain_does_not_disturb_the_source() -> None:
    source = Source(["a"], then="wait")
    pump = EventPump(source.run())
    assert await pump.next(0.001) == "a"
    assert [await pump.next(0.001) for _ in range(3)] == [SILENCE] * 3
    source.go_on.set()
    assert [await pump.next(30), await pump.next(30)] == ["late", END]
    await pump.aclose()


async def test_a_slow_reader_holds_the_source_back_and_loses_nothing() -> None:
    names = [str(number) for number in range(500)]
    source = Source(names)
    pump = EventPump(source.run())
    for _ in range(1000):
        await asyncio.sleep(0)
    assert source.yielded < 100
    seen = []
    while (event := await pump.next()) is not END:
        seen.append(event)
    assert seen == names
    await pump.aclose()


@pytest.mark.parametrize("read", [0, 1, 2])
async def test_closing_ends_the_source_wherever_it_is(read: int) -> None:
    source = Source(["a", "b"], then="wait")
    pump = EventPump(source.run())
    for _ in range(read):
        await pump.next()
    await asyncio.sleep(0)
    await pump.aclose()
    assert source.yielded == 0 or source.ended.is_set()
    await pump.aclose()
    assert await pump.next() in {"a", "b", END}


async def test_a_reader_that_is_cancelled_leaves_the_pump_usable() -> None:
    source = Source([], then="wait")
    pump = EventPump(source.run())
    reader = asyncio.create_task(pump.next())
    await asyncio.sleep(0)
    reader.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reader
    source.go_on.set()
    assert await pump.next() == "late"
    await pump.aclose()


async def test_a_pump_that_nobody_holds_ends_its_source() -> None:
    source = Source(["a"], then="wait")
    pump = EventPump(source.run())
    assert await pump.next() == "a"
    del pump
    gc.collect()
    await asyncio.wait_for(source.ended.wait(), 30)


async def test_a_body_that_was_never_read_closes_what_it_owns() -> None:
    source = Source(["a"], then="wait")
    pump = EventPump(source.run())
    assert await pump.next() == "a"

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"never"

    body = OwnedBody(chunks(), pump.aclose)
    await body.aclose()
    assert source.ended.is_set()


async def test_a_body_closes_its_chunks_first() -> None:
    order = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            yield b"1"
            yield b"2"
        finally:
            order.append("chunks")

    async def close() -> None:
        order.append("source")

    body = OwnedBody(chunks(), close)
    assert [chunk async for chunk in body][:1] == [b"1"]
    await body.aclose()
    assert order == ["chunks", "source"]
