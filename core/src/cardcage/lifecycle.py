"""Start and stop of what is served, in the right order and once, whoever runs the event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import structlog

from cardcage.lock import DataDirLock
from cardcage_sdk.service import Service

if TYPE_CHECKING:
    from cardcage.config import Config

__all__ = ["Lifecycle", "ManagedService"]

log = structlog.get_logger("cardcage.lifecycle")


class ManagedService(Service, Protocol):
    """A service that core starts and stops."""

    async def start(self) -> None:
        """Begin to serve; models of the configuration are loaded in the background."""
        ...

    def begin_draining(self) -> None:
        """Refuse new work with `DrainingError` from now on."""
        ...

    async def drain(self, timeout_seconds: float) -> None:
        """Wait for running requests, then end the rest with `DrainingError`."""
        ...

    async def stop(self) -> None:
        """End every worker; returns when all have ended."""
        ...


class Lifecycle:
    """One server's life: locked and started, draining, stopped.

    Attributes:
        service: What is started and stopped.
        lock: The lock on the data directory once it is held.
    """

    def __init__(self, *, config: Config, service: ManagedService) -> None:
        self.service = service
        self.lock: DataDirLock | None = None
        self._config = config
        self._draining = False
        self._hurry = asyncio.Event()
        self._shutdown: asyncio.Task[None] | None = None

    @property
    def is_draining(self) -> bool:
        """No new work is taken any more."""
        return self._draining

    async def start(self) -> None:
        """Lock the data directory unless `serve` has done so already, and start the service.

        Raises:
            DataDirInUseError: Another server uses it.
        """
        if self.lock is None:
            self.lock = DataDirLock.acquire(self._config.data_dir)
        await self.service.start()

    async def shutdown(self) -> None:
        """Refuse new work, let running requests end for `shutdown_seconds`, end the rest, end the workers.

        Whoever calls it, and however often, it happens once; every caller returns when it is done.
        """
        if self._shutdown is None:
            self._draining = True
            self.service.begin_draining()
            self._shutdown = asyncio.create_task(self._run_shutdown())
        await asyncio.shield(self._shutdown)

    def hurry(self) -> None:
        """Stop waiting for running requests; they end with an error now."""
        self._hurry.set()

    async def _run_shutdown(self) -> None:
        timeout = self._config.server.shutdown_seconds
        log.info("draining", at_most_seconds=timeout)
        drain = asyncio.create_task(self.service.drain(timeout))
        hurry = asyncio.create_task(self._hurry.wait())
        try:
            await asyncio.wait({drain, hurry}, return_when=asyncio.FIRST_COMPLETED)
            if not drain.done():
                log.warning("second signal: running requests are ended now")
                drain.cancel()
                await asyncio.wait({drain})
                await self.service.drain(0)
            elif (error := drain.exception()) is not None:
                log.error("draining failed", exc_info=error)
        finally:
            hurry.cancel()
            await self.service.stop()
            if self.lock is not None:
                self.lock.release()
        log.info("all workers have ended")
