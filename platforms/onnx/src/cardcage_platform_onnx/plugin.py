"""The platform as the server sees it: standard library and sdk only; onnxruntime is loaded in the worker."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from typing import TYPE_CHECKING, ClassVar

from cardcage_platform_onnx.declared import CAPABILITIES, INSTALL_GENAI_COMMAND
from cardcage_platform_onnx.genai_config import context_tokens_for, read_genai_config
from cardcage_platform_onnx.model_files import EXACT, find_model, is_ours
from cardcage_platform_onnx.onnx_header import OnnxHeaderError, read_onnx_header
from cardcage_platform_onnx.options import OnnxOptions
from cardcage_platform_onnx.providers import PROVIDERS, device_of, find_devices, inspect_installation
from cardcage_sdk.capabilities import Capabilities
from cardcage_sdk.errors import CardcageError
from cardcage_sdk.hookspecs import hookimpl
from cardcage_sdk.platform import Device, MemoryEstimate, Platform, ProbeReport, Scaling

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.models import ModelArtifact

__all__ = ["OnnxPlatform", "register_platforms"]

CARDCAGE_CONTRACT = (0, 1)

INSTALL_COMMAND = "pip install 'cardcage-platform-onnx[cpu]'"

# Measured: interpreter, numpy, onnxruntime and tokenizers, and the buffers of one step of 512 tokens.
_FIXED_BYTES = 120 << 20
# A weight is held twice for a moment, as it was read and as the kernels want it.
_WEIGHT_FACTOR = 1.3


class OnnxPlatform(Platform):
    """Encoders and genai directories on whatever execution provider this machine has."""

    name: ClassVar[str] = "onnx"
    display_name: ClassVar[str] = "ONNX Runtime"
    engine: ClassVar[str] = "cardcage_platform_onnx.engine:OnnxEngine"
    capabilities: ClassVar[Capabilities] = CAPABILITIES
    scaling: ClassVar[Scaling] = Scaling(unit="slots", suggested=1, maximum=16)
    option_model: ClassVar[type[OnnxOptions]] = OnnxOptions
    file_patterns: ClassVar[tuple[str, ...]] = ("*.onnx",)
    uses_cpu: ClassVar[bool] = True

    def probe(self) -> ProbeReport:
        """Look for onnxruntime and for the devices of its providers, importing neither."""
        installation = inspect_installation()
        versions = dict(installation.versions)
        ready: list[str] = []
        missing: list[str] = []
        devices: list[Device] = []
        for provider in PROVIDERS:
            places = find_devices(provider)
            if provider.kind != "cpu" and not provider.device_paths:
                # No path tells of the device: it is there where the build for that system is.
                places = [provider.name] if installation.has(provider) else []
            if installation.has(provider) and places:
                ready.append(provider.name)
                devices += [device_of(provider, place) for place in places]
            elif places and provider.kind != "cpu":
                missing.append(
                    f"{provider.name} (device found; install {provider.packages[0]} in place of onnxruntime)"
                )
            elif installation.has(provider):
                missing.append(f"{provider.name} (in this build; no device found)")
        versions["providers"] = ", ".join(ready) or "none"
        if missing:
            versions["providers not usable"] = "; ".join(missing)
        versions["onnxruntime-genai"] = (
            _version("onnxruntime-genai") or f"not installed; for chat: {INSTALL_GENAI_COMMAND}"
        )
        if not installation.is_importable:
            return ProbeReport.unavailable(
                f"onnxruntime is not installed; run: {INSTALL_COMMAND} (or install the build for your accelerator)",
                devices=tuple(devices),
                versions=versions,
            )
        return ProbeReport.available(devices=tuple(devices), versions=versions)

    def claims(self, artifact: ModelArtifact) -> bool:
        """A genai directory, or an ONNX file with a tokenizer."""
        return is_ours(artifact)

    def estimate(self, artifact: ModelArtifact, options: Mapping[str, JsonValue]) -> MemoryEstimate:
        """Weights as they are once loaded, one chat request's cache, and the fixed part."""
        weights, cache = artifact.size_bytes, 0
        try:
            files = find_model(artifact)
            if files.kind == "encoder":
                variant = options.get("variant") or artifact.extra.get("variant") or EXACT
                weights = _loaded_bytes(files.onnx_file(str(variant)))
            else:
                config = read_genai_config(files.directory)
                cache = config.cache_bytes_per_token * context_tokens_for(config, artifact, None)
        except CardcageError:
            pass  # the load will say what is wrong with it; an estimate is no place for that
        return MemoryEstimate(device_bytes=0, host_bytes=int(weights * _WEIGHT_FACTOR) + cache + _FIXED_BYTES)

    def worker_environment(self, options: Mapping[str, JsonValue]) -> Mapping[str, str]:
        """The tokenizer would start a thread on every core; ONNX Runtime would queue telemetry in the user's cache at import."""
        del options
        return {"TOKENIZERS_PARALLELISM": "false", "ORT_DISABLE_TELEMETRY": "1"}


def _loaded_bytes(path: Path) -> int:
    try:
        return read_onnx_header(path).loaded_weight_bytes
    except (OnnxHeaderError, OSError):
        return path.stat().st_size if path.is_file() else 0


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@hookimpl
def register_platforms() -> list[type[Platform]]:
    """Declare the one platform of this package."""
    return [OnnxPlatform]
