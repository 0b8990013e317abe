"""What a constrained answer has to look like, as JSON Schema and fixed text, for any engine that can follow a schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cardcage_sdk.errors import InvalidRequestError, InvalidSchemaError
from cardcage_sdk.text.toolcalls import CALL_CLOSE, CALL_OPEN

if TYPE_CHECKING:
    from cardcage_sdk.chat import ChatRequest, JsonValue, ToolSpec

__all__ = ["ANY_OBJECT", "Frame", "answer_frame", "call_schema", "forced_tools"]

ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}
"""Schema of `json_object`."""

_NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The form of an answer: `opening`, a value of `schema`, `closing`; repeated where `may_repeat`.

    The tool-call parser of `cardcage_sdk.text` reads forced calls back out of exactly this text.
    """

    schema: Mapping[str, JsonValue]
    opening: str = ""
    closing: str = ""
    may_repeat: bool = False


def answer_frame(request: ChatRequest) -> Frame | None:
    """The form that a request demands of its answer, or None where it may say anything.

    A forced tool call goes before a response format, for the answer is then the call. A request for a `grammar` has none
    here: its grammar is the form.

    Raises:
        InvalidRequestError: The named tool is none of the request's, or a call is required without tools.
        InvalidSchemaError: A schema is no object.
    """
    tools = forced_tools(request)
    if tools:
        schemas = [call_schema(tool) for tool in tools]
        if len(schemas) == 1:
            schema: Mapping[str, JsonValue] = schemas[0]
        else:
            schema = {"anyOf": [_moved(item, f"#/anyOf/{index}") for index, item in enumerate(schemas)]}
        return Frame(
            schema=schema,
            opening=f"{CALL_OPEN}\n",
            closing=f"\n{CALL_CLOSE}",
            may_repeat=request.parallel_tool_calls and request.tool_choice.mode == "required",
        )
    if request.response_format.kind == "json_object":
        return Frame(schema=ANY_OBJECT)
    if request.response_format.kind == "json_schema":
        return Frame(schema=_checked(request.response_format.schema, "response_format"))
    return None


def forced_tools(request: ChatRequest) -> tuple[ToolSpec, ...]:
    """The tools of which one must be called; none where the model is free.

    Raises:
        InvalidRequestError: The named tool is none of the request's, or a call is required without tools.
    """
    choice = request.tool_choice
    if choice.mode not in {"required", "named"}:
        return ()
    tools = tuple(tool for tool in request.tools if choice.mode == "required" or tool.name == choice.name)
    if not tools:
        what = f"no tool is called '{choice.name}'" if choice.mode == "named" else "there are no tools"
        raise InvalidRequestError(f"A tool call is demanded, but {what}", param="tool_choice")
    return tools


def call_schema(tool: ToolSpec) -> dict[str, JsonValue]:
    """Schema of one call of a tool, `{"name": ..., "arguments": {...}}`, with the members in this order.

    Raises:
        InvalidSchemaError: The tool's parameters are no schema.
    """
    parameters = _NO_ARGUMENTS if tool.parameters is None else _checked(tool.parameters, "tools")
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "arguments": _moved(parameters, "#/properties/arguments")},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _checked(schema: object, param: str) -> Mapping[str, JsonValue]:
    if not isinstance(schema, Mapping):
        raise InvalidSchemaError("A JSON Schema must be an object", param=param)
    return schema


def _moved(schema: Any, root: str) -> Any:
    """A schema that now stands at `root` of another, with its references to itself moved along."""
    if isinstance(schema, Mapping):
        return {
            key: root + value[1:]
            if key == "$ref" and isinstance(value, str) and value.startswith("#")
            else _moved(value, root)
            for key, value in schema.items()
        }
    if isinstance(schema, (list, tuple)):
        return [_moved(item, root) for item in schema]
    return schema
