"""Between the service's events and the bytes of a response body, for dialects.

A generator of the service runs in one task from start to end (`EventPump`), because time-outs and context variables in it
belong to a task, and because waiting for an event with a time limit must not cancel it. A response body (`OwnedBody`) closes
what it reads from even when it was never started.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

__all__ = ["END", "SILENCE", "EventPump", "Marker", "OwnedBody"]

Item = TypeVar("Item")

_MAX_WAITING = 32
"""Events that wait for a slow client; behind that the service's own bounds hold the worker back."""


class Marker:
    """A value that is no event."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


END: Final = Marker("END")
SILENCE: Final = Marker("SILENCE")


@dataclass(slots=True)
class _Channel(Generic[Item]):
    """What pump task and reader share; the task knows nothing else, so a pump that nobody holds can be collected."""

    events: deque[Item] = field(default_factory=deque)
    is_done: bool = False
    error: BaseException | None = None
    reader: asyncio.Future[None] | None = None
    space: asyncio.Future[None] | None = None


def _wake(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)


async def _run(source: AsyncGenerator[Item, None], channel: _Channel[Item]) -> None:
    try:
        async with contextlib.aclosing(source):
            async for event in source:
                channel.events.append(event)
                _wake(channel.reader)
                while len(channel.events) >= _MAX_WAITING:
                    channel.space = asyncio.get_running_loop().create_future()
                    await channel.space
    except Exception as error:  # noqa: BLE001 - carried to the reader, which raises it in the request's own task
        channel.error = error
    finally:
        channel.is_done = True
        _wake(channel.reader)


class EventPump(Generic[Item]):
    """Runs a generator of the service in a task of its own and hands out its events in order.

    One reader only. `aclose` must be called; a pump that is collected without it cancels its task all the same.
    """

    def __init__(self, source: AsyncGenerator[Item, None]) -> None:
        self._channel: _Channel[Item] = _Channel()
        self._task = asyncio.create_task(_run(source, self._channel))

    async def next(self, timeout_seconds: float | None = None) -> Item | Marker:
        """The next event, `END` after the last one, or `SILENCE` when none came in time.

        Raises:
            CardcageError: What the service raised, after all events before it.
        """
        channel = self._channel
        if not channel.events and not channel.is_done:
            loop = asyncio.get_running_loop()
            channel.reader = loop.create_future()
            timer = (
                None if timeout_seconds is None else loop.call_later(max(0.0, timeout_seconds), _wake, channel.reader)
            )
            try:
                await channel.reader
            finally:
                channel.reader = None
                if timer is not None:
                    timer.cancel()
        if channel.events:
            event = channel.events.popleft()
            _wake(channel.space)
            return event
        if not channel.is_done:
            return SILENCE
        if channel.error is not None:
            raise channel.error
        return END

    async def aclose(self) -> None:
        """End the generator, wherever it is, and return when it has ended. May be called again."""
        self._task.cancel()
        await asyncio.wait([self._task])

    def __del__(self) -> None:
        """Between handler and body Quart awaits; a client that leaves right there leaves nobody who would close this."""
        if not self._task.done() and not self._task.get_loop().is_closed():
            self._task.cancel()


class OwnedBody:
    """A response body that closes its source whether or not anybody began to read it.

    Closing an async generator that was never started runs none of its code, so a `finally` in it would not be enough.
    """

    def __init__(self, chunks: AsyncGenerator[bytes, None], close: Callable[[], Awaitable[None]]) -> None:
        self._chunks = chunks
        self._close = close

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        return await self._chunks.__anext__()

    async def aclose(self) -> None:
        """Close the chunks, then what they read from. Called by Quart at the end and when the client leaves."""
        try:
            await self._chunks.aclose()
        finally:
            await self._close()
