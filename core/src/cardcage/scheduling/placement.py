"""What fits where: memory, evictions and shares of the cores, as pure decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cardcage_sdk.platform import Device, MemoryEstimate

__all__ = ["Eviction", "MemoryNeed", "MemoryRoom", "ResidentView", "choose_evictions", "memory_need", "thread_shares"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes that a load takes.

    Attributes:
        host_bytes: On the host, with what the platform's devices take from the host's memory.
        device_bytes: On devices with memory of their own.
    """

    host_bytes: int
    device_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Both together, as a memory budget counts."""
        return self.host_bytes + self.device_bytes

    def times(self, count: int) -> MemoryNeed:
        """The need of so many workers."""
        return MemoryNeed(host_bytes=self.host_bytes * count, device_bytes=self.device_bytes * count)


def memory_need(estimate: MemoryEstimate, devices: Sequence[Device]) -> MemoryNeed:
    """Turn a platform's estimate into what it takes where.

    Devices without memory of their own share the host's, so their part is counted there.
    """
    if any(device.memory_bytes is not None for device in devices):
        return MemoryNeed(host_bytes=estimate.host_bytes, device_bytes=estimate.device_bytes)
    return MemoryNeed(host_bytes=estimate.host_bytes + estimate.device_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom:
    """What is left before a load; None is no bound.

    Attributes:
        host_bytes: Free memory of the host, less what loads under way will still take.
        device_bytes: Memory of the platform's devices, less what its loaded models take.
        budget_bytes: What the configured budget leaves; may be negative.
        models: How many more models may be loaded on demand; None also for a load by name.
    """

    host_bytes: int | None = None
    device_bytes: int | None = None
    budget_bytes: int | None = None
    models: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentView:
    """A loaded model, as evictions see it.

    Attributes:
        is_pinned: Loaded by name; never evicted.
        is_busy: Holds a lease, is waited for, or was promised to a request that has not come yet; never evicted.
        last_used_at: End of its last request, in seconds.
        shares_devices: Its platform is that of the load, so that its device memory counts.
    """

    id: str
    need: MemoryNeed
    is_pinned: bool
    is_busy: bool
    last_used_at: float
    shares_devices: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """Which models have to go for a load, and what would still be missing then.

    Attributes:
        ids: Models to unload, least recently used first; empty where it fits as it is.
        missing_bytes: Bytes still missing after these; 0 where it then fits.
        missing_models: Places still missing after these.
        may_wait: Busy models that could be evicted once idle would be enough.
    """

    ids: tuple[str, ...] = ()
    missing_bytes: int = 0
    missing_models: int = 0
    may_wait: bool = False

    @property
    def fits(self) -> bool:
        """The load has room once `ids` are gone."""
        return self.missing_bytes == 0 and self.missing_models == 0


def choose_evictions(need: MemoryNeed, room: MemoryRoom, residents: Sequence[ResidentView]) -> Eviction:
    """Choose idle, unpinned models to unload, least recently used first, until a load has room.

    A model whose going would not help with anything that is missing stays. Where all of them together are not enough,
    none goes: `ids` is then empty.
    """
    idle = [resident for resident in residents if not resident.is_pinned and not resident.is_busy]
    idle.sort(key=lambda resident: resident.last_used_at)
    chosen, missing_bytes, missing_models = _take(need, room, idle)
    if not missing_bytes and not missing_models:
        return Eviction(ids=tuple(resident.id for resident in chosen))
    evictable = [resident for resident in residents if not resident.is_pinned]
    _, later_bytes, later_models = _take(need, room, evictable)
    return Eviction(
        missing_bytes=missing_bytes, missing_models=missing_models, may_wait=not later_bytes and not later_models
    )


def _take(
    need: MemoryNeed, room: MemoryRoom, candidates: Sequence[ResidentView]
) -> tuple[list[ResidentView], int, int]:
    """Take candidates in order while something is missing; returns them, the bytes and the models still missing."""
    host = _missing(need.host_bytes, room.host_bytes)
    device = _missing(need.device_bytes, room.device_bytes)
    budget = _missing(need.total_bytes, room.budget_bytes)
    models = _missing(1, room.models)
    chosen: list[ResidentView] = []
    for resident in candidates:
        if max(host, device, budget, models) <= 0:
            break
        frees_device = resident.shares_devices and device > 0 and resident.need.device_bytes > 0
        helps = (
            (host > 0 and resident.need.host_bytes > 0)
            or frees_device
            or (budget > 0 and resident.need.total_bytes > 0)
            or models > 0
        )
        if not helps:
            continue
        chosen.append(resident)
        host -= resident.need.host_bytes
        device -= resident.need.device_bytes if resident.shares_devices else 0
        budget -= resident.need.total_bytes
        models -= 1
    return chosen, max(host, device, budget, 0), max(models, 0)


def _missing(wanted: int, left: int | None) -> int:
    """How much of `wanted` is not left; 0 where there is no bound."""
    return 0 if left is None else max(0, wanted - left)


def thread_shares(cores: int, workers: Sequence[int]) -> dict[int, int]:
    """Share the cores out between workers whose speed depends on CPU threads.

    Args:
        cores: Cores that this server may use.
        workers: Numbers of the workers, oldest first.

    Returns:
        Threads of each worker, at least 1; what does not divide evenly goes to the oldest.
    """
    if not workers:
        return {}
    share, rest = divmod(max(1, cores), len(workers))
    return {worker: max(1, share + (1 if place < rest else 0)) for place, worker in enumerate(workers)}
