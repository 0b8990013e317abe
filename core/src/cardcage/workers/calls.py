"""The calls that run on one worker, and the watchdog over their progress."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from cardcage.workers.tasks import first_of
from cardcage.workers.watchdog import CallProgress, progress_deadline
from cardcage_sdk.errors import CardcageError, EngineHungError, WorkerProtocolError
from cardcage_sdk.ipc.client import WorkerLostError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cardcage.workers.settings import SupervisionSettings
    from cardcage_sdk.events import ChatEvent
    from cardcage_sdk.ipc.client import WorkerStats

__all__ = ["Call", "Calls"]

ResultT = TypeVar("ResultT")


class Call:
    """One request that runs on a worker: its progress, and a way to end it from outside.

    Attributes:
        waits_since: Event-loop time at which it began to wait for the worker's next answer. None while it does not wait:
            its client has not taken the last event yet, and the worker owes it nothing.
    """

    def __init__(self, progress: CallProgress) -> None:
        self.progress = progress
        self.waits_since: float | None = None
        self._timer: asyncio.Timeout | None = None
        self._interruption: CardcageError | None = None

    def interrupt(self, error: CardcageError) -> None:
        """End the call with this error in its present wait, or else in its next one."""
        self._interruption = error
        if self._timer is not None and not self._timer.expired():
            self._timer.reschedule(asyncio.get_running_loop().time())

    async def wait(self, start: Callable[[], Awaitable[ResultT]], *, seconds: float) -> ResultT:
        """Await one answer of the worker.

        Raises:
            TimeoutError: None came within so many seconds.
            CardcageError: What `interrupt` was called with.
        """
        self._raise_interruption()
        self.waits_since = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(seconds) as self._timer:
                return await start()
        except (TimeoutError, WorkerLostError):
            self._raise_interruption()
            raise
        finally:
            self._timer = None
            self.waits_since = None

    def _raise_interruption(self) -> None:
        if self._interruption is not None:
            raise self._interruption


class Calls:
    """All calls of one worker.

    A worker hangs when a call waits for it and it shows no progress: no event of any call, and no engine step. A ping's
    answer shows that the process is alive, which is another matter.

    Attributes:
        prefill_tokens_per_second: As the worker last measured it, or None.
    """

    def __init__(self, model: str, settings: SupervisionSettings) -> None:
        self.prefill_tokens_per_second: float | None = None
        self._model = model
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._running: set[Call] = set()
        self._are_any = asyncio.Event()
        self._progress_at = 0.0
        self._steps_seen = 0

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, *, prompt_tokens: int) -> Call:
        """A call starts; `finish` is to be called with it in the end."""
        call = Call(CallProgress(prompt_tokens=prompt_tokens, last_at=self._loop.time()))
        self._running.add(call)
        self._are_any.set()
        return call

    def finish(self, call: Call) -> None:
        """The call has ended. No sign of progress: a prepare ends on a thread of its own beside a hung generation."""
        self._running.remove(call)
        if not self._running:
            self._are_any.clear()

    def saw(self, call: Call, event: ChatEvent) -> None:
        """An event came."""
        call.progress.saw(event, now=self._loop.time())
        self._progress_at = call.progress.last_at

    def interrupt_all(self, error: CardcageError) -> None:
        """End every call with this error."""
        for call in list(self._running):
            call.interrupt(error)

    async def wait(self, call: Call, start: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Await one answer for a call, no longer than one request may be silent while its worker goes on.

        Raises:
            EngineHungError: It was silent for too long.
            WorkerLostError: The worker's pipe ended.
            CardcageError: What the engine said, or what the call was interrupted with.
        """
        seconds = self._deadline(call.progress.remaining_tokens) * self._settings.stall_factor
        try:
            return await call.wait(start, seconds=seconds)
        except TimeoutError:
            raise EngineHungError(self._model, seconds=round(seconds, 3)) from None

    async def watch(self, *, ping: Callable[[], Awaitable[WorkerStats]], end: asyncio.Future[Any]) -> float | None:
        """Watch until the worker hangs or has ended; sleeps while nothing runs.

        Args:
            ping: Asks the worker for its count of engine steps.
            end: Resolves when the worker has ended.

        Returns:
            Seconds of silence that were too many, or None when it has ended.
        """
        while not end.done():
            if not self._running:
                some = asyncio.ensure_future(self._are_any.wait())
                await first_of(some, end)
                some.cancel()
                continue
            deadline = self._deadline(sum(call.progress.remaining_tokens for call in self._running))
            silent = self._silent_seconds()
            if silent >= deadline:
                return silent
            # A quarter of the floor at most, so that a step is noticed, and a rate learnt, long before the deadline.
            pause = min(max(deadline - silent, 0.01), self._settings.hang_floor_seconds / 4)
            await first_of(end, timeout_seconds=pause)
            if self._running and not end.done():
                await self._look_for_steps(ping, timeout_seconds=pause)
        return None

    def _silent_seconds(self) -> float:
        """How long the worker has owed an answer without any progress."""
        waiting = [call.waits_since for call in self._running if call.waits_since is not None]
        if not waiting:
            return 0.0
        return self._loop.time() - max(self._progress_at, min(waiting))

    def _deadline(self, remaining_tokens: int) -> float:
        return progress_deadline(
            self._settings,
            remaining_tokens=remaining_tokens,
            prefill_tokens_per_second=self.prefill_tokens_per_second,
        )

    async def _look_for_steps(self, ping: Callable[[], Awaitable[WorkerStats]], *, timeout_seconds: float) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                stats = await ping()
        except (TimeoutError, WorkerLostError, WorkerProtocolError):
            # No answer proves nothing yet: vendor code may hold the interpreter's lock through a long prefill.
            return
        if stats.steps != self._steps_seen:
            self._steps_seen = stats.steps
            self._progress_at = self._loop.time()
        if stats.prefill_tokens_per_second:
            self.prefill_tokens_per_second = stats.prefill_tokens_per_second
