"""A model that is loaded, being loaded, or being unloaded."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cardcage.scheduling.placement import MemoryNeed, ResidentView
from cardcage.scheduling.queue import fresh_error
from cardcage_sdk.capabilities import Task
from cardcage_sdk.errors import CardcageError, LoadTimeoutError, QueueFullError
from cardcage_sdk.models import ModelInfo
from cardcage_sdk.service import GenerationDefaults, LoadRequest, LoadResult, ModelStatus

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    from cardcage.plugins.records import PlatformPlugin
    from cardcage.scheduling.pool import Pool
    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.models import ModelArtifact
    from cardcage_sdk.platform import Device

__all__ = ["ContextWish", "Plan", "Resident", "kind_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a load turned out to mean once model and platform were found.

    Attributes:
        options: Validated by the platform's option model.
        defaults: Merged from configuration, `model.toml` and load request.
        need: Memory of one worker.
    """

    artifact: ModelArtifact
    plugin: PlatformPlugin
    devices: tuple[Device, ...]
    options: dict[str, object]
    defaults: GenerationDefaults
    need: MemoryNeed


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextWish:
    """With how much context a model is wanted.

    Attributes:
        tokens: None: with whatever it has.
        is_exact: More will not do.
    """

    tokens: int | None = None
    is_exact: bool = False


def kind_of(capabilities: Capabilities) -> Literal["chat", "embedding"]:
    """What LlamaPi calls the kind of a model."""
    return "chat" if Task.CHAT in capabilities.tasks else "embedding"


@dataclass(slots=True, kw_only=True, eq=False)
class Resident:
    """One model under one id, from the moment its load was asked for until it is gone.

    Attributes:
        request: What was asked for.
        places: Waiting places, for its queue and for those who wait for its load.
        is_pinned: Loaded by name; otherwise it goes when it has been idle for `keep_alive_seconds`.
        loaded: Resolves to the outcome of the load.
        plan: Set when model and platform are known.
        pool: Set with `plan`.
        active: Requests that are in here in any state: waiting for the load, in the queue, running.
        waiting_for_load: How many of them wait for the load.
        held_until: Event-loop time up to which it was promised to a request that has not come yet.
        last_used_at: Event-loop time of the end of its last request, or of its load.
        loaded_at: Unix time in seconds; 0 before.
        closing: The unload under way, or None.
        force: Set when the unload is not to wait for running requests.
    """

    id: str
    request: LoadRequest
    places: int
    is_pinned: bool
    keep_alive_seconds: float
    loaded: asyncio.Future[LoadResult]
    plan: Plan | None = None
    pool: Pool | None = None
    active: int = 0
    waiting_for_load: int = 0
    held_until: float = -math.inf
    last_used_at: float = 0.0
    loaded_at: float = 0.0
    load_task: asyncio.Task[None] | None = None
    closing: asyncio.Task[None] | None = None
    force: asyncio.Event = field(default_factory=asyncio.Event)
    expiry: asyncio.TimerHandle | None = None
    pending_workers: int = 0

    @property
    def is_loading(self) -> bool:
        """Its load has not ended."""
        return not self.loaded.done()

    @property
    def workers(self) -> int:
        """Worker processes that take, or are about to take, memory."""
        return (len(self.pool.workers) if self.pool is not None else 0) + self.pending_workers

    @property
    def need(self) -> MemoryNeed:
        """Memory of all its workers."""
        return self.plan.need.times(self.workers) if self.plan is not None else MemoryNeed(host_bytes=0)

    @property
    def pending_need(self) -> MemoryNeed:
        """Memory that its workers were admitted for and may not have taken yet."""
        return self.plan.need.times(self.pending_workers) if self.plan is not None else MemoryNeed(host_bytes=0)

    @property
    def context_wanted(self) -> int | None:
        """Context in tokens that its load asked for, or None."""
        return self.request.defaults.max_context_len

    @property
    def context_tokens(self) -> int | None:
        """Context in tokens that it has: as its load asked for, or as its engine says."""
        is_known = not self.is_loading and self.loaded.exception() is None and self.pool is not None
        told = self.pool.info.context_tokens if is_known and self.pool is not None else None
        # An engine gives no more than a model was trained for; asked for more, it is still the same load.
        return max(filter(None, (self.context_wanted, told)), default=None)

    def has_context(self, wish: ContextWish) -> bool:
        """Whether it will do for a request with this wish; False while nobody knows."""
        if wish.tokens is None:
            return True
        if wish.is_exact:
            return wish.tokens in {self.context_wanted, self.context_tokens}
        return (self.context_tokens or 0) >= wish.tokens

    def is_of(self, path: Path) -> bool:
        """Whether these are its files."""
        if self.plan is not None:
            return self.plan.artifact.path == path
        return self.request.model_path == str(path)

    @property
    def expires_at(self) -> float | None:
        """Unix time in seconds at which it goes when nobody uses it; None where it stays."""
        if self.is_pinned or self.keep_alive_seconds == math.inf:
            return None
        now = asyncio.get_running_loop().time()
        since = now if self.active or self.is_loading else self.last_used_at
        return time.time() + max(since + self.keep_alive_seconds, self.held_until) - now

    def is_idle(self, *, now: float) -> bool:
        """Nothing runs, waits or was promised, so that it could go."""
        return (
            self.active == 0
            and not self.is_loading
            and self.closing is None
            and self.held_until <= now
            and (self.pool is None or self.pool.running == 0)
        )

    def view(self, *, now: float, platform: str) -> ResidentView:
        """As evictions for a load on `platform` see it."""
        return ResidentView(
            id=self.id,
            need=self.need,
            is_pinned=self.is_pinned,
            is_busy=not self.is_idle(now=now),
            last_used_at=self.last_used_at,
            shares_devices=self.plan is not None and self.plan.plugin.name == platform,
        )

    async def wait_loaded(self, *, timeout_seconds: float) -> float:
        """Wait for the load, which goes on when the caller leaves; returns the seconds waited.

        Raises:
            QueueFullError: As many requests wait already as the queue has places.
            LoadTimeoutError: It took too long for this caller.
            CardcageError: The load failed.
        """
        if self.loaded.done():
            self.result()
            return 0.0
        if self.waiting_for_load >= self.places:
            raise QueueFullError(self.id, places=self.places)
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.waiting_for_load += 1
        try:
            await asyncio.wait({self.loaded}, timeout=timeout_seconds)
        finally:
            self.waiting_for_load -= 1
        waited = loop.time() - began
        if not self.loaded.done():
            raise LoadTimeoutError(self.id, waited_seconds=round(waited, 3))
        self.result()
        return waited

    def result(self) -> LoadResult:
        """The outcome of the load that has ended; raises its error as an instance of the caller's own."""
        error = self.loaded.exception()
        if error is not None:
            raise fresh_error(error) if isinstance(error, CardcageError) else error
        return self.loaded.result()

    def status(self) -> ModelStatus | None:
        """As dialects see it; None while it is not known yet what is being loaded."""
        if self.plan is None or self.pool is None:
            return None
        artifact, pool = self.plan.artifact, self.pool
        capabilities = pool.capabilities
        is_known = not self.is_loading and self.loaded.exception() is None
        return ModelStatus(
            id=self.id,
            name=f"{artifact.name}:{artifact.size}" if artifact.size else artifact.name,
            path=str(artifact.path),
            platform=self.plan.plugin.name,
            kind=kind_of(capabilities),
            tasks=frozenset(task.value for task in capabilities.tasks),
            state="loading" if self.is_loading else "draining" if self.closing is not None else pool.state,
            instance_count=pool.instances,
            requested_instance_count=pool.requested_instances or self.request.instance_count,
            request_queue_size=self.places,
            running=pool.running,
            queued=pool.seats.queue.waiting + self.waiting_for_load,
            loaded_at=self.loaded_at,
            pinned=self.is_pinned,
            size_bytes=artifact.size_bytes,
            capabilities=capabilities,
            info=pool.info if is_known else ModelInfo(),
            defaults=self.plan.defaults,
            expires_at=self.expires_at,
            host_bytes=self.need.host_bytes,
            device_bytes=self.need.device_bytes,
        )
