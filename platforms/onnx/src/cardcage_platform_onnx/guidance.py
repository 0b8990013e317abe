"""From what a request wants of its answer to a grammar that onnxruntime-genai enforces (llguidance). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cardcage_sdk.errors import InvalidSchemaError

if TYPE_CHECKING:
    from cardcage_sdk.chat import ChatRequest, ToolSpec

__all__ = ["Guidance", "guidance_for"]

# Free white space lets small models write line breaks for ever inside a JSON text.
_COMPACT = {"whitespace_flexible": False}

# The compiler is a library that sees a client's schema; these bounds are far over any schema that a model could follow.
MAX_SCHEMA_CHARACTERS = 100_000
MAX_SCHEMA_DEPTH = 32

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_TAGS = {"hermes": ("<tool_call>\n", "\n</tool_call>"), "json": ("", "")}


@dataclass(frozen=True, slots=True)
class Guidance:
    """A grammar in the runtime's own words; `param` is the request field that it comes from."""

    kind: Literal["json_schema", "lark_grammar"]
    data: str
    param: str


def guidance_for(request: ChatRequest, *, tool_format: str | None) -> Guidance | None:
    """The grammar of a request, or None where its answer is free.

    Raises:
        InvalidSchemaError: A schema is absurdly large or deep; whether it compiles is found out by the runtime.
    """
    if request.tools and request.tool_choice.mode in {"required", "named"}:
        tools = [tool for tool in request.tools if request.tool_choice.name in {None, tool.name}]
        return _tool_calls(tools, tool_format or "json", parallel=request.parallel_tool_calls)
    if request.response_format.kind == "json_object":
        return Guidance("json_schema", _schema({"type": "object"}, "response_format"), "response_format")
    if request.response_format.kind == "json_schema":
        return Guidance(
            "json_schema", _schema(request.response_format.schema or {}, "response_format"), "response_format"
        )
    return None


def _tool_calls(tools: Sequence[ToolSpec], tool_format: str, *, parallel: bool) -> Guidance:
    """One call, or several in the form with tags, each of one of the tools.

    Every tool's schema stays a document of its own, so that its references mean what they say.
    """
    opening, closing = _TAGS[tool_format]
    rules = []
    for number, tool in enumerate(tools):
        before = opening + '{"name": ' + json.dumps(tool.name) + ', "arguments": '
        schema = _schema(tool.parameters or _NO_ARGUMENTS, "tools")
        rules.append(f"call_{number}: {json.dumps(before)} %json {schema} {json.dumps('}' + closing)}")
    call = " | ".join(f"call_{number}" for number in range(len(tools)))
    more = f' ("\\n" ({call}))*' if parallel and opening else ""
    return Guidance("lark_grammar", "\n".join([f"start: ({call}){more}", *rules, ""]), "tools")


def _schema(schema: Mapping[str, Any], param: str) -> str:
    _check_depth(schema, 0, param)
    text = json.dumps({**schema, "x-guidance": _COMPACT})
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise InvalidSchemaError(f"The schema is longer than {MAX_SCHEMA_CHARACTERS} characters", param=param)
    return text


def _check_depth(value: object, depth: int, param: str) -> None:
    if depth > MAX_SCHEMA_DEPTH:
        raise InvalidSchemaError(f"The schema nests more than {MAX_SCHEMA_DEPTH} deep", param=param)
    if isinstance(value, Mapping):
        for item in value.values():
            _check_depth(item, depth + 1, param)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            _check_depth(item, depth + 1, param)
