"""What a model's files tell of it, for listings: read from the header, without loading anything. Server process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cardcage_platform_llamacpp.declared import CAPABILITIES
from cardcage_platform_llamacpp.gguf_header import GgufError, GgufHeader, read_header
from cardcage_platform_llamacpp.weights import is_embedding_model, weight_files
from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.models import ModelFacts

if TYPE_CHECKING:
    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.models import ModelArtifact

__all__ = ["read_facts"]

_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
"""`general.file_type`, as llama.cpp writes it."""

_TENSOR_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


def read_facts(artifact: ModelArtifact) -> ModelFacts:
    """Read the header of the weights; nothing is known where there are none or they are damaged."""
    files = weight_files(artifact)
    try:
        header = read_header(files[0]) if files else None
    except (GgufError, OSError):
        header = None
    if header is None:
        return ModelFacts()
    embeds = is_embedding_model(artifact, header)
    own = header.metadata.get("tokenizer.chat_template")
    template = artifact.chat_template or (own if isinstance(own, str) else None)
    file_type = header.metadata.get("general.file_type")
    return ModelFacts(
        format="gguf",
        family=header.architecture,
        # Of a model in several files the header of the first lists only its own tensors.
        parameter_count=header.parameter_count if len(files) == 1 else None,
        quantization=_FILE_TYPES.get(file_type, "") if isinstance(file_type, int) else "",
        context_tokens=header.integer("context_length") or None,
        embedding_dimensions=header.integer("embedding_length") or None,
        capabilities=_capabilities(template, embeds=embeds),
        reasoning_tags=None if embeds else artifact.reasoning_tags or _reasoning_tags(template),
        chat_template=None if embeds else template,
        metadata=_metadata(header),
        tensors=tuple(
            {"name": tensor.name, "type": _TENSOR_TYPES.get(tensor.type, str(tensor.type)), "shape": list(tensor.shape)}
            for tensor in header.tensors
        ),
    )


def _capabilities(template: str | None, *, embeds: bool) -> Capabilities:
    if embeds:
        return replace(CAPABILITIES, tasks=frozenset({Task.EMBED}), features=frozenset({Feature.DIMENSIONS}))
    missing = {Feature.DIMENSIONS} if "enable_thinking" in (template or "") else {Feature.DIMENSIONS, Feature.THINKING}
    return replace(CAPABILITIES, tasks=frozenset({Task.CHAT}), features=CAPABILITIES.features - missing)


def _reasoning_tags(template: str | None) -> tuple[str, str] | None:
    from cardcage_sdk.text.template import find_reasoning_tags

    return find_reasoning_tags(template or "")


def _metadata(header: GgufHeader) -> dict[str, JsonValue]:
    """Without the long arrays, of which only that they are there is known."""
    return {
        key: [] if value is None and key in header.array_lengths else value for key, value in header.metadata.items()
    }
