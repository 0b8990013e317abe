"""`tools` and `tool_choice`, towards neutral. Pure."""

from collections.abc import Sequence
from typing import Any

from cardcage_dialect_openai.body import check_plain, parse_value
from cardcage_dialect_openai.wire.chat import AllowedTools, ChatCompletionRequest, NamedToolChoice, Tool
from cardcage_sdk.chat import ToolChoice, ToolSpec
from cardcage_sdk.errors import InvalidRequestError, UnsupportedError

__all__ = ["decode_tools"]


def decode_tools(body: ChatCompletionRequest) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """Decode `tools` and `tool_choice`.

    Raises:
        InvalidRequestError: A name that is defined twice, or chosen and not defined.
        UnsupportedError: A tool that is no function.
    """
    tools = tuple(_decode_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ()))
    names = [tool.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InvalidRequestError(f"Tool '{name}' is defined twice", param=f"tools[{index}].function.name")
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        return _decode_allowed_tools(choice, tools)
    return tools, _decode_tool_choice(choice, names)


def _decode_tool(tool: Tool, param: str) -> ToolSpec:
    function = tool.function
    if function is None:
        raise UnsupportedError(
            "tools", param=param, message=f"Tools of type '{tool.type}' are not supported; '{param}.function' is needed"
        )
    check_plain(function.parameters, param=f"{param}.function.parameters")
    return ToolSpec(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=bool(function.strict),
    )


def _decode_tool_choice(choice: str | dict[str, Any] | None, names: Sequence[str]) -> ToolChoice:
    if choice is None or choice in ("auto", "none"):
        return ToolChoice(mode="none" if choice == "none" else "auto")
    if choice == "required":
        if not names:
            raise InvalidRequestError("'tool_choice' is 'required' but there are no tools", param="tool_choice")
        return ToolChoice(mode="required")
    if isinstance(choice, str):
        raise InvalidRequestError(
            "'tool_choice' must be 'none', 'auto', 'required' or an object that names a function", param="tool_choice"
        )
    name = parse_value(NamedToolChoice, choice, prefix="tool_choice").function.name
    _check_tool_name(name, names)
    return ToolChoice(mode="named", name=name)


def _decode_allowed_tools(
    choice: dict[str, Any], tools: tuple[ToolSpec, ...]
) -> tuple[tuple[ToolSpec, ...], ToolChoice]:
    """Narrow the tools: the model is shown the allowed ones only, so that it cannot call another."""
    allowed = parse_value(AllowedTools, choice, prefix="tool_choice").allowed_tools
    names = [entry.function.name for entry in allowed.tools]
    for name in names:
        _check_tool_name(name, [tool.name for tool in tools])
    kept = tuple(tool for tool in tools if tool.name in names)
    return kept, _decode_tool_choice(allowed.mode, [tool.name for tool in kept])


def _check_tool_name(name: str, names: Sequence[str]) -> None:
    if name not in names:
        raise InvalidRequestError(f"'tool_choice' names '{name}', which is not among the tools", param="tool_choice")
