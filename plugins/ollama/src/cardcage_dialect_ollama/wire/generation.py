"""Requests of `/api/generate`, `/api/chat`, `/api/embed` and `/api/embeddings`."""

from typing import Any

from pydantic import Field

from cardcage_dialect_ollama.wire.fields import WireModel

__all__ = [
    "ChatBody",
    "EmbedBody",
    "EmbeddingsBody",
    "FunctionBody",
    "FunctionCallBody",
    "GenerateBody",
    "GenerationBody",
    "MessageBody",
    "ToolBody",
    "ToolCallBody",
]


class GenerationBody(WireModel):
    """What generate and chat share. `options`, `format`, `think` and `keep_alive` are checked where they are decoded."""

    model: str = ""
    stream: bool = True
    format: Any = None
    keep_alive: Any = None
    options: dict[str, Any] = Field(default_factory=dict)
    think: Any = None
    truncate: bool = True
    shift: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    debug_render_only: bool = Field(default=False, alias="_debug_render_only")


class GenerateBody(GenerationBody):
    """`/api/generate`."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    template: str = ""
    context: list[int] = Field(default_factory=list)
    raw: bool = False
    images: list[str] = Field(default_factory=list)


class FunctionCallBody(WireModel):
    """The function of a call; `arguments` is an object, never its text."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ToolCallBody(WireModel):
    """A call of an earlier turn."""

    id: str = ""
    function: FunctionCallBody


class MessageBody(WireModel):
    """One turn."""

    role: str = ""
    content: str = ""
    thinking: str | None = None
    images: list[str] = Field(default_factory=list)
    tool_calls: list[ToolCallBody] = Field(default_factory=list)
    tool_name: str | None = None
    tool_call_id: str | None = None


class FunctionBody(WireModel):
    """A function that the model may call; `parameters` is its JSON Schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolBody(WireModel):
    """A tool."""

    type: str = "function"
    function: FunctionBody


class ChatBody(GenerationBody):
    """`/api/chat`."""

    messages: list[MessageBody] = Field(default_factory=list)
    tools: list[ToolBody] = Field(default_factory=list)


class EmbedBody(WireModel):
    """`/api/embed`; `input` is checked where it is decoded."""

    model: str = ""
    input: Any = None
    truncate: bool = True
    dimensions: int = 0
    keep_alive: Any = None
    options: dict[str, Any] = Field(default_factory=dict)


class EmbeddingsBody(WireModel):
    """`/api/embeddings`, the old form."""

    model: str = ""
    prompt: str = ""
    keep_alive: Any = None
    options: dict[str, Any] = Field(default_factory=dict)
