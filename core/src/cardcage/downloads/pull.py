"""One pull: a caller's wish, from the name to the model in the store, and those who watch it."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

from cardcage_sdk.library import PullProgress, PullRequest, PullState, StoredModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from cardcage.downloads.job import Job
    from cardcage_sdk.errors import CardcageError

__all__ = ["Pull"]

FRAME_SECONDS = 0.1
"""At most this often a watcher is told of bytes; a change of state is told at once."""


class Pull:
    """State of one pull. Lives in the event loop; the work is a task of `Downloads`.

    Attributes:
        leader: Another pull that fetches the very same files; then its progress is this one's.
    """

    def __init__(self, request: PullRequest, *, shown: str) -> None:
        """A pull that has not begun.

        Args:
            request: As it was made.
            shown: Its model for lists and logs: without what an address may hold of keys.
        """
        self.id = secrets.token_hex(8)
        self.request = request
        self.shown = shown
        self.state: PullState = "resolving"
        self.origin: str | None = None
        self.job: Job | None = None
        self.leader: Pull | None = None
        self.result: StoredModel | None = None
        self.is_new = True
        self.error: CardcageError | None = None
        self.task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def touch(self) -> None:
        """Wake whoever waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    def enter(self, state: PullState) -> None:
        """Change the state."""
        self.state = state
        self.touch()

    def end(
        self,
        state: PullState,
        *,
        result: StoredModel | None = None,
        error: CardcageError | None = None,
        is_new: bool = True,
    ) -> None:
        """Reach a final state."""
        self.result = result
        self.error = error
        self.is_new = is_new
        self.enter(state)

    def progress(self) -> PullProgress:
        """The whole state, now."""
        worker = self.leader or self
        files = worker.job.progress() if worker.job is not None else ()
        state = self.state
        if state == "downloading" and worker.job is not None and worker.job.is_checking:
            state = "checking"
        own = PullProgress(
            id=self.id,
            model=self.shown,
            state=state,
            source=self.origin,
            files=files,
            completed_bytes=sum(file.completed_bytes for file in files),
            total_bytes=sum(file.total_bytes or file.completed_bytes for file in files),
            result=self.result,
            is_new=self.is_new,
            error=self.error,
        )
        if self.result is not None and not files:
            return replace(own, completed_bytes=self.result.size_bytes, total_bytes=self.result.size_bytes)
        return own

    async def watch(self) -> AsyncGenerator[PullProgress, None]:
        """Every change, at most every `FRAME_SECONDS`; the last value is final. Leaving changes nothing."""
        loop = asyncio.get_running_loop()
        while True:
            changed = [self._changed, *([self.leader._changed] if self.leader else [])]  # noqa: SLF001 - of this class
            seen = self.progress()
            told_at = loop.time()
            yield seen
            if seen.is_final:
                return
            await _any_of(changed)
            # Bytes come in by the megabyte; a state is told as soon as it is reached.
            while self.progress().state == seen.state and (rest := told_at + FRAME_SECONDS - loop.time()) > 0:
                waiter = [self._changed, *([self.leader._changed] if self.leader else [])]  # noqa: SLF001
                try:
                    async with asyncio.timeout(rest):
                        await _any_of(waiter)
                except TimeoutError:
                    break


async def _any_of(events: list[asyncio.Event]) -> None:
    if len(events) == 1:
        await events[0].wait()
        return
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
