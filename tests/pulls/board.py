"""Two platforms without engines: one that works here and one that does not. Also a plugin file of the servers of these tests."""

from __future__ import annotations

from cardcage_sdk import hookimpl
from cardcage_sdk.capabilities import Capabilities, Task
from cardcage_sdk.models import ModelArtifact
from cardcage_sdk.platform import Device, MemoryEstimate, Platform, ProbeReport


class GgufPlatform(Platform):
    name = "gguf"
    engine = "nowhere:Engine"
    capabilities = Capabilities(tasks=frozenset({Task.CHAT}))
    file_patterns = ("*.gguf",)

    def probe(self) -> ProbeReport:
        return ProbeReport.available(devices=(Device(chip="CPU", kind="cpu"),))

    def claims(self, artifact: ModelArtifact) -> bool:
        return any(file.name.endswith(".gguf") for file in artifact.files)

    def estimate(self, artifact: ModelArtifact, options: object) -> MemoryEstimate:
        return MemoryEstimate(device_bytes=0, host_bytes=artifact.size_bytes)


class NpuPlatform(GgufPlatform):
    """A board's platform, absent on this machine."""

    name = "npu"
    file_patterns = ("*.rkllm",)

    def probe(self) -> ProbeReport:
        return ProbeReport.unavailable("no NPU was found")

    def claims(self, artifact: ModelArtifact) -> bool:
        return any(file.name.endswith(".rkllm") for file in artifact.files)


@hookimpl
def register_platforms() -> list[type[Platform]]:
    return [GgufPlatform, NpuPlatform]
