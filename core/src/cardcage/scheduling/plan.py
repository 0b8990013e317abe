"""What to do about a pool: pure decisions from what is wanted and what is there.

Nothing here waits, starts or ends anything; `cardcage.scheduling.pool` carries the actions out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "Action",
    "GiveUp",
    "ResizeWorker",
    "RestartAfter",
    "RestartPolicy",
    "RetireWorker",
    "StartWorker",
    "WorkerView",
    "next_restart",
    "plan_pool",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """One worker of a pool, as the plan sees it.

    Attributes:
        id: Number of the worker; a younger one has a higher number.
        slots: Requests that it may run at once; 1 where instances are processes.
        max_slots: The most that its engine can be resized to.
        leases: Requests that hold a seat of it now.
        is_retiring: It takes no new request and ends after its last one.
    """

    id: int
    slots: int = 1
    max_slots: int = 1
    leases: int = 0
    is_retiring: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWorker:
    """Start one more worker, with so many slots."""

    slots: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeWorker:
    """Change the number of slots of a worker; fewer take effect as its requests end."""

    worker_id: int
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireWorker:
    """Give the worker no new request and end it after its last one."""

    worker_id: int


Action: TypeAlias = StartWorker | ResizeWorker | RetireWorker


def plan_pool(
    *, unit: Literal["process", "slots"], instances: int, workers: Sequence[WorkerView]
) -> tuple[Action, ...]:
    """Say what brings a pool to `instances` instances.

    Args:
        unit: How one more instance comes to be (`Scaling.unit`).
        instances: Instances wanted; 0 retires all.
        workers: Workers that live, starting ones included.

    Returns:
        Actions in the order in which they are to be carried out; empty where nothing is to be done. Shrinking prefers idle
        workers, then the least busy, then the youngest, so that what waits to end is as little as possible.
    """
    live = [worker for worker in workers if not worker.is_retiring]
    if unit == "slots" and instances > 0:
        return _plan_slots(instances, live)
    missing = instances - len(live)
    if missing >= 0:
        return tuple(StartWorker() for _ in range(missing))
    leaving = sorted(live, key=lambda worker: (worker.leases, -worker.id))[:-missing]
    return tuple(RetireWorker(worker_id=worker.id) for worker in leaving)


def _plan_slots(instances: int, live: Sequence[WorkerView]) -> tuple[Action, ...]:
    """One worker holds all slots; a second one (there never should be) is retired."""
    if not live:
        return (StartWorker(slots=instances),)
    keeper, *surplus = sorted(live, key=lambda worker: worker.id)
    actions: list[Action] = [RetireWorker(worker_id=worker.id) for worker in surplus]
    slots = min(instances, keeper.max_slots)
    if slots != keeper.slots:
        actions.append(ResizeWorker(worker_id=keeper.id, slots=slots))
    return tuple(actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """When a worker that died after it was ready is replaced, and when no more.

    Attributes:
        max_crashes: So many crashes of one pool within `window_seconds` end the restarts.
        first_delay_seconds: Wait before the second restart of a window; the first one is immediate.
        max_delay_seconds: The wait doubles with each further crash up to this.
    """

    max_crashes: int = 5
    window_seconds: float = 60.0
    first_delay_seconds: float = 0.5
    max_delay_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartAfter:
    """Replace the worker after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Restart no more: the pool has failed."""

    crashes: int
    window_seconds: float


def next_restart(crashed_at: Sequence[float], *, now: float, policy: RestartPolicy) -> RestartAfter | GiveUp:
    """Decide after a crash.

    Args:
        crashed_at: Times of this pool's crashes in seconds, the newest included, on the clock of `now`.
        now: The time.
        policy: The bounds.
    """
    recent = sum(1 for at in crashed_at if now - at <= policy.window_seconds)
    if recent >= policy.max_crashes:
        return GiveUp(crashes=recent, window_seconds=policy.window_seconds)
    if recent <= 1:
        return RestartAfter(seconds=0.0)
    # The exponent is bounded before the power is taken: a policy may allow thousands of crashes.
    doublings = min(recent - 2, 32)
    return RestartAfter(seconds=min(policy.first_delay_seconds * 2.0**doublings, policy.max_delay_seconds))
