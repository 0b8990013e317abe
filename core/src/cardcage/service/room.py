"""Room for one more worker: memory, budget and places for models loaded on demand, made by eviction where it can be."""

from __future__ import annotations

import asyncio
import dataclasses
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from cardcage.scheduling.placement import MemoryNeed, MemoryRoom, choose_evictions
from cardcage_sdk.errors import BusyError, CardcageError, OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from cardcage.config import Config
    from cardcage.service.resident import Plan, Resident
    from cardcage.workers.memory import MemoryReader
    from cardcage.workers.tasks import Pulse

__all__ = ["Room"]

_LOOK_AGAIN_SECONDS = 1.0
"""A promise to a request that never comes runs out without any news."""


TURN_SECONDS = 5.0
"""A model that has waited for room for so long gets its turn: no new request keeps those busy that could go for it."""


class Room:
    """Decides, one start at a time, whether one more worker fits."""

    def __init__(
        self,
        *,
        config: Config,
        memory: MemoryReader,
        residents: Callable[[], Sequence[Resident]],
        close: Callable[[Resident], asyncio.Task[None]],
        changed: Pulse,
    ) -> None:
        """Put the parts together.

        Args:
            config: Budget, bound and how long a load on demand may wait.
            memory: Where free memory is read.
            residents: All models, those that are being loaded included.
            close: Begins to unload one, and refuses new requests to it at once.
            changed: Told at every end of a request, a lease, a load or a model.
        """
        self._config = config
        self._memory = memory
        self._residents = residents
        self._close = close
        self._changed = changed
        self._lock = asyncio.Lock()
        self._waiting: dict[Resident, float] = {}
        self._log = structlog.get_logger("cardcage.room")

    @asynccontextmanager
    async def admission(self, resident: Resident, plan: Plan) -> AsyncIterator[None]:
        """Make room for one more worker of a model, or refuse it; while it starts, its memory counts as taken.

        Raises:
            OutOfMemoryError: It does not fit, with both numbers.
            BusyError: Too many models are loaded on demand, and none of them became idle in time.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._config.server.queue_timeout_seconds
        try:
            while True:
                async with self._lock:
                    refusal = await self._make_room(resident, plan)
                    if refusal is None:
                        resident.pending_workers += 1
                        break
                    news = self._changed.next()
                if loop.time() >= deadline:
                    raise refusal
                self._waiting.setdefault(resident, loop.time())
                await asyncio.wait([news], timeout=min(_LOOK_AGAIN_SECONDS, deadline - loop.time()))
        finally:
            self._waiting.pop(resident, None)
        try:
            yield
        finally:
            resident.pending_workers -= 1
            self._changed.tell()

    def is_turn_of_another(self, resident: Resident) -> bool:
        """Whether a load has waited so long for models on demand to become idle that no new request should use this one."""
        now = asyncio.get_running_loop().time()
        return any(other is not resident and now - since >= TURN_SECONDS for other, since in self._waiting.items())

    async def _make_room(self, resident: Resident, plan: Plan) -> CardcageError | None:
        """Evict what must go; None when there is room, an error when there may be some later, which it raises if never."""
        while True:
            now = asyncio.get_running_loop().time()
            left = self._left(resident, plan)
            others = {other.id: other for other in self._residents() if other is not resident}
            views = [other.view(now=now, platform=plan.plugin.name) for other in others.values()]
            eviction = choose_evictions(plan.need, left, views)
            if not eviction.fits:
                refusal = _refusal(plan.need, left, eviction.missing_models)
                # A load by name is told at once: its caller may unload something, nobody else will.
                if eviction.may_wait and not resident.is_pinned:
                    return refusal
                raise refusal
            if not eviction.ids:
                return None
            self._log.info("evicting", models=eviction.ids, for_model=resident.id)
            await asyncio.wait([self._close(others[model_id]) for model_id in eviction.ids])

    def _left(self, resident: Resident, plan: Plan) -> MemoryRoom:
        """What is left now, with nothing evicted."""
        everyone = self._residents()
        free = self._memory.sample().free_bytes
        pending = sum(other.pending_need.host_bytes for other in everyone)
        device = None
        if any(one.memory_bytes is not None for one in plan.devices):
            same = [
                other for other in everyone if other.plan is not None and other.plan.plugin.name == plan.plugin.name
            ]
            device = sum(one.memory_bytes or 0 for one in plan.devices) - sum(one.need.device_bytes for one in same)
        left = MemoryRoom(host_bytes=None if free is None else free - pending, device_bytes=device)
        if resident.is_pinned:
            return left
        on_demand = [other for other in everyone if not other.is_pinned]
        budget, most = self._config.scheduling.memory_budget_bytes, self._config.scheduling.max_loaded_models
        return dataclasses.replace(
            left,
            budget_bytes=None if budget is None else budget - sum(other.need.total_bytes for other in on_demand),
            # It needs one place, not one for each of its workers.
            models=None if most is None or resident.workers else most - sum(1 for other in on_demand if other.workers),
        )


def _refusal(need: MemoryNeed, left: MemoryRoom, missing_models: int) -> CardcageError:
    if missing_models:
        return BusyError("As many models are loaded on demand as the configuration allows, and all are in use")
    if left.device_bytes is not None and need.device_bytes > left.device_bytes:
        return OutOfMemoryError(required_bytes=need.device_bytes, free_bytes=max(0, left.device_bytes))
    if left.budget_bytes is not None and need.total_bytes > left.budget_bytes:
        return OutOfMemoryError(required_bytes=need.total_bytes, free_bytes=max(0, left.budget_bytes))
    return OutOfMemoryError(required_bytes=need.host_bytes, free_bytes=max(0, left.host_bytes or 0))
