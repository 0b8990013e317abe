"""Which variant a machine gets, and the reason against each other one."""

from __future__ import annotations

from typing import Any

import pytest

from cardcage.downloads.fitting import Machine, PlatformFacts, choose, fits_of
from cardcage_sdk.errors import ModelNotFoundError, NoFittingVariantError, VariantRequiredError
from cardcage_sdk.sources import RemoteFile, RemoteModel, RemoteVariant

GB = 10**9


def platform(
    name: str,
    *chips: str,
    patterns: tuple[str, ...] = (),
    reason: str = "",
    memory: int | None = None,
) -> PlatformFacts:
    return PlatformFacts(
        id=name,
        is_available=not reason,
        reason=reason,
        chips=chips,
        memory_bytes=memory,
        file_patterns=patterns,
    )


def variant(
    label: str, file: str, *, size: int = GB, platform: str | None = None, chips: tuple[str, ...] = (), tag: str = "4b"
) -> RemoteVariant:
    return RemoteVariant(
        label=label,
        name="qwen3",
        size=tag,
        platform=platform,
        chips=chips,
        files=(RemoteFile(name=file, url="https://host/x", size_bytes=size),),
    )


def model(*variants: RemoteVariant) -> RemoteModel:
    return RemoteModel(source="hub", reference="Org/Qwen3", variants=variants)


CPU = platform("ggml", "cpu", patterns=("*.gguf",))
NPU = platform("npu", "RK3588", patterns=("*.rkllm",))
COPROCESSOR = platform("npu3", "RK1828", memory=4 * GB)
ABSENT = platform("absent", patterns=("*.abs",), reason="its runtime is not installed")

GGUF = variant("Q4_K_M", "qwen3-q4_k_m.GGUF")
LARGE = variant("F16", "qwen3-f16.gguf", size=20 * GB)
FOR_3588 = variant("a", "qwen3_rk3588.rkllm", chips=("rk3588",))
FOR_3576 = variant("b", "qwen3_rk3576.rkllm", chips=("rk3576",))
FOR_1828 = variant("npu3/rk1828", "qwen3.rknn", platform="npu3", chips=("RK1828",))
HUGE_1828 = variant("huge", "qwen3.rknn", platform="npu3", chips=("RK1828",), size=5 * GB)

BOARD = Machine(platforms=(CPU, NPU, COPROCESSOR, ABSENT), memory_bytes=8 * GB)


@pytest.mark.parametrize(
    ("variants", "options", "label", "place"),
    [
        ([GGUF], {}, "Q4_K_M", (None, None)),
        ([LARGE, GGUF], {}, "Q4_K_M", (None, None)),
        ([FOR_3576, FOR_3588], {}, "a", (None, None)),
        ([FOR_1828], {}, "npu3/rk1828", ("npu3", "RK1828")),
        # The order of the machine's platforms decides between files that say nothing.
        ([FOR_3588, GGUF], {}, "Q4_K_M", (None, None)),
        ([GGUF, FOR_3588], {"platform": "npu"}, "a", ("npu", "rk3588")),
        ([GGUF, FOR_3588], {"place": "npu-rk3588"}, "a", ("npu", "rk3588")),
        # Said to be for another machine: taken at its word, whatever is here.
        ([FOR_3576, FOR_3588], {"platform": "npu", "chip": "rk3576"}, "b", ("npu", "rk3576")),
        ([FOR_3576], {"platform": "elsewhere", "chip": "rk3576"}, "b", ("elsewhere", "rk3576")),
        ([GGUF, LARGE], {"tag": "f16", "platform": "ggml"}, "F16", ("ggml", "cpu")),
        ([GGUF], {"tag": "qwen3-q4_k_m.gguf"}, "Q4_K_M", (None, None)),
        ([GGUF], {"tag": "4B"}, "Q4_K_M", (None, None)),
        ([GGUF], {"tag": "latest"}, "Q4_K_M", (None, None)),
        ([FOR_1828], {"place": "npu3-rk1828"}, "npu3/rk1828", ("npu3", "rk1828")),
        ([FOR_3576, FOR_3588], {"chip": "RK3588"}, "a", (None, "RK3588")),
    ],
)
def test_choice(
    variants: list[RemoteVariant], options: dict[str, Any], label: str, place: tuple[str | None, str | None]
) -> None:
    choice = choose(model(*variants), BOARD, asked="qwen3", **options)
    assert (choice.variant.label, (choice.platform, choice.chip)) == (label, place)


@pytest.mark.parametrize(
    ("wrong", "reasons"),
    [
        (LARGE, ["ggml: needs 22.0 GB of memory, here are 8.0 GB", "absent: it has no *.abs file"]),
        (FOR_3576, ["npu: made for rk3576, here is RK3588", "ggml: it has no *.gguf file"]),
        (HUGE_1828, ["npu3: needs 5.5 GB of memory, here are 4.0 GB", "npu: it is made for npu3"]),
        (variant("x", "m.abs"), ["absent: its runtime is not installed"]),
        (variant("y", "m.z", platform="other"), ["its platform other is not installed"]),
    ],
)
def test_the_reason_against_each_variant_is_told(wrong: RemoteVariant, reasons: list[str]) -> None:
    machine = Machine(
        platforms=tuple(item for item in BOARD.platforms if item.file_patterns or item is COPROCESSOR),
        memory_bytes=8 * GB,
    )
    if wrong.platform is None:
        machine = Machine(platforms=(CPU, NPU, ABSENT), memory_bytes=8 * GB)
    with pytest.raises(NoFittingVariantError) as caught:
        choose(model(wrong), machine, asked="qwen3")
    for reason in reasons:
        assert reason in caught.value.variants[0]["reason"]
        assert reason in caught.value.message


def test_variants_for_several_platforms_need_a_word() -> None:
    with pytest.raises(VariantRequiredError) as caught:
        choose(
            model(FOR_1828, variant("npu/rk3588", "m.rkllm", platform="npu", chips=("rk3588",))), BOARD, asked="qwen3"
        )
    assert [item["platform"] for item in caught.value.variants] == ["npu3", "npu"]
    assert "npu3, npu" in caught.value.message


@pytest.mark.parametrize("options", [{"tag": "70b"}, {"platform": "npu", "chip": "rk3562"}, {"place": "ggml-cpu"}])
def test_what_the_source_does_not_have(options: dict[str, Any]) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        choose(model(FOR_3588), BOARD, asked="qwen3", **options)
    assert "a" in caught.value.message


def test_a_machine_without_platforms_says_so() -> None:
    (fit,) = fits_of(model(GGUF), Machine(platforms=(), memory_bytes=None))
    assert (fit.platforms, fit.reason) == ((), "no platform is installed")
