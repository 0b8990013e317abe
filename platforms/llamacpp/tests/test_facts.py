"""What a header tells without a load, on files that gguf's own writer made."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from cardcage_platform_llamacpp.facts import read_facts
from cardcage_platform_llamacpp.gguf_header import GgufError, read_header
from cardcage_platform_llamacpp.plugin import LlamaCppPlatform
from cardcage_sdk.capabilities import Feature, Task
from cardcage_sdk.models import ModelArtifact, ModelFile


def write(path: Path, *, template: str | None = None, architecture: str = "llama") -> ModelArtifact:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(2048)
    writer.add_embedding_length(8)
    writer.add_file_type(15)
    writer.add_name("Tiny")
    writer.add_array("tokenizer.ggml.scores", [0.5] * 2000)
    if template is not None:
        writer.add_chat_template(template)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), dtype=np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(8, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ModelArtifact(path=path, name="tiny", files=(ModelFile(name=path.name, size_bytes=path.stat().st_size),))


def test_a_chat_model(tmp_path: Path) -> None:
    artifact = write(tmp_path / "m.gguf", template="{{ messages }}{% if enable_thinking %}<think></think>{% endif %}")
    facts = LlamaCppPlatform().describe(artifact)
    assert (facts.format, facts.family, facts.quantization) == ("gguf", "llama", "Q4_K_M")
    assert (facts.parameter_count, facts.context_tokens, facts.embedding_dimensions) == (40, 2048, 8)
    assert facts.reasoning_tags == ("<think>", "</think>")
    assert facts.capabilities is not None
    assert facts.capabilities.tasks == {Task.CHAT}
    assert Feature.THINKING in facts.capabilities.features
    assert facts.metadata["general.name"] == "Tiny"
    assert facts.metadata["tokenizer.ggml.scores"] == []
    assert facts.tensors == (
        {"name": "token_embd.weight", "type": "F32", "shape": [8, 4]},
        {"name": "output_norm.weight", "type": "F16", "shape": [8]},
    )


def test_a_model_that_does_not_think(tmp_path: Path) -> None:
    facts = read_facts(write(tmp_path / "m.gguf", template="{{ messages }}"))
    assert facts.reasoning_tags is None
    assert facts.capabilities is not None
    assert Feature.THINKING not in facts.capabilities.features


def test_an_encoder(tmp_path: Path) -> None:
    facts = read_facts(write(tmp_path / "m.gguf", architecture="bert"))
    assert facts.capabilities is not None
    assert facts.capabilities.tasks == {Task.EMBED}
    assert facts.chat_template is None


def test_a_damaged_file_tells_nothing(tmp_path: Path) -> None:
    artifact = write(tmp_path / "m.gguf")
    whole = artifact.path.read_bytes()
    at = whole.index(b"output_norm.weight")
    artifact.path.write_bytes(whole[: at + 4])
    with pytest.raises(GgufError):
        read_header(artifact.path)
    assert read_facts(artifact).format == ""
