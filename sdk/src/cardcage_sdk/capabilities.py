"""What a platform, or one loaded model, can do, as data.

Core never asks which platform it talks to, only what that can. What is not declared is refused by `check_chat` and its
siblings with a named error, in every dialect alike, before anything is queued.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

from cardcage_sdk.errors import InvalidRequestError, UnsupportedContentPartError, UnsupportedError

if TYPE_CHECKING:
    from cardcage_sdk.chat import ChatRequest

__all__ = ["SAMPLING_PARAMETERS", "Capabilities", "Feature", "Task", "check_chat"]


class Task(StrEnum):
    """A kind of work."""

    CHAT = "chat"
    EMBED = "embed"
    RERANK = "rerank"


class Feature(StrEnum):
    """Something that a request may ask for beyond plain text in and out."""

    CHOICES = "n"
    """More than one alternative of one prompt."""
    LOGPROBS = "logprobs"
    LOGIT_BIAS = "logit_bias"
    SEED = "seed"
    """Same seed, same text, on an otherwise idle engine."""
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    GRAMMAR = "grammar"
    """GBNF."""
    TOOLS = "tools"
    FORCED_TOOLS = "tool_choice"
    """`required` and a named tool hold by construction, not by hope."""
    IMAGES = "image_url"
    AUDIO = "input_audio"
    RAW_PROMPT = "prompt"
    TOKEN_PROMPT = "prompt_tokens"
    SUFFIX = "suffix"
    THINKING = "enable_thinking"
    """Reasoning can be switched on and off."""
    DIMENSIONS = "dimensions"
    """Vectors may be cut and normalised again."""


SAMPLING_PARAMETERS = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repeat_penalty",
        "repeat_last_n",
        "frequency_penalty",
        "presence_penalty",
    }
)
"""Names that `Capabilities.sampling` may hold; the rest of `Sampling` is either a feature or always honoured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """A declaration; the conformance kit tests each claim, and that what is not claimed is refused.

    Attributes:
        tasks: Kinds of work.
        features: What requests may ask for.
        sampling: Sampling parameters that are honoured, of `SAMPLING_PARAMETERS`. `stop` and `max_tokens` always are.
        output: `raw` text goes through the sdk's text pipeline, `parsed` output has tool calls and reasoning split.
        max_parallel: Calls of an `Engine` that may run at once in one worker; a `BatchEngine` ignores it.
        max_choices: Upper bound of `n`, where `Feature.CHOICES` is declared.
        embed_in_flight: Embedding and rerank requests that the engine may hold at once, to batch across requests.
        cancel_seconds: Within this time after `cancel` the instance is free again; past it the worker is killed.
    """

    tasks: frozenset[Task]
    features: frozenset[Feature] = frozenset()
    sampling: frozenset[str] = frozenset()
    output: Literal["raw", "parsed"] = "raw"
    max_parallel: int = 1
    max_choices: int = 1
    embed_in_flight: int = 1
    cancel_seconds: float = 2.0

    def __post_init__(self) -> None:
        """Take any set-like value and refuse names that do not exist."""
        object.__setattr__(self, "tasks", frozenset(Task(task) for task in self.tasks))
        object.__setattr__(self, "features", frozenset(Feature(feature) for feature in self.features))
        object.__setattr__(self, "sampling", frozenset(self.sampling))
        unknown = self.sampling - SAMPLING_PARAMETERS
        if unknown:
            raise ValueError(f"unknown sampling parameters: {', '.join(sorted(unknown))}")


def check_chat(request: ChatRequest, capabilities: Capabilities) -> None:
    """Refuse what `capabilities` does not declare.

    Only what the client itself asked for is to be checked, so call this before defaults are merged in.

    Raises:
        UnsupportedError: A field asks for something that is not declared; `param` names it.
        UnsupportedContentPartError: A content part of an undeclared kind.
        InvalidRequestError: `n` is over the declared bound.
    """
    from cardcage_sdk.chat import AudioPart, ImagePart

    asked: list[tuple[bool, Feature]] = [
        (request.n > 1, Feature.CHOICES),
        (request.logprobs is not None, Feature.LOGPROBS),
        (bool(request.sampling.logit_bias), Feature.LOGIT_BIAS),
        (request.sampling.seed is not None, Feature.SEED),
        (request.response_format.kind == "json_object", Feature.JSON_OBJECT),
        (request.response_format.kind == "json_schema", Feature.JSON_SCHEMA),
        (request.response_format.kind == "grammar", Feature.GRAMMAR),
        (bool(request.tools) and request.tool_choice.mode != "none", Feature.TOOLS),
        (request.tool_choice.mode in {"required", "named"}, Feature.FORCED_TOOLS),
        (request.prompt is not None, Feature.RAW_PROMPT),
        (isinstance(request.prompt, tuple), Feature.TOKEN_PROMPT),
        (request.suffix is not None, Feature.SUFFIX),
        (request.enable_thinking is True, Feature.THINKING),
    ]
    for wanted, feature in asked:
        if wanted and feature not in capabilities.features:
            param = "response_format" if feature.startswith("json_") else feature.value
            raise UnsupportedError(feature.value, param=param)
    for field in fields(request.sampling):
        if (
            field.name in SAMPLING_PARAMETERS
            and getattr(request.sampling, field.name) is not None
            and field.name not in capabilities.sampling
        ):
            raise UnsupportedError(field.name)
    if request.n > max(1, capabilities.max_choices):
        raise InvalidRequestError(f"n must be at most {capabilities.max_choices}", param="n")
    for message in request.messages:
        for part in message.content:
            if isinstance(part, ImagePart) and Feature.IMAGES not in capabilities.features:
                raise UnsupportedContentPartError(Feature.IMAGES.value)
            if isinstance(part, AudioPart) and Feature.AUDIO not in capabilities.features:
                raise UnsupportedContentPartError(Feature.AUDIO.value)
