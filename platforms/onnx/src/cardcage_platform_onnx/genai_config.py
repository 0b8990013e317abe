"""What `genai_config.json` says of a chat model. Standard library only: the server asks this too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cardcage_platform_onnx.model_files import GENAI_CONFIG, read_json
from cardcage_sdk.errors import InvalidModelError
from cardcage_sdk.models import ModelArtifact

__all__ = ["GenaiConfig", "context_tokens_for", "read_genai_config"]

DEFAULT_CONTEXT_TOKENS = 8192
"""Without an option, a model whose files promise more gets this: its cache would be larger than most boards' memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenaiConfig:
    """What `genai_config.json` says.

    Attributes:
        context_tokens: Positions that the model knows.
        end_tokens: Ids that end an answer.
        cache_bytes_per_token: Key-value cache of one token of one sequence.
        search: Default search options.
    """

    type: str
    context_tokens: int
    end_tokens: frozenset[int]
    cache_bytes_per_token: int
    search: Mapping[str, Any] = field(default_factory=dict)


def read_genai_config(directory: Path) -> GenaiConfig:
    """Read the file.

    Raises:
        InvalidModelError: It lacks what is needed.
    """
    config = read_json(directory / GENAI_CONFIG)
    try:
        model = config["model"]
        decoder = model["decoder"]
        ends = model["eos_token_id"]
        # Key and value in float32, as CPU builds have them; half as much elsewhere.
        cache = (
            2 * 4 * int(decoder["num_hidden_layers"]) * int(decoder["num_key_value_heads"]) * int(decoder["head_size"])
        )
        return GenaiConfig(
            type=str(model["type"]),
            context_tokens=int(model["context_length"]),
            end_tokens=frozenset(map(int, ends if isinstance(ends, list) else [ends])),
            cache_bytes_per_token=cache,
            search=config.get("search") or {},
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidModelError(
            f"'{directory / GENAI_CONFIG}' lacks or has wrong: {error}", param="model_path"
        ) from error


def context_tokens_for(config: GenaiConfig, artifact: ModelArtifact, wanted: int | None) -> int:
    """The context that a model is loaded with: what is asked for, within what it knows."""
    return min(wanted or artifact.context_tokens or DEFAULT_CONTEXT_TOKENS, config.context_tokens)
