"""Repositories as people lay them out, and the variants that are seen in them."""

from __future__ import annotations

import pytest

from cardcage_sdk.errors import ConfigError, ModelNotFoundError
from cardcage_sdk.sources import Claim, ModelReference, RemoteFile, RemoteVariant, Source
from cardcage_sources.huggingface import HuggingFaceSource
from cardcage_sources.known import KNOWN_MODELS
from cardcage_sources.listing import Repository, manifest_names, variants_of
from cardcage_sources.modelscope import ModelScopeSource
from cardcage_sources.ollama import OllamaSource
from cardcage_sources.pypi import PypiSource
from cardcage_sources.url import UrlSource


def variants(
    *names: str, tag: str = "", repository: str = "Org/Qwen3-4B", sizes: int = 10, **manifests: str
) -> list[RemoteVariant]:
    files = [RemoteFile(name=name, url=f"https://host/{name}", size_bytes=sizes) for name in names]
    texts = {name: manifests["manifest"] for name in names if name.endswith("model.toml")}
    return list(variants_of(Repository(name=repository, files=files, manifests=texts), tag=tag))


def shown(found: list[RemoteVariant]) -> list[tuple[str, str, list[str]]]:
    return [(item.label, f"{item.name}:{item.size}", [file.name for file in item.files]) for item in found]


def test_quantisations_in_the_order_of_preference() -> None:
    found = variants(
        "q-Q8_0.gguf", "q-IQ1_S.gguf", "q-Q4_K_M.gguf", "README.md", "mmproj-q.gguf", repository="Org/Q-4B-GGUF"
    )
    assert shown(found) == [
        ("Q4_K_M", "q:4b-q4_k_m", ["q-Q4_K_M.gguf"]),
        ("Q8_0", "q:4b-q8_0", ["q-Q8_0.gguf"]),
        ("IQ1_S", "q:4b-iq1_s", ["q-IQ1_S.gguf"]),
    ]


def test_a_file_without_quantisation_is_its_own_label() -> None:
    assert shown(variants("weights/model.gguf")) == [("model.gguf", "qwen3:4b", ["model.gguf"])]


def test_a_named_file_is_the_only_variant() -> None:
    assert shown(variants("a-4b-Q8_0.gguf", "b/a-4b-Q4_0.gguf", tag="B/a-4b-q4_0.gguf")) == [
        ("Q4_0", "a:4b-q4_0", ["a-4b-Q4_0.gguf"])
    ]


def test_conversions_for_chips_take_the_small_files_with_them() -> None:
    found = variants("Qwen3-4B_RK3588.rkllm", "Qwen3-4B_RK3576.rkllm", "tokenizer.json", "docs/x.json", "photo.png")
    assert [(item.chips, [file.name for file in item.files]) for item in found] == [
        (("rk3588",), ["Qwen3-4B_RK3588.rkllm", "tokenizer.json"]),
        (("rk3576",), ["Qwen3-4B_RK3576.rkllm", "tokenizer.json"]),
    ]


def test_any_other_repository_is_one_variant_without_what_nobody_here_reads() -> None:
    found = variants(
        ".gitattributes", "README.md", "onnx/model.onnx", "model.safetensors", "pytorch_model.bin", "tf.h5"
    )
    assert shown(found) == [("", "qwen3:4b", ["onnx/model.onnx", "model.safetensors"])]


@pytest.mark.parametrize("names", [[], ["README.md", ".gitattributes"], ["weights.h5"]])
def test_a_repository_without_a_model(names: list[str]) -> None:
    with pytest.raises(ModelNotFoundError):
        variants(*names)


def test_a_described_directory_counts_only_when_it_is_whole() -> None:
    whole = (
        'name = "n"\nsize = "1b"\nplatform = "p"\nchips = ["c"]\n[[files]]\nname = "m.bin"\nsha256 = "'
        + "A" * 64
        + '"\n'
    )
    found = variants("p/c/model.toml", "p/c/m.bin", manifest=whole)
    assert shown(found) == [("p/c", "n:1b", ["m.bin"])]
    assert found[0].files[0].sha256 == "a" * 64
    with pytest.raises(ModelNotFoundError):
        variants("p/c/model.toml", "elsewhere/m.bin", manifest=whole)
    with pytest.raises(ModelNotFoundError):
        variants("model.toml", "m.bin", manifest='name = 7\n[[files]]\nname = "m.bin"\n')


def test_descriptions_are_few_and_small() -> None:
    files = [RemoteFile(name=f"{number}/model.toml", url="https://host/x", size_bytes=10) for number in range(100)]
    files.append(RemoteFile(name="huge/model.toml", url="https://host/x", size_bytes=1 << 30))
    assert len(manifest_names(files)) == 32
    assert "huge/model.toml" not in manifest_names(files)


def reference(
    name: str, *, owner: str = "", host: str = "", tag: str = "", url: str = "", source: str | None = None
) -> ModelReference:
    return ModelReference(text="t", name=name, owner=owner, host=host, tag=tag, url=url, source=source)


@pytest.mark.parametrize(
    ("name", "claims"),
    [
        (reference("Repo", owner="Org"), ["huggingface?", "modelscope?"]),
        (reference("Repo", owner="Org", host="hf.co", source="huggingface"), ["huggingface!"]),
        (reference("Repo", owner="Org", host="modelscope.cn", source="modelscope"), ["modelscope!"]),
        (reference("llama3.2"), ["ollama?"]),
        (reference("llama3.2", owner="library"), ["huggingface?", "modelscope?", "ollama?"]),
        (reference("thing", owner="me", host="registry.example:5000"), ["ollama!"]),
        (reference("m.gguf", url="https://host/m.gguf"), ["url!"]),
        (reference("smollm2"), ["ollama?", "pypi!"]),
        (reference("smollm2", tag="135M"), ["ollama?", "pypi!"]),
        (reference("smollm2", tag="1.7b"), ["ollama?"]),
        (reference("pkg==1", source="pypi"), ["ollama?", "pypi!"]),
    ],
)
def test_which_names_a_source_claims(name: ModelReference, claims: list[str]) -> None:
    sources: list[Source] = [HuggingFaceSource(), ModelScopeSource(), OllamaSource(), UrlSource(), PypiSource()]
    marks = {Claim.POSSIBLE: "?", Claim.CERTAIN: "!"}
    found = [(source.name, source.claims(name)) for source in sources]
    assert [f"{source}{marks[claim]}" for source, claim in found if claim] == claims


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        (HuggingFaceSource(), {"endpiont": "x"}),
        (HuggingFaceSource(), {"endpoint": 7}),
        (HuggingFaceSource(), {"owners": "Org"}),
        (HuggingFaceSource(), {"owners": [1]}),
        (OllamaSource(), {"token": "x"}),
        (UrlSource(), {"any": 1}),
        (PypiSource(), {"any": 1}),
    ],
)
def test_wrong_settings_are_refused_by_name(source: Source, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"\[sources\.{source.name}\]"):
        source.configure(settings)


def test_known_models_name_exact_wheels() -> None:
    for model in KNOWN_MODELS:
        assert all("==" in requirement for requirement in model.requirements)
        assert len({member.path.rpartition("/")[2] for member in model.members}) == len(model.members)
