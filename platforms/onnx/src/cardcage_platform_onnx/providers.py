"""Execution providers: what each needs, which this machine has, and which a model gets. Standard library only.

A provider is chosen by what it can do: it must be in the installed build of onnxruntime, its device must be there, and it
must take the model's shapes. The table is data; nothing else in this package asks for a provider's name.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cardcage_sdk.errors import UnsupportedPlatformError
from cardcage_sdk.platform import Device

__all__ = [
    "PROVIDERS",
    "Installation",
    "Provider",
    "candidates",
    "find_devices",
    "inspect_installation",
    "provider_named",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One execution provider.

    Attributes:
        name: Name in options and reports.
        runtime_name: onnxruntime's name of it.
        packages: Builds of onnxruntime that have it, the usual one first.
        library: Part of the name of its shared library in such a build; empty where it is linked in.
        kind: What it computes on.
        device_paths: Patterns below `/`; one that exists says that the device is there.
        operating_systems: `sys.platform` prefixes that it exists on; empty is any.
        static_shapes: It takes graphs of fixed input shapes only.
        compiles_shapes: It compiles anew for each new shape, so lengths are padded to a few.
        batch_tokens: Padded tokens of one step that keep it busy.
        defaults: Options that it is given unless the model or the load says otherwise.
    """

    name: str
    runtime_name: str
    packages: tuple[str, ...]
    library: str = ""
    kind: Literal["cpu", "npu", "gpu"] = "npu"
    device_paths: tuple[str, ...] = ()
    operating_systems: tuple[str, ...] = ()
    static_shapes: bool = False
    compiles_shapes: bool = False
    batch_tokens: int = 8192
    defaults: Mapping[str, str] = field(default_factory=dict)


# First comes what `auto` tries first. The CPU is always there and is the last.
PROVIDERS: tuple[Provider, ...] = (
    Provider(
        name="cann",
        runtime_name="CANNExecutionProvider",
        packages=("onnxruntime-cann",),
        library="providers_cann",
        device_paths=("dev/davinci[0-9]*",),
        compiles_shapes=True,
    ),
    Provider(
        name="qnn",
        runtime_name="QNNExecutionProvider",
        packages=("onnxruntime-qnn",),
        library="providers_qnn",
        device_paths=("dev/fastrpc-cdsp*", "dev/adsprpc-smd*"),
        static_shapes=True,
    ),
    Provider(
        name="vitisai",
        runtime_name="VitisAIExecutionProvider",
        packages=("onnxruntime-vitisai",),
        library="providers_vitisai",
        device_paths=("sys/bus/pci/drivers/amdxdna/*:*",),
        static_shapes=True,
    ),
    Provider(
        name="cuda",
        runtime_name="CUDAExecutionProvider",
        packages=("onnxruntime-gpu",),
        library="providers_cuda",
        kind="gpu",
        device_paths=("proc/driver/nvidia/gpus/*", "dev/nvhost-gpu", "dev/nvidia[0-9]*"),
    ),
    Provider(
        name="migraphx",
        runtime_name="MIGraphXExecutionProvider",
        packages=("onnxruntime-migraphx",),
        library="providers_migraphx",
        kind="gpu",
        device_paths=("dev/kfd",),
        compiles_shapes=True,
    ),
    Provider(
        name="openvino",
        runtime_name="OpenVINOExecutionProvider",
        packages=("onnxruntime-openvino",),
        library="providers_openvino",
        device_paths=(
            "sys/bus/pci/drivers/intel_vpu/*:*",
            "sys/bus/pci/drivers/i915/*:*",
            "sys/bus/pci/drivers/xe/*:*",
        ),
        compiles_shapes=True,
        batch_tokens=2048,
        # On CPUs with AMX it would choose bfloat16 by itself, and vectors would no longer be those of the exact variant.
        defaults={"precision": "ACCURACY"},
    ),
    Provider(
        name="directml",
        runtime_name="DmlExecutionProvider",
        packages=("onnxruntime-directml",),
        kind="gpu",
        operating_systems=("win32",),
    ),
    Provider(
        name="coreml",
        runtime_name="CoreMLExecutionProvider",
        packages=("onnxruntime",),
        operating_systems=("darwin",),
        compiles_shapes=True,
        defaults={"ModelFormat": "MLProgram"},
    ),
    Provider(
        name="cpu",
        runtime_name="CPUExecutionProvider",
        packages=("onnxruntime",),
        kind="cpu",
        # MiniLM, one thread, texts per CPU second: short ones 268, 288, 288, 266 and mixed ones 90, 92, 87, 80 with 128, 256,
        # 512 and 1024 tokens; a step of 256 is also the shorter wait, and lets the next texts come in while it runs.
        batch_tokens=256,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The build of onnxruntime in this environment, as its files tell.

    Attributes:
        versions: Version by distribution, of every build that is installed.
        libraries: Names of the shared libraries in it.
    """

    versions: Mapping[str, str]
    libraries: frozenset[str]
    is_importable: bool

    def has(self, provider: Provider) -> bool:
        """The build has this provider."""
        if not self.is_importable:
            return False
        if provider.kind == "cpu":
            return True
        if provider.operating_systems and not sys.platform.startswith(provider.operating_systems):
            return False
        if provider.library and any(provider.library in name for name in self.libraries):
            return True
        return any(package in self.versions for package in provider.packages)


def inspect_installation() -> Installation:
    """Look for onnxruntime without importing it."""
    names = {package for provider in PROVIDERS for package in provider.packages}
    versions = {}
    for name in sorted(names):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    spec = importlib.util.find_spec("onnxruntime")
    folders = [Path(place) / "capi" for place in (spec.submodule_search_locations or ())] if spec else []
    libraries = frozenset(
        file.name
        for folder in folders
        if folder.is_dir()
        for file in folder.iterdir()
        if ".so" in file.name or ".dll" in file.name
    )
    return Installation(versions=versions, libraries=libraries, is_importable=spec is not None)


def find_devices(provider: Provider, root: Path = Path("/")) -> list[str]:
    """Paths that say that a provider's device is here; for the CPU and on systems without such paths always one."""
    if not provider.device_paths:
        return [provider.kind]
    return sorted({str(path) for pattern in provider.device_paths for path in root.glob(pattern)})


def device_of(provider: Provider, place: str) -> Device:
    """How a device that was found is reported."""
    return Device(chip=provider.name, kind=provider.kind, id=Path(place).name, description=place)


def provider_named(name: str) -> Provider:
    """Look a provider up by our name or onnxruntime's.

    Raises:
        UnsupportedPlatformError: There is none; the message names all.
    """
    wanted = name.lower().removesuffix("executionprovider")
    for provider in PROVIDERS:
        if wanted in {provider.name, provider.runtime_name.lower().removesuffix("executionprovider")}:
            return provider
    known = ", ".join(provider.name for provider in PROVIDERS)
    raise UnsupportedPlatformError("onnx", reason=f"there is no execution provider '{name}'; known are: {known}")


def candidates(
    wanted: str,
    available: Iterable[str],
    *,
    has_static_shapes: bool,
    has_device: Callable[[Provider], bool] = lambda provider: bool(find_devices(provider)),
) -> list[Provider]:
    """Providers to try for one model, best first.

    Args:
        wanted: A provider's name, or `auto`.
        available: onnxruntime's names of the providers in this build.
        has_static_shapes: Every input of the model has a fixed shape.
        has_device: Whether a provider's device is here.

    Returns:
        With `auto`, all that can run the model, the CPU last; else the one that was named.

    Raises:
        UnsupportedPlatformError: The one that was named cannot run here; the reason says what is missing.
    """
    build = set(available)
    if wanted != "auto":
        provider = provider_named(wanted)
        if provider.runtime_name not in build:
            have = ", ".join(p.name for p in PROVIDERS if p.runtime_name in build)
            raise UnsupportedPlatformError(
                "onnx",
                reason=f"this build of onnxruntime has no provider '{provider.name}' (it has: {have}); "
                f"install {provider.packages[0]} in its place",
            )
        if provider.static_shapes and not has_static_shapes:
            raise UnsupportedPlatformError(
                "onnx",
                reason=f"provider '{provider.name}' takes models of fixed input shapes only, and this one's are free; write "
                "fixed_shape = [rows, tokens] under [onnx] in model.toml",
            )
        return [provider]
    return [
        provider
        for provider in PROVIDERS
        if provider.runtime_name in build and has_device(provider) and (has_static_shapes or not provider.static_shapes)
    ]
