"""The platform as the server sees it: standard library and sdk only; llama.cpp is loaded in the worker."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cardcage_platform_llamacpp.declared import CAPABILITIES
from cardcage_platform_llamacpp.gguf_header import GgufError, is_gguf, read_header
from cardcage_platform_llamacpp.options import LlamaCppOptions
from cardcage_platform_llamacpp.weights import context_tokens_for, is_embedding_model, weight_files
from cardcage_sdk.hookspecs import hookimpl
from cardcage_sdk.platform import Device, MemoryEstimate, Platform, ProbeReport, Recovery, Scaling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.errors import CardcageError
    from cardcage_sdk.models import ModelArtifact, ModelFacts

__all__ = ["LlamaCppPlatform", "register_platforms"]

CARDCAGE_CONTRACT = (0, 1)

RUNTIME_VERSION = "0.3.36"
"""The engine binds C structures by their layout, so another version is refused rather than crashed into."""

INSTALL_COMMAND = "python -m cardcage_platform_llamacpp.build_wheel --install"

# The library, Python and numpy in a worker, and the graph's buffers for one batch.
_FIXED_BYTES = 200 << 20


def cpu_name() -> str:
    """The CPU's model name as the kernel tells it."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in {"model name", "Model", "Hardware"}:
                    return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


class LlamaCppPlatform(Platform):
    """GGUF models on the CPU: one worker a model, whose slots share every step."""

    name: ClassVar[str] = "llamacpp"
    display_name: ClassVar[str] = "llama.cpp"
    engine: ClassVar[str] = "cardcage_platform_llamacpp.engine:LlamaCppEngine"
    capabilities: ClassVar[Capabilities] = CAPABILITIES
    scaling: ClassVar[Scaling] = Scaling(unit="slots", suggested=4, maximum=64)
    option_model: ClassVar[type[LlamaCppOptions]] = LlamaCppOptions
    file_patterns: ClassVar[tuple[str, ...]] = ("*.gguf",)
    uses_cpu: ClassVar[bool] = True

    def probe(self) -> ProbeReport:
        """Look for llama-cpp-python without importing it."""
        devices = (Device(chip="cpu", kind="cpu", description=cpu_name()),)
        versions = {"cores": str(os.cpu_count() or 1)}
        if importlib.util.find_spec("llama_cpp") is None:
            return ProbeReport.unavailable(
                f"llama-cpp-python is not installed; run: {INSTALL_COMMAND}", devices=devices, versions=versions
            )
        try:
            version = importlib.metadata.version("llama-cpp-python")
        except importlib.metadata.PackageNotFoundError:
            version = "unknown"
        versions["llama-cpp-python"] = version
        if version != RUNTIME_VERSION:
            return ProbeReport.unavailable(
                f"llama-cpp-python {version} is installed, but this platform binds {RUNTIME_VERSION}; run: {INSTALL_COMMAND}",
                devices=devices,
                versions=versions,
            )
        return ProbeReport.available(devices=devices, versions=versions)

    def claims(self, artifact: ModelArtifact) -> bool:
        """GGUF files are ours, whatever their name."""
        return any(is_gguf(artifact.directory / file.name) for file in artifact.files)

    def estimate(self, artifact: ModelArtifact, options: Mapping[str, JsonValue]) -> MemoryEstimate:
        """Weights, the key-value cache of the slots that a load allocates at least, and the fixed part.

        The cache of every slot that `resize` can reach is allocated at load, and core allows for the suggested number.
        """
        del options
        files = weight_files(artifact)
        weights = sum(path.stat().st_size for path in files if path.is_file())
        cache = 0
        try:
            header = read_header(files[0]) if files else None
        except (GgufError, OSError):
            header = None
        if header is not None and not is_embedding_model(artifact, header):
            slot_bytes = header.kv_bytes_per_token() * context_tokens_for(artifact, header, None)
            cache = slot_bytes * self.scaling.suggested
        return MemoryEstimate(device_bytes=0, host_bytes=weights + cache + _FIXED_BYTES)

    def describe(self, artifact: ModelArtifact) -> ModelFacts:
        """What the header of the weights says."""
        from cardcage_platform_llamacpp.facts import read_facts

        return read_facts(artifact)

    def worker_environment(self, options: Mapping[str, JsonValue]) -> Mapping[str, str]:
        """OpenMP reads its policy when it is loaded; ggml would start gdb for a backtrace before it dies."""
        policy = str(options.get("openmp_wait_policy", "default"))
        return {"GGML_NO_BACKTRACE": "1", **({} if policy == "default" else {"OMP_WAIT_POLICY": policy.upper()})}

    def recovery(self, options: Mapping[str, JsonValue], error: CardcageError) -> Recovery | None:
        """A load that died is tried once more without the repacked weights, where compilers have gone wrong before."""
        del error
        if not options.get("use_extra_bufts", True):
            return None
        return Recovery(
            options={**options, "use_extra_bufts": False},
            note="llama.cpp died while loading; loaded without repacked weights (use_extra_bufts = false), which makes "
            f"prompts several times slower. A wheel built by `{INSTALL_COMMAND}` does not need this.",
        )


@hookimpl
def register_platforms() -> list[type[Platform]]:
    """Declare the one platform of this package."""
    return [LlamaCppPlatform]
