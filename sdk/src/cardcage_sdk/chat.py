"""A chat request in neutral form: what every dialect decodes to and every engine is given.

Frozen values that know nothing of HTTP, wire formats or storage. A `None` means "silent": the service fills it from the
defaults of configuration, `model.toml` and load request before the request reaches an engine; what is still `None` then
is the engine's own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

__all__ = [
    "AudioPart",
    "ChatRequest",
    "ContentPart",
    "ImagePart",
    "JsonValue",
    "Message",
    "ResponseFormat",
    "Role",
    "Sampling",
    "TextPart",
    "ToolCall",
    "ToolChoice",
    "ToolSpec",
]

JsonValue: TypeAlias = Any
"""A JSON value: None, bool, int, float, str, list or dict of these."""

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of a message."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """An image of a message: encoded bytes, or a file of the server.

    Attributes:
        data: The encoded file, or None where `path` is set.
        path: A path that the service has already checked against the allowed roots.
        media_type: As `image/png`.
    """

    data: bytes | None = None
    path: str | None = None
    media_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioPart:
    """A sound of a message, as an encoded file; `format` is `wav` or `mp3`."""

    data: bytes
    format: str


ContentPart: TypeAlias = TextPart | ImagePart | AudioPart


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the assistant made in an earlier turn.

    Attributes:
        arguments: JSON text as the model produced it; may be empty (no arguments) or invalid.
    """

    id: str
    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of the conversation.

    Attributes:
        content: Parts in order; empty where an assistant turn only calls tools.
        tool_call_id: The call that a `tool` message answers.
        name: Optional name of the author, or of the tool.
        reasoning: What the assistant thought in that turn, where the client sent it back.
    """

    role: Role
    content: tuple[ContentPart, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None

    @property
    def text(self) -> str:
        """The text parts joined."""
        return "".join(part.text for part in self.content if isinstance(part, TextPart))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A function that the model may call.

    Attributes:
        parameters: JSON Schema of the arguments object; None means no arguments.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, JsonValue] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolChoice:
    """Whether and which tool the model calls; `name` is set where `mode` is `named`."""

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFormat:
    """The form that the answer's text must have.

    Attributes:
        kind: `json_object` is any JSON object, `json_schema` needs `schema`, `grammar` needs `grammar` (GBNF).
    """

    kind: Literal["text", "json_object", "json_schema", "grammar"] = "text"
    name: str | None = None
    schema: Mapping[str, JsonValue] | None = None
    grammar: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen and when to stop.

    The names are those of llama.cpp. `temperature` 0 is greedy. `stop` holds non-empty strings that are matched on the
    answer's text and are not part of it. `max_tokens` counts generated tokens, reasoning included.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    logit_bias: Mapping[int, float] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One request for generated text.

    Attributes:
        id: Unique among the requests of a server; names the request on the worker's pipe.
        model: Id of the loaded model.
        messages: The conversation; empty where `prompt` is set.
        prompt: Raw text or token ids to continue, with no chat template (legacy completions, Ollama's raw mode).
        suffix: Text that follows the gap to fill, for models that declare it; only with `prompt`.
        n: Number of alternatives; each event says which one it belongs to in `choice`.
        logprobs: None: not asked; otherwise the number of alternatives to report per token, 0 to 20.
        enable_thinking: True or False to switch a reasoning model; None leaves the template's default.
        template_arguments: Further variables for the chat template.
        reuse_prefix: False keeps the engine from using cached state of other requests (bit-for-bit comparisons).
    """

    id: str
    model: str
    messages: tuple[Message, ...] = ()
    prompt: str | tuple[int, ...] | None = None
    suffix: str | None = None
    sampling: Sampling = field(default_factory=Sampling)
    n: int = 1
    logprobs: int | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel_tool_calls: bool = True
    response_format: ResponseFormat = field(default_factory=ResponseFormat)
    enable_thinking: bool | None = None
    reasoning_effort: str | None = None
    template_arguments: Mapping[str, JsonValue] = field(default_factory=dict)
    reuse_prefix: bool = True

    @property
    def last_user_text(self) -> str:
        """Text of the last user message, or the raw prompt's text, or an empty string."""
        for message in reversed(self.messages):
            if message.role == "user":
                return message.text
        return self.prompt if isinstance(self.prompt, str) else ""
