"""Tables that are written flat and used as neutral values, and the one-line form of a validation error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from cardcage.config.values import Table
from cardcage_sdk.chat import Sampling
from cardcage_sdk.service import GenerationDefaults

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["GenerationTable", "ModelTable", "describe"]


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


StopStrings = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_as_list), Field(strict=False, max_length=64)
]


class GenerationTable(BaseModel):
    """Generation defaults as LlamaPi writes them: `[defaults]`, `default_params` of a model entry, and of `model.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0)] | None = None
    repeat_last_n: Annotated[int, Field(ge=-1)] | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_context_len: Annotated[int, Field(ge=1)] | None = None
    stop: StopStrings | None = None
    enable_thinking: bool | None = None

    def to_defaults(self) -> GenerationDefaults:
        """The neutral form."""
        values = self.model_dump()
        context = values.pop("max_context_len")
        thinking = values.pop("enable_thinking")
        return GenerationDefaults(sampling=Sampling(**values), max_context_len=context, enable_thinking=thinking)


class ModelTable(Table):
    """One `[[models]]` entry as it is written; `default_params` and `options` are checked apart."""

    model_id: Annotated[str, Field(min_length=1)]
    model_path: Annotated[str, Field(min_length=1)]
    instance_count: Annotated[int, Field(ge=1)] = 1
    request_queue_size: Annotated[int, Field(ge=0)] | None = None
    platform: str | None = None


_WORDS = {
    "tuple_type": "Input should be an array",
    "path_type": "Input should be a path",
    "dict_type": "Input should be a table",
}
"""TOML's words for what pydantic tells in Python's."""


def describe(error: ValidationError) -> str:
    """The first problem as `key: what is wrong`, with the value that was there."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key '{key}'"
    if first["type"] == "missing":
        return f"key '{key}' is missing"
    message = _WORDS.get(first["type"]) or first["msg"].removeprefix("Value error, ")
    if not key:
        return message  # about the table as a whole
    return f"{key}: {message[:1].lower()}{message[1:]} (got {first['input']!r})"
