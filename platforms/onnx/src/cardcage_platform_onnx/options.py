"""Load options of the ONNX platform. Server process only.

The same names may stand under `[onnx]` in a `model.toml`; a load option wins over that. An option that is None is silent.
"""

from __future__ import annotations

from typing import Literal

from cardcage_sdk.options import Field, PlatformOptions

__all__ = ["OnnxOptions"]


class OnnxOptions(PlatformOptions):
    """How ONNX Runtime is to load and run a model."""

    threads: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Threads of this model at most. By default the server shares the cores out between loaded models.",
    )
    variant: str | None = Field(
        default=None,
        min_length=1,
        max_length=40,
        description="Which of the model's files: 'exact' (the default), 'fast' (8-bit activations, about four times the "
        "speed, but a text's vector then depends a little on the texts computed beside it), or a name of model.toml.",
    )
    provider: str | None = Field(
        default=None,
        min_length=1,
        max_length=40,
        description="Execution provider: 'auto' (the default), or cpu, openvino, cuda, qnn, cann, vitisai, coreml, ...",
    )
    provider_options: dict[str, str | int | float | bool] | None = Field(
        default=None, description="Options of the execution provider, by its own names."
    )
    batch_tokens: int | None = Field(
        default=None,
        ge=16,
        le=1 << 20,
        description="Tokens, padding included, that are computed in one step; 256 on a CPU, more on accelerators.",
    )
    truncation: Literal["error", "end", "start"] | None = Field(
        default=None,
        description="What happens to a text that is too long: refuse it (the default), or cut off its end or its start.",
    )
    pooling: Literal["mean", "cls", "last", "none"] | None = Field(
        default=None,
        description="How token vectors become one vector, where neither the model's sentence-transformers files nor "
        "model.toml say it.",
    )
    prompt: str | None = Field(
        default=None,
        max_length=80,
        description="Name of the model's prompt (of config_sentence_transformers.json) that is put before every text; "
        "empty for none.",
    )
    prefill_chunk_tokens: int | None = Field(
        default=None,
        ge=16,
        le=8192,
        description="Chat: prompt tokens computed in one step, so that other answers flow and a cancel is quick.",
    )
