"""Names of files of real repositories, and what they tell."""

from __future__ import annotations

import pytest

from cardcage_sources.naming import chip_of, part_of, quantisation_of, split_name


@pytest.mark.parametrize(
    ("file_name", "quantisation"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("Qwen3-4B-Q8_0.gguf", "Q8_0"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("model-IQ2_XXS.gguf", "IQ2_XXS"),
        ("gemma-3-1b-it-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("bge-small-f16.gguf", "F16"),
        ("x-BF16-00001-of-00002.gguf", "BF16"),
        ("Q4_0/model-Q4_0.gguf", "Q4_0"),
        ("model.gguf", None),
        ("qwen-q.gguf", None),
        ("f16lamingo.gguf", None),
    ],
)
def test_quantisation(file_name: str, quantisation: str | None) -> None:
    assert quantisation_of(file_name) == quantisation


@pytest.mark.parametrize(
    ("text", "quantisation", "name", "size"),
    [
        ("Qwen2.5-0.5B-Instruct-GGUF", None, "qwen2.5-instruct", "0.5b"),
        ("Qwen2.5-0.5B-Instruct-Q4_K_M", "Q4_K_M", "qwen2.5-instruct", "0.5b-q4_k_m"),
        ("SmolLM2-135M-Instruct.Q4_1", "Q4_1", "smollm2-instruct", "135m-q4_1"),
        ("Mixtral-8x7B-v0.1", None, "mixtral-v0.1", "8x7b"),
        ("Qwen3-30B-A3B", None, "qwen3", "30b-a3b"),
        ("bge-m3", None, "bge-m3", ""),
        ("all-MiniLM-L6-v2", None, "all-minilm-l6-v2", ""),
        ("7B", None, "model", "7b"),
        ("我的模型-4B", None, "我的模型", "4b"),
    ],
)
def test_name_and_size(text: str, quantisation: str | None, name: str, size: str) -> None:
    parts = split_name(text, quantisation=quantisation)
    assert (parts.name, parts.size) == (name, size)


@pytest.mark.parametrize(
    ("file_name", "chip"),
    [
        ("Qwen3-4B_W8A8_RK3588.rkllm", "rk3588"),
        ("qwen2-rk3576-w4a16.rkllm", "rk3576"),
        ("model_RV1126B.rkllm", "rv1126b"),
        ("x-rk1820.rknn", "rk1820"),
        ("model.rkllm", None),
        ("ark3588x.rkllm", None),
    ],
)
def test_chip(file_name: str, chip: str | None) -> None:
    assert chip_of(file_name) == chip


def test_parts() -> None:
    assert part_of("a/x-Q4_0-00002-of-00003.gguf") == ("a/x-Q4_0.gguf", 2, 3)
    assert part_of("x.gguf") is None
