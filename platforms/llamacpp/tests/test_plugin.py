from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cardcage_platform_llamacpp.build_wheel import VERSION, write_smoke_model
from cardcage_platform_llamacpp.plugin import INSTALL_COMMAND, RUNTIME_VERSION, LlamaCppPlatform, register_platforms
from cardcage_sdk.errors import InvalidOptionError, LoadFailedError
from cardcage_sdk.models import ModelArtifact, ModelFile
from cardcage_sdk.options import validate_options

if TYPE_CHECKING:
    from pathlib import Path

PLATFORM = LlamaCppPlatform()


@pytest.fixture
def artifact(tmp_path: Path) -> ModelArtifact:
    write_smoke_model(tmp_path / "weights.gguf")
    (tmp_path / "README.md").write_text("hello", encoding="utf-8")
    files = tuple(ModelFile(name=path.name, size_bytes=path.stat().st_size) for path in tmp_path.iterdir())
    return ModelArtifact(path=tmp_path, name="smoke", files=files)


def test_importing_the_plugin_loads_no_runtime() -> None:
    code = (
        "import sys, cardcage_platform_llamacpp.plugin; print([m for m in ('llama_cpp', 'numpy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_engine_imports_no_pydantic_and_no_server(kit) -> None:
    if not PLATFORM.probe().is_available:
        kit.missing(PLATFORM.probe().reason)
    code = (
        "import sys, cardcage_platform_llamacpp.engine; print([m for m in ('pydantic', 'quart') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_one_runtime_version_everywhere() -> None:
    metadata = importlib.metadata.metadata("cardcage-platform-llamacpp")
    required = [line for line in metadata.get_all("Requires-Dist") or [] if line.startswith("llama-cpp-python")]
    assert required
    assert all(f"=={RUNTIME_VERSION}" in line and "extra ==" in line for line in required)
    assert VERSION == RUNTIME_VERSION


def test_registers_itself() -> None:
    assert register_platforms() == [LlamaCppPlatform]
    (entry,) = importlib.metadata.entry_points(group="cardcage.platforms", name="llamacpp")
    assert entry.load().register_platforms is register_platforms


def test_probe_without_the_runtime_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    report = PLATFORM.probe()
    assert not report.is_available
    assert INSTALL_COMMAND in report.reason
    assert report.devices[0].chip == "cpu"


def test_probe_refuses_another_version_of_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "0.2.0")
    report = PLATFORM.probe()
    assert not report.is_available
    assert "0.2.0" in report.reason
    assert RUNTIME_VERSION in report.reason


def test_claims_gguf_by_its_bytes(artifact: ModelArtifact, tmp_path: Path) -> None:
    assert PLATFORM.claims(artifact)
    (tmp_path / "weights.gguf").write_bytes(b"GGML old")
    assert not PLATFORM.claims(artifact)


def test_estimate_is_weights_and_the_cache_of_the_suggested_slots(artifact: ModelArtifact, tmp_path: Path) -> None:
    from dataclasses import replace

    small = PLATFORM.estimate(replace(artifact, context_tokens=100), {})
    large = PLATFORM.estimate(replace(artifact, context_tokens=300), {})
    assert small.device_bytes == 0
    assert large.host_bytes - small.host_bytes == 200 * 1024 * PLATFORM.scaling.suggested
    longest = PLATFORM.estimate(replace(artifact, context_tokens=10**9), {})
    assert longest.host_bytes - small.host_bytes == 412 * 1024 * PLATFORM.scaling.suggested, (
        "the model was trained on 512"
    )
    assert small.host_bytes > (tmp_path / "weights.gguf").stat().st_size
    (tmp_path / "weights.gguf").write_bytes(b"GGUF broken")
    assert PLATFORM.estimate(artifact, {}).host_bytes > 0, "a broken file is the load's to report"


def test_options_have_defaults_that_travel_as_json() -> None:
    options = validate_options(PLATFORM, {})
    assert json.loads(json.dumps(options)) == options
    assert options["kv_unified"] is False
    assert options["flash_attention"] is False
    assert options["use_extra_bufts"] is True
    assert options["batch_tokens"] == 512


@pytest.mark.parametrize(
    "options", [{"threads": 0}, {"threads": 100_000}, {"batch_tokens": 0}, {"openmp_wait_policy": "loud"}, {"n_ctx": 5}]
)
def test_options_out_of_range_or_unknown_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        validate_options(PLATFORM, options)
    assert next(iter(options)) in caught.value.message


def test_every_option_is_documented() -> None:
    for name, field in PLATFORM.option_model.model_fields.items():
        assert field.description, name


def test_the_workers_environment() -> None:
    assert PLATFORM.worker_environment({}) == {"GGML_NO_BACKTRACE": "1"}
    passive = PLATFORM.worker_environment({"openmp_wait_policy": "passive"})
    assert passive["OMP_WAIT_POLICY"] == "PASSIVE"


def test_a_died_load_is_tried_once_more_without_repacked_weights() -> None:
    options = validate_options(PLATFORM, {"batch_tokens": 256})
    recovery = PLATFORM.recovery(options, LoadFailedError("died", signal="SIGSEGV"))
    assert recovery is not None
    assert recovery.options == {**options, "use_extra_bufts": False}
    assert PLATFORM.recovery(recovery.options, LoadFailedError("died", signal="SIGSEGV")) is None
