"""The platforms of the scripted and the faulty engines. Server process: their option models need pydantic."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from cardcage_sdk.options import PlatformOptions
from cardcage_sdk.platform import Device, MemoryEstimate, Platform, ProbeReport, Scaling
from cardcage_sdk.testing.faults import IMPORT_VARIABLE, FaultKind, FaultPhase
from cardcage_sdk.testing.script import SCRIPTED_CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.models import ModelArtifact

__all__ = [
    "FaultyBatchPlatform",
    "FaultyOptions",
    "FaultyPlatform",
    "ScriptedBatchPlatform",
    "ScriptedOptions",
    "ScriptedPlatform",
]


class ScriptedOptions(PlatformOptions):
    """Members of the script (`cardcage_sdk.testing.script.Script`) that a load overrides; None leaves the file's."""

    answer: str | None = None
    answers: list[str] | None = None
    rules: dict[str, str] | None = None
    echo: bool | None = None
    reasoning: str | None = None
    opens_reasoning: bool | None = None
    piece_bytes: int | None = None
    delay_seconds: float | None = None
    prefill_seconds: float | None = None
    prefill_steps: int | None = None
    load_seconds: float | None = None
    dimensions: int | None = None
    tasks: list[str] | None = None
    ignores: list[str] | None = None


class FaultyOptions(ScriptedOptions):
    """The fault and when it comes; see `cardcage_sdk.testing.faulty.Fault`."""

    kind: FaultKind | None = None
    phase: FaultPhase | None = None
    after_tokens: int | None = None
    trigger: str | None = None
    amount_bytes: int | None = None


class ScriptedPlatform(Platform):
    """Claims `*.scripted.json` and answers what stands in it; one call a choice, up to eight calls at once."""

    name: ClassVar[str] = "scripted"
    display_name: ClassVar[str] = "Scripted answers"
    engine: ClassVar[str] = "cardcage_sdk.testing.scripted:ScriptedEngine"
    capabilities: ClassVar[Capabilities] = SCRIPTED_CAPABILITIES
    option_model: ClassVar[type[PlatformOptions] | None] = ScriptedOptions

    suffix: ClassVar[str] = ".scripted.json"
    """How the name of a model file ends."""

    def probe(self) -> ProbeReport:
        """Available everywhere."""
        return ProbeReport.available(devices=(Device(chip="cpu", kind="cpu", description="scripted"),))

    def claims(self, artifact: ModelArtifact) -> bool:
        """A script, or a directory with one."""
        if artifact.path.is_dir():
            return any(file.name.endswith(self.suffix) for file in artifact.files)
        return artifact.path.name.endswith(self.suffix)

    def estimate(self, artifact: ModelArtifact, options: Mapping[str, JsonValue]) -> MemoryEstimate:
        """The file, and an interpreter."""
        del options
        return MemoryEstimate(device_bytes=0, host_bytes=artifact.size_bytes + (24 << 20))


class ScriptedBatchPlatform(ScriptedPlatform):
    """Claims `*.scripted-batch.json`; one worker, each instance a slot of its step loop."""

    name: ClassVar[str] = "scripted-batch"
    engine: ClassVar[str] = "cardcage_sdk.testing.scripted:ScriptedBatchEngine"
    scaling: ClassVar[Scaling] = Scaling(unit="slots", suggested=4, maximum=64)
    suffix: ClassVar[str] = ".scripted-batch.json"


class FaultyPlatform(ScriptedPlatform):
    """Claims `*.faulty.json`: a script whose engine fails as it says."""

    name: ClassVar[str] = "faulty"
    display_name: ClassVar[str] = "Faults on demand"
    engine: ClassVar[str] = "cardcage_sdk.testing.faulty:FaultyEngine"
    option_model: ClassVar[type[PlatformOptions] | None] = FaultyOptions
    suffix: ClassVar[str] = ".faulty.json"

    def worker_environment(self, options: Mapping[str, JsonValue]) -> Mapping[str, str]:
        """A fault at import has to be known before there is a model."""
        if options.get("phase") != "import":
            return {}
        return {IMPORT_VARIABLE: str(options.get("kind"))}


class FaultyBatchPlatform(FaultyPlatform):
    """Claims `*.faulty-batch.json`; the same faults in a step loop."""

    name: ClassVar[str] = "faulty-batch"
    engine: ClassVar[str] = "cardcage_sdk.testing.faulty:FaultyBatchEngine"
    scaling: ClassVar[Scaling] = Scaling(unit="slots", suggested=4, maximum=64)
    suffix: ClassVar[str] = ".faulty-batch.json"
