"""From the form that an answer must have to a grammar that onnxruntime-genai enforces (llguidance). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cardcage_sdk.errors import InvalidSchemaError
from cardcage_sdk.text.grammar import answer_frame, forced_tools

if TYPE_CHECKING:
    from cardcage_sdk.chat import ChatRequest

__all__ = ["Guidance", "guidance_for"]

# Free white space lets small models write line breaks for ever inside a JSON text.
_COMPACT = {"whitespace_flexible": False}

# The compiler is a library that sees a client's schema; these bounds are far over any schema that a model could follow.
MAX_SCHEMA_CHARACTERS = 100_000
MAX_SCHEMA_DEPTH = 32

# Where several calls are allowed, small models go on calling until they are cut off.
MAX_CALLS = 4


@dataclass(frozen=True, slots=True)
class Guidance:
    """A grammar in the runtime's own words; `param` is the request field that it comes from."""

    kind: Literal["json_schema", "lark_grammar"]
    data: str
    param: str


def guidance_for(request: ChatRequest, *, tool_format: str | None) -> Guidance | None:
    """The grammar of a request, or None where its answer is free.

    Raises:
        InvalidRequestError: A tool call is demanded of a tool that is not there.
        InvalidSchemaError: A schema is no object, or absurdly large or deep; whether it compiles is found out by the runtime.
    """
    frame = answer_frame(request)
    if frame is None:
        return None
    param = "tools" if forced_tools(request) else "response_format"
    schema = _schema(frame.schema, param)
    # Models of the bare form write one call and nothing around it.
    if not frame.opening or tool_format == "json":
        return Guidance("json_schema", schema, param)
    call = f"{json.dumps(frame.opening)} %json {schema} {json.dumps(frame.closing)}"
    more = f' ("\\n" call){{0,{MAX_CALLS - 1}}}' if frame.may_repeat else ""
    return Guidance("lark_grammar", f"start: call{more}\ncall: {call}\n", param)


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
