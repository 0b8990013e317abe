"""A platform: one kind of inference runtime, as the server process sees it.

A platform's `plugin.py` imports the standard library and the sdk only. The engine is named by dotted path and imported in
the worker.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

if TYPE_CHECKING:
    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.errors import CardcageError
    from cardcage_sdk.models import ModelArtifact, ModelFacts
    from cardcage_sdk.options import PlatformOptions

__all__ = ["Device", "MemoryEstimate", "Platform", "ProbeReport", "Recovery", "Scaling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or the CPU.

    Attributes:
        chip: Type as people name it, as `RK1828` or `cpu`; devices of one chip are counted together.
        kind: `cpu`, `npu`, `gpu` or `coprocessor`.
        id: Tells devices of one chip apart.
        memory_bytes: Memory of its own, or None where it shares the host's.
        description: For people, as the CPU's model name.
    """

    chip: str
    kind: Literal["cpu", "npu", "gpu", "coprocessor"]
    id: str = "0"
    memory_bytes: int | None = None
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """Whether a platform can work on this machine, and why not.

    Attributes:
        is_available: A model of this platform could be loaded now.
        reason: For people: why not, and what to do; empty where available.
        devices: Accelerators found.
        versions: Versions of runtime, driver and the like, by name.
    """

    is_available: bool
    reason: str = ""
    devices: tuple[Device, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def available(cls, *, devices: tuple[Device, ...], versions: Mapping[str, str] | None = None) -> ProbeReport:
        """A report that says yes."""
        return cls(is_available=True, devices=devices, versions=versions or {})

    @classmethod
    def unavailable(
        cls, reason: str, *, devices: tuple[Device, ...] = (), versions: Mapping[str, str] | None = None
    ) -> ProbeReport:
        """A report that says no, with the reason and what to do about it."""
        return cls(is_available=False, reason=reason, devices=devices, versions=versions or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes that a loaded model takes: on its device, and on the host (weights, context, buffers)."""

    device_bytes: int
    host_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How one more instance comes to be.

    Attributes:
        unit: `process`: each instance is a worker of its own. `slots`: one worker, each instance a slot of its engine.
        suggested: A sensible number for this machine.
        maximum: The most that is safe; None is no bound. 1 where a second instance breaks the device.
    """

    unit: Literal["process", "slots"] = "process"
    suggested: int = 1
    maximum: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Another try after a worker died before it was ready.

    Attributes:
        options: The platform options to try with.
        note: One sentence for log and `doctor`: what was changed and what it costs.
    """

    options: Mapping[str, JsonValue]
    note: str


class Platform(ABC):
    """One kind of inference runtime.

    Constructed once at start-up in the server process, with no argument. Every method is cheap (well under a second),
    has no side effect, imports no native runtime, and may be called at any time from the event loop's thread or a thread
    beside it.

    A subclass sets the class attributes and implements **REQUIRED** `probe`, `claims` and `estimate`.
    """

    name: ClassVar[str]
    """**REQUIRED** Id in configuration, URLs and logs; the same as the entry point's name. Lower case."""

    display_name: ClassVar[str] = ""
    """Name for people; empty means `name`."""

    engine: ClassVar[str]
    """**REQUIRED** `package.module:Class` of the engine, imported in the worker only."""

    capabilities: ClassVar[Capabilities]
    """**REQUIRED** What models of this platform can do; `ModelInfo.capabilities` may narrow it for one model."""

    scaling: ClassVar[Scaling] = Scaling()
    """How instances are made."""

    option_model: ClassVar[type[PlatformOptions] | None] = None
    """Load options of this platform; None means that it has none and any is refused."""

    file_patterns: ClassVar[tuple[str, ...]] = ()
    """Names of files that every model of this platform has one of, as `*.gguf`; compared without case.

    They let a source's variants be told apart before anything is fetched. Empty means that names do not tell.
    """

    uses_cpu: ClassVar[bool] = False
    """The engine's speed depends on CPU threads, so core shares the cores out between such models."""

    @abstractmethod
    def probe(self) -> ProbeReport:
        """Say whether this machine has what it takes, **and why not**.

        Reads files and package metadata only. Must not load the runtime, open a device or raise.
        """

    @abstractmethod
    def claims(self, artifact: ModelArtifact) -> bool:
        """Say whether this model is mine, from its files; called only where `model.toml` names no platform."""

    @abstractmethod
    def estimate(self, artifact: ModelArtifact, options: Mapping[str, JsonValue]) -> MemoryEstimate:
        """Say how much memory a load with these (validated) options will take, for one instance."""

    def describe(self, artifact: ModelArtifact) -> ModelFacts:
        """Say what can be read of a model from its files. Listings ask it of every model, so keep what is costly.

        The default knows nothing.
        """
        from cardcage_sdk.models import ModelFacts

        del artifact
        return ModelFacts()

    def worker_environment(self, options: Mapping[str, JsonValue]) -> Mapping[str, str]:
        """Environment variables that the worker process is started with, over the server's own."""
        del options
        return {}

    def worker_python(self) -> str:
        """Python interpreter for the worker. Another one must have `cardcage-sdk` of the same contract installed."""
        return sys.executable

    def recovery(self, options: Mapping[str, JsonValue], error: CardcageError) -> Recovery | None:
        """Offer one more try after the worker died by a signal before it was ready.

        Args:
            options: The (validated) options of the try that failed.
            error: How it failed.

        Returns:
            What to try instead, or None. It is asked once a load.
        """
        del options, error
        return None
