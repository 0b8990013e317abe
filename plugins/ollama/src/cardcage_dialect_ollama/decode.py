"""From wire models to neutral requests. Pure: what depends on the loaded model is added in `fit_to_model`."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cardcage_dialect_ollama.context import decode_context
from cardcage_dialect_ollama.media import decode_content
from cardcage_dialect_ollama.names import ModelName
from cardcage_dialect_ollama.options import Options, fill_sampling
from cardcage_dialect_ollama.settings import Settings
from cardcage_dialect_ollama.wire.generation import (
    ChatBody,
    EmbedBody,
    EmbeddingsBody,
    GenerateBody,
    GenerationBody,
    MessageBody,
    ToolBody,
)
from cardcage_sdk.capabilities import Feature, Task
from cardcage_sdk.chat import ChatRequest, ImagePart, Message, ResponseFormat, Role, TextPart, ToolCall, ToolSpec
from cardcage_sdk.client_json import check_plain, check_schema
from cardcage_sdk.embeddings import EmbedRequest
from cardcage_sdk.errors import InvalidRequestError, InvalidSchemaError, UnsupportedError
from cardcage_sdk.service import ModelStatus

__all__ = [
    "check_flags",
    "decode_chat",
    "decode_embed",
    "decode_embeddings",
    "decode_generate",
    "decode_messages",
    "fit_to_model",
]

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "max": "high"}
"""Chat templates that know efforts know these three."""

_MAX_TOP_LOGPROBS = 20


def check_flags(body: GenerationBody) -> None:
    """Refuse what comes before the name of the model.

    Raises:
        InvalidRequestError, UnsupportedError: With Ollama's text where it has one.
    """
    if not 0 <= body.top_logprobs <= _MAX_TOP_LOGPROBS:
        raise InvalidRequestError("top_logprobs must be between 0 and 20", param="top_logprobs")
    if body.debug_render_only:
        raise UnsupportedError("_debug_render_only", message="_debug_render_only is not supported")


# --- generate and chat --------------------------------------------------------------------------------------------


def decode_generate(body: GenerateBody, *, request_id: str, options: Options, settings: Settings) -> ChatRequest:
    """Decode a request of `/api/generate`. A template of its own is rendered by the route.

    Raises:
        RequestError: A field is wrong or asks for what no engine here could do.
    """
    if body.raw and (body.template or body.system or body.context):
        raise InvalidRequestError("raw mode does not support template, system, or context", param="raw")
    if body.suffix and (body.images or body.context or body.system or body.template):
        raise InvalidRequestError("suffix does not support template, system, context, or images", param="suffix")
    request = _common(body, request_id=request_id, options=options)
    if body.raw or body.suffix:
        if body.images:
            raise UnsupportedError("images", message="raw mode does not support images")
        return replace(request, prompt=body.prompt, suffix=body.suffix or None)
    earlier = decode_context(body.context)
    if body.system:
        kept = earlier[1:] if earlier and earlier[0].role == "system" else earlier
        earlier = (Message(role="system", content=(TextPart(body.system),)), *kept)
    content = decode_content(body.prompt, body.images, settings=settings)
    return replace(request, messages=(*earlier, Message(role="user", content=content)))


def decode_chat(body: ChatBody, *, request_id: str, options: Options, settings: Settings) -> ChatRequest:
    """Decode a request of `/api/chat`.

    Raises:
        RequestError: As `decode_generate`.
    """
    return replace(
        _common(body, request_id=request_id, options=options),
        messages=decode_messages(body.messages, settings=settings),
        tools=_decode_tools(body.tools),
    )


def _common(body: GenerationBody, *, request_id: str, options: Options) -> ChatRequest:
    thinking, effort = _decode_think(body.think)
    return ChatRequest(
        id=request_id,
        model="",
        sampling=options.sampling,
        logprobs=body.top_logprobs if body.logprobs else None,
        response_format=_decode_format(body.format),
        enable_thinking=thinking,
        reasoning_effort=effort,
    )


def _decode_think(value: Any) -> tuple[bool | None, str | None]:
    if value is None or isinstance(value, bool):
        return value, None
    if isinstance(value, str) and value in _EFFORTS:
        return True, _EFFORTS[value]
    shown = json.dumps(value)[:80]
    raise InvalidRequestError(
        f'invalid think value: {shown} (must be "high", "medium", "low", "max", true, or false)', param="think"
    )


def _decode_format(value: Any) -> ResponseFormat:
    if value is None or value == "":
        return ResponseFormat()
    if value == "json":
        return ResponseFormat(kind="json_object")
    shown = json.dumps(value)[:200]
    wrong = f'invalid format: {shown}; expected "json" or a valid JSON Schema object'
    if not isinstance(value, dict):
        raise InvalidRequestError(wrong, param="format")
    try:
        return ResponseFormat(kind="json_schema", schema=check_schema(value, param="format"))
    except InvalidSchemaError as error:
        raise InvalidSchemaError(f"{wrong} ({error.message})", param="format") from error


def decode_messages(messages: Sequence[MessageBody], *, settings: Settings) -> tuple[Message, ...]:
    """Decode the turns of a conversation; calls without an id get one, and answers are told which call they answer.

    Raises:
        InvalidRequestError: A role that nobody has, or an image that is none.
    """
    decoded: list[Message] = []
    open_calls: list[ToolCall] = []
    for index, message in enumerate(messages):
        role = _ROLES.get(message.role.lower())
        if role is None:
            raise InvalidRequestError(f'invalid role "{message.role}" in messages', param=f"messages[{index}].role")
        calls = tuple(
            ToolCall(
                id=call.id or f"call_{index}_{place}",
                name=call.function.name,
                arguments=json.dumps(call.function.arguments, ensure_ascii=False),
            )
            for place, call in enumerate(message.tool_calls)
        )
        if role == "assistant":
            open_calls = list(calls)
        answered = _answered(message, open_calls) if role == "tool" else None
        decoded.append(
            Message(
                role=role,
                content=decode_content(message.content, message.images, settings=settings),
                tool_calls=calls if role == "assistant" else (),
                tool_call_id=message.tool_call_id or (answered.id if answered else None),
                name=message.tool_name or (answered.name if answered else None),
                reasoning=message.thinking if role == "assistant" else None,
            )
        )
    return tuple(decoded)


def _answered(message: MessageBody, open_calls: list[ToolCall]) -> ToolCall | None:
    """The call that a tool's message answers: by its id, by the tool's name, or the next one in order."""
    for call in open_calls:
        if message.tool_call_id not in {None, call.id} or message.tool_name not in {None, call.name}:
            continue
        open_calls.remove(call)
        return call
    return None


def _decode_tools(tools: Sequence[ToolBody]) -> tuple[ToolSpec, ...]:
    specs: list[ToolSpec] = []
    for index, tool in enumerate(tools):
        function = tool.function
        if any(spec.name == function.name for spec in specs):
            raise InvalidRequestError(f"tool '{function.name}' is defined twice", param=f"tools[{index}]")
        check_plain(function.parameters, param=f"tools[{index}].function.parameters")
        specs.append(
            ToolSpec(name=function.name, description=function.description, parameters=function.parameters or None)
        )
    return tuple(specs)


# --- what depends on the model ------------------------------------------------------------------------------------


def fit_to_model(
    request: ChatRequest, status: ModelStatus, *, name: ModelName, options: Options, task: str
) -> ChatRequest:
    """Check a request against the model that is loaded, in Ollama's words and order, and fill in Ollama's defaults.

    Args:
        request: As decoded.
        status: The loaded model.
        name: As the client wrote it.
        options: As decoded.
        task: `chat` or `generate`, for the text.

    Raises:
        UnsupportedError: The model cannot do what is asked.
    """
    features = status.capabilities.features
    if Task.CHAT not in status.capabilities.tasks:
        raise UnsupportedError(task, param="model", message=f'"{name.text}" does not support {task}')
    if request.suffix is not None and Feature.SUFFIX not in features:
        raise UnsupportedError("insert", param="suffix", message=f"{name.full} does not support insert")
    if request.tools and Feature.TOOLS not in features:
        raise UnsupportedError("tools", message=f"{name.full} does not support tools")
    has_image = any(isinstance(part, ImagePart) for message in request.messages for part in message.content)
    if has_image and Feature.IMAGES not in features:
        raise UnsupportedError("vision", param="images", message=f"{name.full} does not support vision")
    max_tokens = request.sampling.max_tokens
    if options.is_unbounded and max_tokens is None:
        max_tokens = status.info.context_tokens
    sampling = replace(fill_sampling(options, status.defaults, status.capabilities), max_tokens=max_tokens)
    thinking = _thinking(request, status, name)
    effort = request.reasoning_effort if thinking is not False else None
    return replace(request, model=status.id, sampling=sampling, enable_thinking=thinking, reasoning_effort=effort)


def _thinking(request: ChatRequest, status: ModelStatus, name: ModelName) -> bool | None:
    can_switch = Feature.THINKING in status.capabilities.features
    does_think = can_switch or status.info.reasoning_tags is not None
    if request.prompt is not None:
        return None  # without a template there is nothing to switch
    wanted = request.enable_thinking
    if wanted is True and not does_think:
        raise UnsupportedError("think", message=f'"{name.text}" does not support thinking')
    if wanted is False and does_think and not can_switch:
        raise UnsupportedError("think", message='think value "false" is not supported for this model')
    if not can_switch:
        return None
    if wanted is None and status.defaults.enable_thinking is None:
        return True
    return wanted


# --- embeddings ---------------------------------------------------------------------------------------------------


def decode_embed(body: EmbedBody, *, request_id: str) -> EmbedRequest | None:
    """Decode a request of `/api/embed`; None where there is nothing to embed.

    Raises:
        InvalidRequestError: An input that is no text.
    """
    if body.input is None or body.input in ("", []):
        return None
    inputs = [body.input] if isinstance(body.input, str) else body.input
    if not isinstance(inputs, list) or not all(isinstance(item, str) for item in inputs):
        raise InvalidRequestError("invalid input type", param="input")
    return EmbedRequest(id=request_id, model="", inputs=tuple(inputs), truncate=body.truncate)


def decode_embeddings(body: EmbeddingsBody, *, request_id: str) -> EmbedRequest | None:
    """Decode a request of `/api/embeddings`; None where there is nothing to embed."""
    if not body.prompt:
        return None
    return EmbedRequest(id=request_id, model="", inputs=(body.prompt,), normalize=False, truncate=True)
