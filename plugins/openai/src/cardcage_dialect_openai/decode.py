"""From wire models to neutral requests. Pure: the caller gives identity, settings and what the model can do.

Absent, null and (for `stop`, `tools`, `logit_bias`) empty mean silent. What cannot be honoured is refused here where no
engine could honour it, and by the service where this model cannot.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cardcage_dialect_openai.body import check_plain
from cardcage_dialect_openai.media import decode_part
from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.tools import decode_tools
from cardcage_dialect_openai.wire.chat import (
    ChatCompletionRequest,
    ChatMessage,
    FunctionCall,
    SamplingFields,
    StreamOptions,
)
from cardcage_dialect_openai.wire.completions import CompletionRequest
from cardcage_dialect_openai.wire.fields import MAX_INT32
from cardcage_dialect_openai.wire.management import DefaultParams, LoadModelRequest
from cardcage_dialect_openai.wire.vectors import EmbeddingRequest, RerankRequestBody
from cardcage_sdk.chat import (
    ChatRequest,
    ContentPart,
    Message,
    ResponseFormat,
    Role,
    Sampling,
    TextPart,
    ToolCall,
)
from cardcage_sdk.client_json import check_schema
from cardcage_sdk.embeddings import EmbedRequest, RerankRequest
from cardcage_sdk.errors import (
    InvalidInstanceCountError,
    InvalidRequestError,
    InvalidSchemaError,
    UnsupportedError,
)
from cardcage_sdk.service import GenerationDefaults, LoadRequest

__all__ = [
    "check_instance_count",
    "decode_chat",
    "decode_completion",
    "decode_embeddings",
    "decode_load",
    "decode_rerank",
    "think_if_able",
]

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_EFFORTS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
"""Chat templates that know efforts know these three."""

_RESERVED_TEMPLATE_ARGUMENTS = {"messages", "tools", "add_generation_prompt"}


# --- chat ---------------------------------------------------------------------------------------------------------


def decode_chat(body: ChatCompletionRequest, *, request_id: str, settings: Settings) -> ChatRequest:
    """Decode a chat request.

    Args:
        body: The wire model.
        request_id: Id of the neutral request and of the answer.
        settings: Profile and bounds of images.

    Raises:
        RequestError: A field is wrong or asks for what no engine here could do.
    """
    _refuse_unhonourable(body)
    _check_stream_options(body.stream, body.stream_options)
    tools, choice = decode_tools(body)
    thinking, effort = _decode_thinking(body)
    return ChatRequest(
        id=request_id,
        model=body.model,
        messages=tuple(
            _decode_message(message, f"messages[{index}]", settings) for index, message in enumerate(body.messages)
        ),
        sampling=_decode_sampling(body, max_tokens=body.max_completion_tokens or body.max_tokens),
        n=body.n or 1,
        logprobs=_decode_logprobs(body),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        response_format=_decode_response_format(body),
        enable_thinking=thinking,
        reasoning_effort=effort,
        template_arguments=_decode_template_arguments(body),
    )


def _refuse_unhonourable(body: ChatCompletionRequest) -> None:
    if body.functions:
        raise UnsupportedError("functions", message="'functions' is not supported; use 'tools'")
    if body.function_call not in (None, "auto", "none"):
        raise UnsupportedError("function_call", message="'function_call' is not supported; use 'tool_choice'")
    if body.modalities not in (None, [], ["text"]):
        raise UnsupportedError("modalities", message="Only the output modality 'text' is supported")
    if body.audio is not None:
        raise UnsupportedError("audio", message="Audio output is not supported")
    if body.web_search_options is not None:
        raise UnsupportedError("web_search_options", message="This server does not search the web")


def _check_stream_options(stream: bool | None, options: StreamOptions | None) -> None:
    if options is not None and not stream:
        raise InvalidRequestError("'stream_options' is only allowed with 'stream': true", param="stream_options")


def _decode_message(message: ChatMessage, param: str, settings: Settings) -> Message:
    role = _ROLES[message.role]
    # The page does not require the id; OpenAI's API does.
    if message.role == "tool" and not message.tool_call_id and settings.profile == "openai":
        raise InvalidRequestError(
            f"'{param}.tool_call_id' is required in a message of role 'tool'", param=f"{param}.tool_call_id"
        )
    if message.tool_calls and role != "assistant":
        raise InvalidRequestError(
            f"'{param}.tool_calls' is only allowed in messages of role 'assistant'", param=f"{param}.tool_calls"
        )
    return Message(
        role=role,
        content=_decode_content(message.content, role, param, settings),
        tool_calls=_decode_tool_calls(message),
        tool_call_id=message.tool_call_id,
        name=message.name,
        reasoning=message.reasoning_content if message.reasoning_content is not None else message.reasoning,
    )


def _decode_content(
    content: str | list[dict[str, Any]] | None, role: Role, param: str, settings: Settings
) -> tuple[ContentPart, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(
        decode_part(part, role=role, param=f"{param}.content[{index}]", settings=settings)
        for index, part in enumerate(content)
    )


def _decode_tool_calls(message: ChatMessage) -> tuple[ToolCall, ...]:
    calls = [
        ToolCall(id=entry.id or f"call_{index}", name=entry.function.name, arguments=_arguments(entry.function))
        for index, entry in enumerate(message.tool_calls or ())
    ]
    if message.function_call is not None and not calls:  # the deprecated single call of old conversations
        calls.append(
            ToolCall(id="call_0", name=message.function_call.name, arguments=_arguments(message.function_call))
        )
    return tuple(calls)


def _arguments(call: FunctionCall) -> str:
    """The arguments as text. Agents send back what a model produced, so they may be empty or no valid JSON."""
    if isinstance(call.arguments, dict):
        return json.dumps(call.arguments, ensure_ascii=False)
    return call.arguments or ""


def _decode_thinking(body: ChatCompletionRequest) -> tuple[bool | None, str | None]:
    """Whether to think, and how hard. An explicit switch wins over an effort."""
    switch = body.enable_thinking
    from_template = (body.chat_template_kwargs or {}).get("enable_thinking")
    if switch is None and isinstance(from_template, bool):
        switch = from_template
    effort = body.reasoning_effort
    if effort is None:
        return switch, None
    if effort == "none":
        return (False if switch is None else switch), None
    return switch, _EFFORTS[effort]


def think_if_able(request: ChatRequest, *, can_think: bool) -> ChatRequest:
    """Have an effort turn thinking on, where nothing else was said and the model has such a switch.

    Others are left as they are, so that a client which always sends an effort is not refused by models that do not reason.
    """
    if can_think and request.reasoning_effort is not None and request.enable_thinking is None:
        return replace(request, enable_thinking=True)
    return request


def _decode_template_arguments(body: ChatCompletionRequest) -> dict[str, Any]:
    arguments = dict(body.chat_template_kwargs or {})
    check_plain(arguments, param="chat_template_kwargs")
    for name in arguments:
        if not name.isidentifier() or name in _RESERVED_TEMPLATE_ARGUMENTS:
            raise InvalidRequestError(f"'chat_template_kwargs' must not set '{name}'", param="chat_template_kwargs")
    if isinstance(arguments.get("enable_thinking"), bool):
        del arguments["enable_thinking"]  # has a field of its own, which every engine knows
    return arguments


def _decode_logprobs(body: ChatCompletionRequest) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequestError("'top_logprobs' is only allowed with 'logprobs': true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _decode_response_format(body: ChatCompletionRequest) -> ResponseFormat:
    form = body.response_format
    if body.grammar:
        if form is not None and form.type != "text":
            raise InvalidRequestError("'grammar' and 'response_format' exclude each other", param="grammar")
        return ResponseFormat(kind="grammar", grammar=body.grammar)
    if form is None or form.type == "text":
        return ResponseFormat()
    if form.type == "json_object":
        if form.schema_ is None:
            return ResponseFormat(kind="json_object")
        return ResponseFormat(kind="json_schema", schema=check_schema(form.schema_, param="response_format.schema"))
    param = "response_format.json_schema"
    if form.json_schema is None:
        raise InvalidSchemaError(f"'{param}' is required", param=param)
    if form.json_schema.schema_ is None:
        raise InvalidSchemaError(f"'{param}.schema' is required", param=f"{param}.schema")
    schema = check_schema(form.json_schema.schema_, param=f"{param}.schema")
    return ResponseFormat(kind="json_schema", name=form.json_schema.name, schema=schema)


# --- sampling -----------------------------------------------------------------------------------------------------


def _decode_sampling(fields: SamplingFields | DefaultParams, *, max_tokens: int | None) -> Sampling:
    sampling = Sampling(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=None if fields.top_k is None else max(0, fields.top_k),  # -1 is another way to say "off"
        min_p=fields.min_p,
        repeat_penalty=fields.repeat_penalty,
        repeat_last_n=fields.repeat_last_n,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        # Engines hold seeds in 32 bits and some keep the top value for "random"; folding is stable, so the same seed
        # still gives the same text.
        seed=None if fields.seed is None else fields.seed % 2**31,
        max_tokens=None if max_tokens is None else min(max_tokens, MAX_INT32),
        stop=_decode_stop(fields.stop),
    )
    if isinstance(fields, SamplingFields):
        sampling = replace(sampling, logit_bias=_decode_logit_bias(fields.logit_bias))
    if sampling.top_p == 0:
        # Nobody means "sample from nothing": the smallest nucleus is the most likely token.
        sampling = replace(sampling, top_p=None, temperature=0.0)
    return sampling


def _decode_stop(stop: str | list[str] | None) -> tuple[str, ...] | None:
    """Empty strings are ignored: matched naively they would end every answer at once, and some clients send them."""
    texts = [stop] if isinstance(stop, str) else stop or []
    return tuple(text for text in texts if text) or None


def _decode_logit_bias(bias: Mapping[str, float] | None) -> dict[int, float] | None:
    if not bias:
        return None
    decoded = {}
    for token, value in bias.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10 and int(token) <= MAX_INT32):
            raise InvalidRequestError(f"'logit_bias' has the key '{token}', which is no token id", param="logit_bias")
        decoded[int(token)] = float(value)
    return decoded


# --- legacy completions -------------------------------------------------------------------------------------------


def decode_completion(body: CompletionRequest, *, request_id: str) -> tuple[ChatRequest, ...]:
    """Decode a legacy completion: one neutral request for each prompt, in order.

    Raises:
        RequestError: A field is wrong or asks for what no engine here could do.
    """
    _check_stream_options(body.stream, body.stream_options)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise UnsupportedError("best_of", message="'best_of' is only supported with the value of 'n'")
    one = isinstance(body.prompt, str) or isinstance(body.prompt[0], int)
    prompts = [body.prompt] if one else body.prompt
    if body.echo and body.logprobs is not None:
        raise UnsupportedError("echo", message="'echo' is not supported together with 'logprobs'")
    if body.echo and not all(isinstance(prompt, str) for prompt in prompts):
        raise UnsupportedError("echo", message="'echo' is only supported for prompts that are text")
    form = ResponseFormat(kind="grammar", grammar=body.grammar) if body.grammar else ResponseFormat()
    return tuple(
        ChatRequest(
            id=request_id if len(prompts) == 1 else f"{request_id}-{index}",
            model=body.model,
            prompt=prompt if isinstance(prompt, str) else tuple(prompt),
            suffix=body.suffix or None,
            sampling=_decode_sampling(body, max_tokens=body.max_tokens),
            n=body.n or 1,
            logprobs=body.logprobs,
            response_format=form,
        )
        for index, prompt in enumerate(prompts)
    )


# --- vectors ------------------------------------------------------------------------------------------------------


def decode_embeddings(body: EmbeddingRequest, *, request_id: str) -> EmbedRequest:
    """Decode an embedding request. An array of integers is one input; an empty text is refused, as OpenAI does.

    Raises:
        InvalidRequestError: An empty input.
    """
    one = isinstance(body.input, str) or isinstance(body.input[0], int)
    inputs = [body.input] if one else body.input
    for index, item in enumerate(inputs):
        if item == "":
            param = "input" if one else f"input[{index}]"
            raise InvalidRequestError(f"'{param}' must not be empty", param=param)
    return EmbedRequest(
        id=request_id,
        model=body.model,
        inputs=tuple(item if isinstance(item, str) else tuple(item) for item in inputs),
        dimensions=body.dimensions,
    )


def decode_rerank(body: RerankRequestBody, *, request_id: str) -> RerankRequest:
    """Decode a rerank request.

    Raises:
        UnsupportedError: A field that splits documents, which no engine here does.
    """
    for name in ("max_chunks_per_doc", "max_tokens_per_doc", "rank_fields"):
        if getattr(body, name) is not None:
            raise UnsupportedError(name, message=f"'{name}' is not supported")
    documents = tuple(item if isinstance(item, str) else item["text"] for item in body.documents)
    return RerankRequest(
        id=request_id, model=body.model, query=body.query, documents=documents, truncate=body.truncation is not False
    )


# --- management ---------------------------------------------------------------------------------------------------


def decode_load(body: LoadModelRequest) -> LoadRequest:
    """Decode a load request.

    Raises:
        InvalidRequestError: An id that is no id.
        InvalidInstanceCountError: 0 instances.
    """
    _check_model_id(body.model_id)
    count = 1 if body.instance_count is None else body.instance_count
    check_instance_count(count)
    check_plain(body.options, param="options")
    params = body.default_params
    defaults = GenerationDefaults()
    if params is not None:
        defaults = GenerationDefaults(
            sampling=_decode_sampling(params, max_tokens=params.max_tokens),
            max_context_len=params.max_context_len,
            enable_thinking=params.enable_thinking,
        )
    return LoadRequest(
        model_id=body.model_id,
        model_path=body.model_path,
        instance_count=count,
        request_queue_size=body.request_queue_size,
        defaults=defaults,
        platform=body.platform,
        options=body.options or {},
    )


def check_instance_count(count: int) -> None:
    """Refuse 0 by name; negative counts never get here, they fail as malformed."""
    if count < 1:
        raise InvalidInstanceCountError(count)


def _check_model_id(model_id: str) -> None:
    """Any script, but no white space, no `/` and nothing unprintable.

    The manual's limit of 20 columns is one of its command line's table and of ids that a person picks there; ids that are
    made from a model's name (`smollm2:135m@llamacpp-cpu`) are longer, so this route takes up to 200 characters.
    """
    if not 1 <= len(model_id) <= 200:
        raise InvalidRequestError("'model_id' must have 1 to 200 characters", param="model_id")
    if "/" in model_id or not model_id.isprintable() or any(character.isspace() for character in model_id):
        raise InvalidRequestError(
            "'model_id' must hold no white space, no '/' and no control characters", param="model_id"
        )
