"""What engines yield and what dialects see.

An engine yields `EngineOutput`: raw pieces (`Text`) that the sdk's text pipeline in the worker turns into events, or,
where it declares parsed output, the deltas themselves. A dialect sees `ChatEvent` only, in this order::

    Accepted, Progress*, (TextDelta | ReasoningDelta | ToolCallDelta | Progress)*, Finished   per choice

or an exception from the tree in `errors` at any point. Events are pure values; identity is a storage concern.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from cardcage_sdk.errors import CardcageError

__all__ = [
    "Accepted",
    "ChatEvent",
    "EngineOutput",
    "Failed",
    "Finished",
    "Progress",
    "ReasoningDelta",
    "Text",
    "TextDelta",
    "Timings",
    "TokenLogprob",
    "ToolCallDelta",
    "TopLogprob",
    "Usage",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprob:
    """An alternative at one position. `logprob` is natural, finite (clipped at -9999)."""

    token: str
    token_id: int
    logprob: float
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """The chosen token at one position with its alternatives, most likely first.

    Attributes:
        token: The token as text; what is not UTF-8 on its own is shown as U+FFFD.
        data: The token's bytes, from which a client rebuilds split characters.
    """

    token: str
    token_id: int
    logprob: float
    data: bytes
    top: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts of one request.

    Attributes:
        prompt_tokens: All tokens of the rendered prompt, cached ones included.
        completion_tokens: All generated tokens, reasoning included.
        cached_tokens: How many of the prompt's tokens were not computed again, or None where the runtime does not tell.
        reasoning_tokens: How many of the completion's tokens were reasoning, or None where unknown.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Where the time went, in seconds; None where it is not known.

    `queue_seconds` and `load_seconds` are filled by the service, the others by the worker.
    """

    queue_seconds: float | None = None
    load_seconds: float | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The request is valid and rendered; nothing that is the client's fault can come after this.

    Attributes:
        prompt_tokens: Length of the rendered prompt, or None where the runtime tells only at the end.
        starts_in_reasoning: The rendered prompt ends inside an open reasoning tag.
    """

    prompt_tokens: int | None = None
    starts_in_reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A sign of life before the first token; a dialect may show it or drop it.

    Attributes:
        queue_position: Requests ahead of this one; 0 is next. None once it runs.
        prefill_tokens: Prompt tokens computed so far, of `prompt_tokens`.
        cached_tokens: How many of them came from a cache. An engine that tells it here has it in the usage also where the
            worker ends the answer at a stop string and so never sees the engine's own `Finished`.
    """

    queue_position: int | None = None
    prefill_tokens: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A raw piece as the runtime produced it; `text` may end in the middle of a character where it is bytes.

    Attributes:
        token_ids: The tokens that the piece stands for; empty where the runtime does not tell.
        logprobs: One for each token, where the request asked.
    """

    text: str | bytes
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    choice: int = 0


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer: whole characters, no tags, no stop string."""

    text: str
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of what the model thinks before it answers, without its tags."""

    text: str
    choice: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of a tool call. The first of an `index` has `id` and `name`; later ones only more of `arguments`.

    The pieces of `arguments` of one index joined are the JSON text as the model produced it.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    choice: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of one choice; the last event of it.

    Attributes:
        reason: `stop`, `length` or `tool_calls`; open for more.
        usage: Counts of this choice; an engine may leave it None and the worker counts what it saw.
        stop_sequence: The stop string that ended it, if one did.
    """

    reason: str
    usage: Usage | None = None
    timings: Timings | None = None
    stop_sequence: str | None = None
    choice: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """One request of a batch failed; the others go on. Ends the request as a whole."""

    error: CardcageError


EngineOutput: TypeAlias = Text | TextDelta | ReasoningDelta | ToolCallDelta | Progress | Finished | Failed
"""What an engine yields. `TextDelta`, `ReasoningDelta` and `ToolCallDelta` only where it declares parsed output."""

ChatEvent: TypeAlias = Accepted | Progress | TextDelta | ReasoningDelta | ToolCallDelta | Finished
"""What a dialect sees."""
