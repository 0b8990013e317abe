"""The words of a worker's life: what it loads, where it is, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cardcage.workers.process import ExitStatus
    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.ipc.client import EngineTarget
    from cardcage_sdk.models import LoadOptions, ModelArtifact
    from cardcage_sdk.platform import Platform

__all__ = ["Death", "EndCause", "WorkerSpec", "WorkerState"]


class WorkerState(StrEnum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    DEAD = "dead"


class EndCause(StrEnum):
    """Why a worker ended."""

    CRASHED = "crashed"
    """On its own, before anybody asked it to."""
    HUNG = "hung"
    """Killed by the watchdog."""
    CANCEL_OVERDUE = "cancel_overdue"
    """Killed because it did not let go of a cancelled request in its declared time."""
    FORCED = "forced"
    """Ended with requests running, by an unload or a shutdown that did not wait."""
    CLOSED = "closed"
    """Asked to end when nothing ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What a worker is to load.

    Attributes:
        model_id: Id of the loaded model, for logs and errors.
        platform: Asked for interpreter, environment and recovery.
        options: Its `options` are validated.
        required_bytes: The estimate, for an out-of-memory error; None where nobody estimated.
        load_timeout_seconds: From the start of the process to ready.
    """

    model_id: str
    platform: Platform
    target: EngineTarget
    artifact: ModelArtifact
    options: LoadOptions
    capabilities: Capabilities
    load_timeout_seconds: float
    required_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a worker ended.

    Attributes:
        was_ready: It had been ready before.
        seconds: How long it had been silent, where `cause` is `HUNG` or `CANCEL_OVERDUE`.
    """

    cause: EndCause
    status: ExitStatus
    log_tail: str
    was_ready: bool
    seconds: float = 0.0
