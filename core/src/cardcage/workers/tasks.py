"""Work that goes on beside whoever started it, kept alive and never failing in silence; and news that several wait for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["Pulse", "TaskSet", "first_of"]

ResultT = TypeVar("ResultT")


class TaskSet:
    """Tasks of one owner. The loop itself holds tasks only weakly, so somebody has to hold them."""

    def __init__(self, owner: str) -> None:
        self._log = structlog.get_logger("cardcage.tasks").bind(owner=owner)
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Start it now; an exception that escapes it is logged with its traceback."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def see_through(self, work: Coroutine[Any, Any, ResultT], *, name: str) -> ResultT:
        """Await work that goes on to its end when the caller leaves; what it raises is the caller's, if it is still there."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._seen_through)
        return await asyncio.shield(task)

    async def wait(self) -> None:
        """Return when all tasks have ended, those included that they start meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Cancel all tasks and return when they have ended."""
        for task in self._tasks:
            task.cancel()
        await self.wait()

    def _seen_through(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.info("background task ended with an error", task=task.get_name(), error=str(error))

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("background task failed", task=task.get_name(), exc_info=error)


class Pulse:
    """News without a state: whoever waits is woken by what comes after it began to wait, which is at the call of `next`."""

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def next(self) -> asyncio.Future[None]:
        """A future that resolves at the next `tell`."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def tell(self) -> None:
        """Wake everyone."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


async def first_of(*futures: asyncio.Future[Any], timeout_seconds: float | None = None) -> None:
    """Return when one of them is done, or after the time-out; none of them is cancelled or read."""
    await asyncio.wait(futures, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
