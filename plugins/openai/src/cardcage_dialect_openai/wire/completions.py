"""`POST /v1/completions`, the legacy route that continues raw text."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import Field

from cardcage_dialect_openai.wire.chat import SamplingFields, StreamOptions, UsageObject
from cardcage_dialect_openai.wire.fields import MAX_INT32, Int, is_int, shaped

__all__ = ["Completion", "CompletionChoice", "CompletionLogprobs", "CompletionRequest"]


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(is_int(item) and 0 <= item <= MAX_INT32 for item in value)


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str) or _is_tokens(value):
        return True
    return (
        isinstance(value, list)
        and 0 < len(value) <= 128
        and all(isinstance(item, str) or _is_tokens(item) for item in value)
    )


class CompletionRequest(SamplingFields):
    """Body of a legacy completion request."""

    model: Annotated[str, Field(min_length=1)]
    prompt: Annotated[
        Any,
        shaped(
            _is_prompt, "a string, a non-empty array of token ids, or an array of 1 to 128 of these", is_required=True
        ),
    ]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    logprobs: Annotated[Int, Field(ge=0, le=5)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[Int, Field(ge=1)] | None = None
    grammar: str | None = None


class CompletionLogprobs(TypedDict):
    """Log probabilities in the legacy shape; `text_offset` counts characters of the choice's `text`."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One alternative, or what one chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None


class Completion(TypedDict):
    """A whole answer, or one event of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[UsageObject | None]
