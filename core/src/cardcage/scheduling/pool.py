"""The instances of one loaded model: how many there are, and what happens when one dies."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Literal, TypeAlias

import structlog

from cardcage.scheduling.plan import (
    GiveUp,
    ResizeWorker,
    RetireWorker,
    StartWorker,
    WorkerView,
    next_restart,
    plan_pool,
)
from cardcage.scheduling.queue import Lane, fresh_error
from cardcage.scheduling.seats import Member, Seats
from cardcage.workers.life import Death, EndCause
from cardcage.workers.tasks import TaskSet
from cardcage_sdk.errors import (
    CardcageError,
    InternalError,
    LoadFailedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from cardcage.workers.instance import Worker
    from cardcage.workers.life import WorkerSpec
    from cardcage.workers.supervisor import Supervisor
    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.models import ModelInfo

__all__ = ["Pool", "PoolState"]

PoolState: TypeAlias = Literal["loading", "ready", "draining", "failed"]


class Pool:
    """All instances of one loaded model.

    Life: constructed, `resize` to load the model and whenever its number of instances is to change, `close` once. Workers
    that die after they were ready are replaced within the bounds of the restart policy; one that fails before it is ready
    is not.

    Attributes:
        spec: What its workers load; changes when a recovery changed the options.
        note: What a recovery changed, or None.
        seats: The seats of its workers, with the queue for them.
        requested_instances: What was asked for last; the pool may have had to settle for less.
        failure: Why the pool has failed, or None.
        failed_at: Event-loop time in seconds at which it failed, or None.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        supervisor: Supervisor,
        *,
        places: int,
        admit: Callable[[], AbstractAsyncContextManager[None]],
        on_change: Callable[[], None],
    ) -> None:
        """Make an empty pool.

        Args:
            spec: What its workers load.
            supervisor: Starts them.
            places: Waiting places of its queue.
            admit: Entered for the start of one more worker on request; raises where there is no room for it.
            on_change: Called in the loop when a lease was given back or the state changed.
        """
        self.spec = spec
        self.note: str | None = None
        self.seats = Seats(
            spec.model_id,
            places=places,
            patience_seconds=supervisor.settings.hang_floor_seconds,
            settle=self._settle,
            on_change=on_change,
        )
        self.requested_instances = 0
        self.failure: CardcageError | None = None
        self.failed_at: float | None = None
        self._supervisor = supervisor
        self._admit = admit
        self._on_change = on_change
        self._wanted = 0
        self._closing: CardcageError | None = None
        self._crashed_at: list[float] = []
        self._change_lock = asyncio.Lock()
        self._resizes: set[asyncio.Task[int]] = set()
        self._tasks = TaskSet(f"pool {spec.model_id}")
        self._log = structlog.get_logger("cardcage.pool").bind(model=spec.model_id)
        self._last_info: ModelInfo | None = None

    # --- what there is

    @property
    def unit(self) -> Literal["process", "slots"]:
        """How one more instance comes to be."""
        return self.spec.platform.scaling.unit

    @property
    def state(self) -> PoolState:
        """Where the pool is in its life."""
        if self._closing is not None:
            return "draining"
        if self.failure is not None:
            return "failed"
        return "ready" if self.seats.serving else "loading"

    @property
    def info(self) -> ModelInfo:
        """What the engine said of the model, with the note of a recovery in its details.

        Raises:
            InternalError: No worker was ever ready.
        """
        if self._last_info is None:
            raise InternalError("a pool was asked for its model before one was loaded")
        if self.note is None:
            return self._last_info
        return dataclasses.replace(self._last_info, details={**self._last_info.details, "recovery": self.note})

    @property
    def capabilities(self) -> Capabilities:
        """What the loaded model can do: what its engine says, else what the platform declares."""
        if self._last_info is not None and self._last_info.capabilities is not None:
            return self._last_info.capabilities
        return self.spec.capabilities

    @property
    def instances(self) -> int:
        """Instances that can serve now."""
        return sum(self._slots(member) for member in self.seats.serving)

    @property
    def running(self) -> int:
        """Requests that hold a seat, those included whose engine has not let go yet."""
        return self.seats.taken

    @property
    def workers(self) -> tuple[Worker, ...]:
        """Its workers, retiring ones included, oldest first."""
        return tuple(member.worker for member in self.seats.members.values())

    def _slots(self, member: Member) -> int:
        """Instances that a worker stands for."""
        return member.seats[Lane.CHAT] if self.unit == "slots" else 1

    # --- size

    async def resize(self, instances: int) -> int:
        """Change the number of instances, from none at first; running requests are not ended.

        Also tries again where the pool has failed.

        Returns:
            How many there are, or will be when those that are leaving have finished.

        Raises:
            CardcageError: There is not one; the failure. Or the pool was closed meanwhile.
        """
        work = asyncio.get_running_loop().create_task(self._resize(instances), name=f"resize {self.spec.model_id}")
        self._resizes.add(work)
        try:
            return await work  # whoever cancels this cancels the work, and goes on when that has cleaned up
        except asyncio.CancelledError:
            asked = asyncio.current_task()
            if self._closing is None or (asked is not None and asked.cancelling()):
                raise
            raise fresh_error(self._closing) from None
        finally:
            self._resizes.discard(work)

    async def _resize(self, instances: int) -> int:
        async with self._change_lock:
            self._refuse_when_closing()
            self.requested_instances = instances
            if self.failure is not None:
                self.failure = self.failed_at = None
                self._crashed_at.clear()
                self.seats.reopen()
            self._wanted = instances
            problem = await self._carry_out(instances)
            # What could not be had is not tried again by itself: a worker that fails before it is ready stays away.
            count = self._wanted = self._planned_instances()
            if problem is not None:
                if count == 0:
                    self._fail(problem)
                    raise problem
                self._log.warning(
                    "fewer instances than asked for", asked=instances, actual=count, error=problem.message
                )
            return count

    def _planned_instances(self) -> int:
        """Instances of workers that stay."""
        staying = [member for member in self.seats.members.values() if not member.worker.is_retiring]
        return sum(self._slots(member) for member in staying)

    async def _carry_out(self, instances: int) -> CardcageError | None:
        """Carry out a plan; returns what went wrong, after which the rest of the plan was left out."""
        for action in plan_pool(unit=self.unit, instances=instances, workers=self._views()):
            match action:
                case StartWorker(slots=slots):
                    try:
                        async with self._admit():
                            await self._start_worker(slots)
                    except CardcageError as error:
                        return error
                case RetireWorker(worker_id=number):
                    member = self.seats.members[number]
                    member.worker.is_retiring = True
                    self._settle(member)
                case ResizeWorker(worker_id=number, slots=slots):
                    problem = await self._resize_worker(self.seats.members[number], slots)
                    if problem is not None:
                        return problem
        return None

    def _views(self) -> list[WorkerView]:
        return [
            WorkerView(
                id=number,
                slots=self._slots(member),
                max_slots=self._max_slots(member),
                leases=member.load,
                is_retiring=member.worker.is_retiring,
            )
            for number, member in self.seats.members.items()
        ]

    def _max_slots(self, member: Member) -> int:
        return member.worker.info.max_slots if member.worker.info is not None else self._slots(member)

    async def _start_worker(self, slots: int) -> None:
        options = dataclasses.replace(self.spec.options, slots=slots, max_slots=max(slots, self.spec.options.max_slots))
        started = await self._supervisor.start(dataclasses.replace(self.spec, options=options))
        worker = started.worker
        info = worker.info
        if info is None:
            raise InternalError("a started worker has no model")
        if started.note is not None:
            self.note = started.note
            learnt = dataclasses.replace(self.spec.options, options=started.spec.options.options)
            self.spec = dataclasses.replace(self.spec, options=learnt)
        self._last_info = info
        capabilities = self.capabilities
        chat = max(1, min(slots, info.slots)) if self.unit == "slots" else max(1, capabilities.max_parallel)
        member = Member(
            worker=worker,
            seats={Lane.CHAT: chat, Lane.BATCH: max(1, capabilities.embed_in_flight)},
            cancel_seconds=capabilities.cancel_seconds,
        )
        worker.death.add_done_callback(lambda death: self._on_death(member, death.result()))
        self.seats.add(member)

    async def _resize_worker(self, member: Member, slots: int) -> CardcageError | None:
        """Grow now; shrink the number of seats now and the engine when its requests have become few enough."""
        if slots < member.seats[Lane.CHAT]:
            member.seats[Lane.CHAT] = slots
            member.is_resizing = True
            self._settle(member)
            return None
        try:
            granted = await member.worker.resize(slots)
        except CardcageError as error:
            return error
        member.seats[Lane.CHAT] = max(member.seats[Lane.CHAT], min(slots, granted))
        self.seats.dispatch()
        return None

    def _settle(self, member: Member) -> None:
        """Carry out what waited for a worker's requests to end: its retirement, or fewer slots."""
        worker = member.worker
        if worker.death.done():
            return
        if worker.is_retiring and member.load == 0:
            self._tasks.spawn(self._retire(worker), name=f"retire {worker.number}")
        elif member.is_resizing and member.leases[Lane.CHAT] <= member.seats[Lane.CHAT]:
            member.is_resizing = False
            self._tasks.spawn(self._shrink(member), name=f"shrink {worker.number}")

    async def _retire(self, worker: Worker) -> None:
        await worker.stop()

    async def _shrink(self, member: Member) -> None:
        try:
            await member.worker.resize(member.seats[Lane.CHAT])
        except CardcageError as error:
            # The seats are what counts: an engine that keeps its slots only keeps their memory.
            self._log.warning("engine kept its slots", worker=member.worker.number, error=error.message)

    # --- death and replacement

    def _on_death(self, member: Member, death: Death) -> None:
        self.seats.remove(member)
        self._on_change()
        if self._closing is not None or member.worker.is_retiring:
            return
        if death.cause is EndCause.CANCEL_OVERDUE:
            # The clients' leaving did it, not a fault that would repeat by itself.
            self._tasks.spawn(self._replace(0.0), name="replace")
            return
        now = asyncio.get_running_loop().time()
        self._crashed_at.append(now)
        policy = self._supervisor.settings.restart
        self._crashed_at = [at for at in self._crashed_at if now - at <= policy.window_seconds]
        decision = next_restart(self._crashed_at, now=now, policy=policy)
        if isinstance(decision, GiveUp):
            self._wanted = self._planned_instances()
            if self._wanted == 0:
                self._fail(
                    LoadFailedError(
                        f"Model '{self.spec.model_id}' was given up: its workers died {decision.crashes} times within "
                        f"{decision.window_seconds:g} seconds, last {death.status}",
                        signal=death.status.signal,
                        exit_code=death.status.exit_code,
                        log_tail=death.log_tail,
                    )
                )
            return
        self._tasks.spawn(self._replace(decision.seconds), name="replace")

    async def _replace(self, delay_seconds: float) -> None:
        """Bring the pool back to what is wanted."""
        await asyncio.sleep(delay_seconds)
        async with self._change_lock:
            if self._closing is not None or self.failure is not None:
                return
            for action in plan_pool(unit=self.unit, instances=self._wanted, workers=self._views()):
                if not isinstance(action, StartWorker):
                    continue
                try:
                    await self._start_worker(action.slots)
                    self._supervisor.counters.replaced += 1
                except CardcageError as error:
                    self._wanted = self._planned_instances()
                    self._log.error("worker could not be replaced", error=error.message, instances=self._wanted)
                    if self._wanted == 0:
                        self._fail(error)
                    return

    def _fail(self, error: CardcageError) -> None:
        self._log.error("model failed", error=error.message)
        self.failure = error
        self.failed_at = asyncio.get_running_loop().time()
        self.seats.close(error)
        self._on_change()

    # --- end

    def begin_closing(self, error: CardcageError) -> None:
        """Take no new request; those in line are refused with this error, those that run go on."""
        if self._closing is None:
            self._closing = error
            self.seats.close(error)

    def interrupt(self, error: CardcageError) -> None:
        """End the running requests with this error."""
        for worker in self.workers:
            worker.interrupt_all(error)

    async def close(self) -> None:
        """End all workers; requests that still run end with an error. Call `begin_closing` first, and wait for leases."""
        if self._closing is None:
            raise InternalError("a pool was closed that still takes requests")
        # Workers that are being loaded stop at once; nobody has a use for them any more.
        for work in self._resizes:
            work.cancel()
        if self._resizes:
            await asyncio.wait(set(self._resizes))
        await self._tasks.cancel()
        await self.seats.end()
        await asyncio.gather(*(worker.stop() for worker in self.workers))

    def _refuse_when_closing(self) -> None:
        if self._closing is not None:
            raise fresh_error(self._closing)
