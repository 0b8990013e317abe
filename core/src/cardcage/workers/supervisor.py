"""Starts workers, helps one over a bad start, shares the cores out between them and ends them all."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import TYPE_CHECKING

import structlog

from cardcage.scheduling.placement import thread_shares
from cardcage.workers.instance import Worker
from cardcage.workers.life import Death, EndCause, WorkerSpec
from cardcage.workers.memory import MemoryReader, MemorySample
from cardcage.workers.settings import SupervisionSettings
from cardcage.workers.tasks import TaskSet
from cardcage_sdk.errors import CardcageError, LoadFailedError, OutOfMemoryError
from cardcage_sdk.hardware.cpu import read_cpu
from cardcage_sdk.options import validate_options

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Started", "Supervisor", "WorkerCounters"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A worker that is ready.

    Attributes:
        spec: What it loaded; differs from what was asked where a recovery changed the options.
        note: What that recovery changed and costs, or None.
    """

    worker: Worker
    spec: WorkerSpec
    note: str | None = None


@dataclasses.dataclass(slots=True)
class WorkerCounters:
    """Events since the server started, for metrics."""

    started: int = 0
    ready: int = 0
    failed_before_ready: int = 0
    crashed: int = 0
    hung: int = 0
    cancel_overdue: int = 0
    recovered: int = 0
    replaced: int = 0


def _ignore(_worker: Worker, _seconds: float) -> None:
    """Nobody wants to know."""


class Supervisor:
    """All workers of one server, as an object of the event loop.

    Attributes:
        settings: Deadlines and bounds.
        memory: Where free memory is read.
        counters: For metrics.
        on_ready: Called in the loop when a worker is ready, with the seconds since its start.
    """

    def __init__(
        self,
        settings: SupervisionSettings | None = None,
        *,
        memory: MemoryReader | None = None,
        cores: int | None = None,
    ) -> None:
        self.settings = settings or SupervisionSettings()
        self.memory = memory or MemoryReader()
        self.counters = WorkerCounters()
        self.on_ready: Callable[[Worker, float], None] = _ignore
        self._cores = cores or read_cpu().usable
        self._numbers = itertools.count(1)
        self._workers: dict[int, Worker] = {}
        self._log = structlog.get_logger("cardcage.supervisor")
        self._tasks = TaskSet("supervisor")

    @property
    def workers(self) -> tuple[Worker, ...]:
        """All that live, starting ones included, oldest first."""
        return tuple(self._workers.values())

    async def start(self, spec: WorkerSpec) -> Started:
        """Start a worker and load its model; one that dies of a signal gets the one more try that its platform offers.

        Raises:
            LoadFailedError, LoadTimeoutError, OutOfMemoryError, CardcageError: It did not become ready. Nothing of it is left.
        """
        try:
            return Started(worker=await self._start_once(spec), spec=spec)
        except (LoadFailedError, OutOfMemoryError) as error:
            cause = error.__cause__ if isinstance(error, OutOfMemoryError) else error
            if not isinstance(cause, LoadFailedError) or cause.signal is None:
                raise
            recovery = spec.platform.recovery(spec.options.options, error)
            if recovery is None:
                raise
            self._log.warning(
                "load failed, trying once more", model=spec.model_id, error=error.message, note=recovery.note
            )
            options = validate_options(spec.platform, recovery.options)
            changed = dataclasses.replace(spec, options=dataclasses.replace(spec.options, options=options))
            worker = await self._start_once(changed)
            self.counters.recovered += 1
            return Started(worker=worker, spec=changed, note=recovery.note)

    async def _start_once(self, spec: WorkerSpec) -> Worker:
        number = next(self._numbers)
        threads = self._threads_of(number) if spec.platform.uses_cpu else None
        spec = dataclasses.replace(spec, options=dataclasses.replace(spec.options, cpu_threads=threads))
        worker = Worker(number, spec, self.settings)
        self._workers[number] = worker
        worker.death.add_done_callback(lambda death: self._buried(worker, death.result()))
        self.counters.started += 1
        self._share_cores()
        before = self.memory.sample()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        try:
            await worker.start()
        except LoadFailedError as error:
            self.counters.failed_before_ready += 1
            if self._was_killed_for_memory(spec, error, before):
                raise OutOfMemoryError(
                    f"The worker of '{spec.model_id}' was killed by the kernel while it loaded: about {spec.required_bytes} "
                    f"bytes are needed, {before.free_bytes} bytes were free",
                    required_bytes=spec.required_bytes,
                    free_bytes=before.free_bytes,
                ) from error
            raise
        except OutOfMemoryError as error:
            self.counters.failed_before_ready += 1
            if error.required_bytes is not None:
                raise
            raise OutOfMemoryError(
                f"{error.message} (about {spec.required_bytes} bytes are needed, {before.free_bytes} bytes were free)",
                required_bytes=spec.required_bytes,
                free_bytes=before.free_bytes,
            ) from error
        except CardcageError:
            self.counters.failed_before_ready += 1
            raise
        finally:
            if worker.info is None:
                self._workers.pop(number, None)
                self._share_cores()
        self.counters.ready += 1
        self.on_ready(worker, loop.time() - began_at)
        # The shares may have changed while it loaded with the one that it was started with.
        self._share_cores()
        return worker

    def _was_killed_for_memory(self, spec: WorkerSpec, error: LoadFailedError, before: MemorySample) -> bool:
        """A SIGKILL that nobody here sent, while memory was short or the kernel counted a kill, is the kernel's."""
        if error.signal != "SIGKILL":
            return False
        required, free = spec.required_bytes, before.free_bytes
        was_short = required is not None and free is not None and required > free
        return was_short or self.memory.sample().kills > before.kills

    def _buried(self, worker: Worker, death: Death) -> None:
        self._workers.pop(worker.number, None)
        if death.was_ready:
            self.counters.crashed += death.cause is EndCause.CRASHED
            self.counters.hung += death.cause is EndCause.HUNG
            self.counters.cancel_overdue += death.cause is EndCause.CANCEL_OVERDUE
        self._share_cores()

    # --- cores

    def _cpu_workers(self) -> list[int]:
        return [number for number, worker in self._workers.items() if worker.spec.platform.uses_cpu]

    def _threads_of(self, number: int) -> int:
        return thread_shares(self._cores, [*self._cpu_workers(), number])[number]

    def _share_cores(self) -> None:
        """Tell every ready worker whose share has changed."""
        for number, threads in thread_shares(self._cores, self._cpu_workers()).items():
            worker = self._workers[number]
            if worker.info is not None and worker.cpu_threads != threads:
                self._tasks.spawn(worker.set_cpu_threads(threads), name="threads")

    # --- end

    async def stop_all(self) -> None:
        """End every worker, in good order where it can be had, and return when all are gone."""
        await asyncio.gather(*(worker.stop() for worker in self.workers))
