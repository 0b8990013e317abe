"""Which files of a model hold its weights, and how much context to give it. Standard library and sdk only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardcage_platform_llamacpp.gguf_header import GgufHeader, is_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from cardcage_sdk.models import ModelArtifact

__all__ = ["DEFAULT_CONTEXT_TOKENS", "context_tokens_for", "is_embedding_model", "weight_files"]

DEFAULT_CONTEXT_TOKENS = 4096
"""Context of a slot where nobody says one: each slot's cache is allocated at load, and long contexts cost gigabytes."""

_ENCODERS = frozenset(
    {"bert", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "eurobert", "jina-bert-v2", "jina-bert-v3",
     "gemma-embedding"}
)  # fmt: skip


def weight_files(artifact: ModelArtifact) -> list[Path]:
    """GGUF files of the model's weights in order; llama.cpp finds the parts of a split model from the first.

    A vision projector beside the weights (`mmproj` in its name, by convention) is not one of them.
    """
    if artifact.path.is_file():
        return [artifact.path]
    names = sorted(file.name for file in artifact.files if "mmproj" not in file.name.lower())
    return [artifact.directory / name for name in names if is_gguf(artifact.directory / name)]


def context_tokens_for(artifact: ModelArtifact, header: GgufHeader, asked: int | None) -> int:
    """Context of one slot: what the load asks for, else what `model.toml` says, else a default; never over the trained one."""
    trained = header.integer("context_length")
    wanted = asked or artifact.context_tokens or DEFAULT_CONTEXT_TOKENS
    return min(wanted, trained) if trained else wanted


def is_embedding_model(artifact: ModelArtifact, header: GgufHeader) -> bool:
    """Whether the model makes vectors: `model.toml` decides, else the file's architecture or pooling."""
    if artifact.kind is not None:
        return artifact.kind == "embedding"
    return header.architecture in _ENCODERS or f"{header.architecture}.pooling_type" in header.metadata
