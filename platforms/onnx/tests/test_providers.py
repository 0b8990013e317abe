from __future__ import annotations

import pytest

from cardcage_platform_onnx import plugin
from cardcage_platform_onnx.providers import (
    PROVIDERS,
    Installation,
    candidates,
    find_devices,
    inspect_installation,
    provider_named,
)
from cardcage_platform_onnx.threads import choose_threads, physical_cores
from cardcage_sdk.errors import UnsupportedPlatformError

EVERYTHING = [provider.runtime_name for provider in PROVIDERS]
PLAIN = ["AzureExecutionProvider", "CPUExecutionProvider"]


def names(providers) -> list[str]:
    return [provider.name for provider in providers]


def test_auto_takes_what_is_there_and_the_cpu_last() -> None:
    assert names(candidates("auto", PLAIN, has_static_shapes=False)) == ["cpu"]
    everything = candidates("auto", EVERYTHING, has_static_shapes=True, has_device=bool)
    assert names(everything) == names(PROVIDERS)
    assert names(everything)[-1] == "cpu"


def test_auto_leaves_out_what_has_no_device() -> None:
    found = candidates("auto", EVERYTHING, has_static_shapes=True, has_device=lambda p: p.name in {"cuda", "cpu"})
    assert names(found) == ["cuda", "cpu"]


def test_auto_leaves_out_what_does_not_take_the_shapes() -> None:
    found = candidates("auto", EVERYTHING, has_static_shapes=False, has_device=bool)
    assert "qnn" not in names(found)
    assert "cann" in names(found)


@pytest.mark.parametrize("name", ["openvino", "OpenVINO", "OpenVINOExecutionProvider"])
def test_a_provider_is_found_by_either_name(name) -> None:
    assert provider_named(name).name == "openvino"


def test_a_named_provider_that_cannot_run_says_what_is_missing() -> None:
    with pytest.raises(UnsupportedPlatformError, match="install onnxruntime-openvino"):
        candidates("openvino", PLAIN, has_static_shapes=False)
    with pytest.raises(UnsupportedPlatformError, match="fixed input shapes"):
        candidates("qnn", EVERYTHING, has_static_shapes=False)
    with pytest.raises(UnsupportedPlatformError, match="known are: cann"):
        candidates("abacus", EVERYTHING, has_static_shapes=False)
    assert names(candidates("cpu", PLAIN, has_static_shapes=False)) == ["cpu"]


def test_names_are_unique() -> None:
    assert len(set(names(PROVIDERS))) == len(PROVIDERS) == len(set(EVERYTHING))


def test_devices_are_found_by_their_paths(tmp_path) -> None:
    assert find_devices(provider_named("cann"), tmp_path) == []
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci0").touch()
    (tmp_path / "dev/davinci_manager").touch()
    assert find_devices(provider_named("cann"), tmp_path) == [str(tmp_path / "dev/davinci0")]
    assert find_devices(provider_named("cpu"), tmp_path) == ["cpu"]


def test_a_build_is_known_by_distribution_or_library() -> None:
    gpu = Installation(versions={"onnxruntime-gpu": "1.32.0"}, libraries=frozenset(), is_importable=True)
    built = Installation(versions={}, libraries=frozenset({"libonnxruntime_providers_cann.so"}), is_importable=True)
    nothing = Installation(versions={}, libraries=frozenset(), is_importable=False)
    assert gpu.has(provider_named("cuda"))
    assert not gpu.has(provider_named("cann"))
    assert built.has(provider_named("cann"))
    assert built.has(provider_named("cpu"))
    assert not nothing.has(provider_named("cpu"))


def test_this_environment_has_the_cpu() -> None:
    installation = inspect_installation()
    assert installation.has(provider_named("cpu"))
    assert any(name.startswith("libonnxruntime") for name in installation.libraries)
    report = plugin.OnnxPlatform().probe()
    assert report.is_available
    assert "cpu" in report.versions["providers"].split(", ")
    assert {device.kind for device in report.devices} >= {"cpu"}


def test_the_report_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(
        plugin,
        "inspect_installation",
        lambda: Installation(versions={}, libraries=frozenset(), is_importable=False),
    )
    monkeypatch.setattr(plugin, "find_devices", lambda provider: ["/dev/davinci0"] if provider.name == "cann" else [])
    report = plugin.OnnxPlatform().probe()
    assert not report.is_available
    assert "cardcage-platform-onnx[cpu]" in report.reason
    assert "install onnxruntime-cann" in report.versions["providers not usable"]


def test_threads() -> None:
    assert choose_threads(wanted=None, share=3) == 3
    assert choose_threads(wanted=2, share=3) == 2
    assert choose_threads(wanted=8, share=3) == 3
    assert choose_threads(wanted=1, share=None) == 1
    assert 1 <= choose_threads(wanted=None, share=None) <= max(1, physical_cores() - 1)


def test_hardware_threads_of_one_core_count_once(monkeypatch, tmp_path) -> None:
    for cpu, siblings in ((0, "0,2"), (1, "1,3"), (2, "0,2"), (3, "1,3")):
        folder = tmp_path / f"cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert physical_cores(tmp_path) == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 2, 9})
    assert physical_cores(tmp_path) == 2
