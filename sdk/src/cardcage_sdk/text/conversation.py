"""From neutral messages to what chat templates know: dictionaries in OpenAI's shape, and words for what a template lacks."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from cardcage_sdk.chat import AudioPart, ImagePart, TextPart
from cardcage_sdk.text.toolcalls import CALL_CLOSE, CALL_OPEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardcage_sdk.chat import ChatRequest, Message, ToolCall, ToolSpec

__all__ = ["TemplateFacts", "conversation", "offered_tools", "tool_dict", "tools_prompt"]

_Dict: TypeAlias = dict[str, Any]

_PART_TYPES: dict[type, str] = {ImagePart: "image", AudioPart: "audio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateFacts:
    """What a template does with a conversation, found by rendering.

    Attributes:
        handles_system: A system message reaches the prompt.
        handles_tools: The list of tools does.
        handles_tool_calls: Calls of earlier assistant turns do.
        handles_tool_results: Messages of role `tool` do.
        wants_parts: Content has to be a list of parts, for the template iterates over it.
        wants_argument_objects: Arguments of calls have to be objects, for the template encodes them itself.
    """

    handles_system: bool = True
    handles_tools: bool = True
    handles_tool_calls: bool = True
    handles_tool_results: bool = True
    wants_parts: bool = False
    wants_argument_objects: bool = True


def offered_tools(request: ChatRequest) -> tuple[ToolSpec, ...]:
    """The tools that the model is to be told of: none where it must not call any, the one where the client names it."""
    if request.tool_choice.mode == "none":
        return ()
    if request.tool_choice.mode == "named":
        return tuple(tool for tool in request.tools if tool.name == request.tool_choice.name)
    return request.tools


def conversation(request: ChatRequest, facts: TemplateFacts) -> list[_Dict]:
    """The messages as the template can take them; what it has no place for is put into words that models know."""
    messages = [_message(message, facts) for message in request.messages]
    tools = () if facts.handles_tools else offered_tools(request)
    if tools:
        _add_system(messages, tools_prompt(tools))
    if not facts.handles_system:
        _fold_system(messages)
    if facts.wants_parts:
        for message in messages:
            message["content"] = _as_parts(message["content"])
    return messages


def tool_dict(tool: ToolSpec) -> _Dict:
    """A tool as templates expect it."""
    function: _Dict = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def tools_prompt(tools: Sequence[ToolSpec]) -> str:
    """Tell a model of its tools in the words that Hermes and Qwen models are trained on."""
    lines = "\n".join(json.dumps(tool_dict(tool), ensure_ascii=False, default=dict) for tool in tools)
    return (
        "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        f"You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{lines}\n</tools>\n\n"
        f"For each function call, return a json object with function name and arguments within {CALL_OPEN}{CALL_CLOSE} "
        f'XML tags:\n{CALL_OPEN}\n{{"name": <function-name>, "arguments": <args-json-object>}}\n{CALL_CLOSE}'
    )


def _message(message: Message, facts: TemplateFacts) -> _Dict:
    out: _Dict = {"role": message.role, "content": _content(message)}
    if message.reasoning is not None:
        out["reasoning_content"] = message.reasoning
    if message.name is not None:
        out["name"] = message.name
    if message.tool_calls and facts.handles_tool_calls:
        out["tool_calls"] = [_call(call, facts) for call in message.tool_calls]
    elif message.tool_calls:
        said = [message.text] if message.text else []
        out["content"] = "\n".join(said + [_call_text(call) for call in message.tool_calls])
    if message.role == "tool":
        if facts.handles_tool_results:
            out["tool_call_id"] = message.tool_call_id
        else:
            out = {"role": "user", "content": f"<tool_response>\n{message.text}\n</tool_response>"}
    return out


def _call(call: ToolCall, facts: TemplateFacts) -> _Dict:
    arguments = _arguments(call) if facts.wants_argument_objects else call.arguments or "{}"
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _call_text(call: ToolCall) -> str:
    arguments = _arguments(call)
    encoded = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return f'{CALL_OPEN}\n{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {encoded}}}\n{CALL_CLOSE}'


def _arguments(call: ToolCall) -> Any:
    """The arguments decoded; as the text that they are where a model produced no JSON, for agents send back what they got."""
    if not call.arguments.strip():
        return {}
    try:
        return json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call.arguments


def _content(message: Message) -> str | list[_Dict]:
    """One text, which is what most templates take; parts only where something else than text is among them."""
    if all(isinstance(part, TextPart) for part in message.content):
        return message.text
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": _PART_TYPES[type(part)]}
        for part in message.content
    ]


def _as_parts(content: str | list[_Dict]) -> list[_Dict]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _joined(first: str | list[_Dict], second: str | list[_Dict]) -> str | list[_Dict]:
    if isinstance(first, str) and isinstance(second, str):
        return first + second
    return _as_parts(first) + _as_parts(second)


def _add_system(messages: list[_Dict], text: str) -> None:
    if messages and messages[0]["role"] == "system":
        messages[0]["content"] = _joined(messages[0]["content"], f"\n\n{text}")
    else:
        messages.insert(0, {"role": "system", "content": text})


def _fold_system(messages: list[_Dict]) -> None:
    """Put what system messages say in front of the next user message, for templates that know no system role."""
    said: str | list[_Dict] = ""
    kept: list[_Dict] = []
    for message in messages:
        if message["role"] == "system":
            said = _joined(said, _joined(message["content"], "\n\n"))
            continue
        if said and message["role"] == "user":
            message["content"], said = _joined(said, message["content"]), ""
        kept.append(message)
    if said:
        kept.append({"role": "user", "content": said})
    messages[:] = kept
