"""The settings of one load: `[onnx]` of the model's `model.toml` under the load options. No library, since a worker reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cardcage_platform_onnx.model_files import EXACT
from cardcage_sdk.errors import InvalidModelError

__all__ = ["Settings", "merge_settings"]

_CHOICES: dict[str, tuple[str, ...]] = {
    "truncation": ("error", "end", "start"),
    "task": ("embed", "rerank"),
    "pooling": ("mean", "cls", "last", "none"),
    "score": ("sigmoid", "logit"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to load and run one model. What is None is decided from the model's own files.

    Attributes:
        batch_tokens: Tokens of one step, padding included.
        task: What an encoder's output is taken for.
        pooling: How token vectors become one vector; `none` where the graph does it.
        max_tokens: Longest input, special tokens included.
        prefix: Text put before every input; `prompt` names one of the model's own instead.
        dimensions: Lengths that a vector may be cut to; `matryoshka` allows any.
        fixed_shape: Rows and tokens that every run is to have, for devices that take nothing else.
        sequence_lengths: Padded lengths that may occur, for devices that compile for each shape.
        score: Whether a reranker's score is its logit or the sigmoid of it.
    """

    variant: str = EXACT
    provider: str = "auto"
    provider_options: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    batch_tokens: int | None = None
    truncation: Literal["error", "end", "start"] = "error"
    task: Literal["embed", "rerank"] | None = None
    pooling: Literal["mean", "cls", "last", "none"] | None = None
    max_tokens: int | None = None
    prompt: str | None = None
    prefix: str | None = None
    dimensions: tuple[int, ...] = ()
    matryoshka: bool = False
    sequence_lengths: tuple[int, ...] = ()
    fixed_shape: tuple[int, int] | None = None
    score: Literal["sigmoid", "logit"] | None = None
    prefill_chunk_tokens: int = 128


def merge_settings(extra: Mapping[str, Any], options: Mapping[str, Any]) -> Settings:
    """Load options over `model.toml` over the defaults.

    Args:
        extra: The table `[onnx]`, unchecked. Names that are not known are left alone: a later version may know them.
        options: Validated load options; None is silent.

    Raises:
        InvalidModelError: A value of `extra` is of the wrong kind.
    """
    values: dict[str, Any] = {}
    for name, check in _CHECKS.items():
        value = options.get(name)
        if value is None:
            value = extra.get(name)
            if value is None:
                continue
        values[name] = check(name, value)
    settings = Settings(**values)
    if settings.provider_options and settings.provider == "auto":
        raise InvalidModelError("provider_options need a provider that they are for: name one", param="options")
    return settings


def _wrong(name: str, wanted: str, value: object) -> InvalidModelError:
    return InvalidModelError(f"model.toml: '{name}' under [onnx] must be {wanted}, not {value!r}", param="model_path")


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(name, "a text", value)
    allowed = _CHOICES.get(name)
    if allowed is not None and value not in allowed:
        raise _wrong(name, "one of " + ", ".join(allowed), value)
    return value


def _count(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _wrong(name, "a whole number above 0", value)
    return value


def _counts(name: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list | tuple) or not value:
        raise _wrong(name, "a list of whole numbers above 0", value)
    return tuple(sorted(_count(name, item) for item in value))


def _shape(name: str, value: object) -> tuple[int, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise _wrong(name, "two whole numbers above 0, rows and tokens", value)
    return _count(name, value[0]), _count(name, value[1])


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _provider_options(name: str, value: object) -> dict[str, str]:
    """Execution providers take texts only; `true` and numbers are written as they expect them."""
    if not isinstance(value, Mapping):
        raise _wrong(name, "a table", value)
    result = {}
    for key, item in value.items():
        if not isinstance(item, str | int | float | bool):
            raise _wrong(f"{name}.{key}", "a text, a number, true or false", item)
        result[str(key)] = str(item)
    return result


_CHECKS: dict[str, Any] = {
    "variant": _text,
    "provider": _text,
    "provider_options": _provider_options,
    "threads": _count,
    "batch_tokens": _count,
    "truncation": _text,
    "task": _text,
    "pooling": _text,
    "max_tokens": _count,
    "prompt": _text,
    "prefix": _text,
    "dimensions": _counts,
    "matryoshka": _flag,
    "sequence_lengths": _counts,
    "fixed_shape": _shape,
    "score": _text,
    "prefill_chunk_tokens": _count,
}
