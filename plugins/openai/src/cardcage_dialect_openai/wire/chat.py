"""`POST /v1/chat/completions`."""

from typing import Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict

from pydantic import Field

from cardcage_dialect_openai.wire.fields import MAX_INT32, Int, WireModel, shaped

__all__ = [
    "AllowedTools",
    "AudioContent",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatCompletionRequest",
    "ChatLogprobs",
    "ChatMessage",
    "FunctionCall",
    "ImageContent",
    "JsonSchemaFormat",
    "NamedToolChoice",
    "RefusalContent",
    "ResponseFormatObject",
    "SamplingFields",
    "Stop",
    "StreamOptions",
    "TextContent",
    "TokenLogprobEntry",
    "Tool",
    "ToolCallEntry",
    "UsageObject",
]

# --- request ------------------------------------------------------------------------------------------------------


class FunctionCall(WireModel):
    """Name and arguments of a call that the assistant made; arguments are JSON text, or an object from lax clients."""

    name: Annotated[str, Field(min_length=1)]
    arguments: Annotated[
        str | dict[str, Any] | None, shaped(lambda value: isinstance(value, str | dict), "a string of JSON")
    ] = None


class ToolCallEntry(WireModel):
    """One entry of an assistant message's `tool_calls`."""

    id: str | None = None
    type: str | None = None
    function: FunctionCall


def _is_content(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, dict) for part in value))


class ChatMessage(WireModel):
    """One entry of `messages`. Content parts are validated by kind when they are decoded."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[
        str | list[dict[str, Any]] | None, shaped(_is_content, "a string, an array of content parts or null")
    ] = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCallEntry] | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class TextContent(WireModel):
    """A `text` part."""

    text: str


class RefusalContent(WireModel):
    """A `refusal` part of an assistant message that a client sends back."""

    refusal: str


class ImageUrl(WireModel):
    """Where the image is: a data URL or a path of the server."""

    url: str


class ImageContent(WireModel):
    """An `image_url` part; lax clients send the address without the object around it."""

    image_url: Annotated[
        ImageUrl | str, shaped(lambda value: isinstance(value, str | dict), "an object with 'url'", is_required=True)
    ]


class InputAudio(WireModel):
    """A sound in base64."""

    data: str
    format: str


class AudioContent(WireModel):
    """An `input_audio` part."""

    input_audio: InputAudio


class ToolFunction(WireModel):
    """A function that the model may call; without `parameters` it takes none."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s\x00-\x1f\x7f]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(WireModel):
    """One entry of `tools`. The page takes any `type`; what counts is that there is a function in it."""

    type: str
    function: ToolFunction | None = None


class ToolName(WireModel):
    """Names a function."""

    name: str


class NamedToolChoice(WireModel):
    """`tool_choice` as an object that names a function."""

    type: Literal["function"]
    function: ToolName


class AllowedToolEntry(WireModel):
    """One entry of the tools that `allowed_tools` leaves."""

    type: Literal["function"]
    function: ToolName


class AllowedToolsBody(WireModel):
    """A subset of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: list[AllowedToolEntry]


class AllowedTools(WireModel):
    """`tool_choice` as an object that narrows the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedToolsBody


class JsonSchemaFormat(WireModel):
    """The `json_schema` of a response format. The schema itself is checked when it is decoded."""

    name: str | None = None
    description: str | None = None
    schema_: Any = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormatObject(WireModel):
    """`response_format`; `schema` beside `json_object` is llama.cpp's older way to give a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Any = Field(default=None, alias="schema")


class StreamOptions(WireModel):
    """Options of a streamed answer."""

    include_usage: bool | None = None


Stop: TypeAlias = Annotated[
    str | list[str] | None,
    shaped(
        lambda value: (
            isinstance(value, str)
            or (isinstance(value, list) and len(value) <= 16 and all(isinstance(item, str) for item in value))
        ),
        "a string or an array of at most 16 strings",
    ),
]


class SamplingFields(WireModel):
    """Sampling fields that chat and legacy completions share, with the extras that local clients send."""

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Int, Field(ge=-1, le=MAX_INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    repeat_last_n: Annotated[Int, Field(ge=-1, le=MAX_INT32)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    max_tokens: Annotated[Int, Field(ge=1)] | None = None
    stop: Stop = None
    seed: Int | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    n: Annotated[Int, Field(ge=1, le=128)] | None = None


class ChatCompletionRequest(SamplingFields):
    """Body of a chat request.

    The last block holds fields that are only here to be refused when they ask for something; `user`, `metadata`, `store`,
    `service_tier`, `prompt_cache_key`, `safety_identifier`, `verbosity`, `prediction` and unknown names are ignored.
    """

    model: Annotated[str, Field(min_length=1)]
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Annotated[Int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormatObject | None = None
    grammar: str | None = None
    tools: list[Tool] | None = None
    tool_choice: Annotated[
        str | dict[str, Any] | None, shaped(lambda value: isinstance(value, str | dict), "a string or an object")
    ] = None
    parallel_tool_calls: bool | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None


# --- answer -------------------------------------------------------------------------------------------------------


class UsageObject(TypedDict):
    """Token counts; the details are there where the runtime tells them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[dict[str, int]]
    completion_tokens_details: NotRequired[dict[str, int]]


class TokenLogprobEntry(TypedDict):
    """One token with its natural log probability, and its alternatives where it is a chosen one."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: NotRequired[list["TokenLogprobEntry"]]


class ChatLogprobs(TypedDict):
    """Log probabilities of a choice."""

    content: list[TokenLogprobEntry]
    refusal: None


class ChatChoice(TypedDict):
    """One alternative of a whole answer."""

    index: int
    message: dict[str, Any]
    finish_reason: str
    logprobs: NotRequired[ChatLogprobs | None]


class ChatCompletion(TypedDict):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageObject


class ChatChunkChoice(TypedDict):
    """What one chunk adds to one alternative."""

    index: int
    delta: dict[str, Any]
    finish_reason: str | None
    logprobs: NotRequired[ChatLogprobs | None]


class ChatChunk(TypedDict):
    """One event of a streamed answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[UsageObject | None]
