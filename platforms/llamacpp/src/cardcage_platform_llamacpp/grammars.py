"""Grammars in llama.cpp's notation (GBNF) for schemas and forced tool calls. Worker process only."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any

from cardcage_sdk.errors import InvalidSchemaError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardcage_sdk.chat import JsonValue, ToolSpec

__all__ = ["JSON_OBJECT", "schema_grammar", "tool_grammar"]

MAX_SCHEMA_CHARS = 100_000
MAX_SCHEMA_DEPTH = 32
MAX_REPETITIONS = 1000

MAX_CALLS = 8
"""Calls in one answer: a small model that may go on calling does not stop."""

JSON_OBJECT = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,3})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
"""Any JSON object; whitespace is bounded, because small models love it."""


def schema_grammar(schema: Mapping[str, JsonValue]) -> str:
    """A grammar for a JSON Schema.

    Raises:
        InvalidSchemaError: Too large, too deep, or with something that the converter does not know.
    """
    text = json.dumps(schema)
    if len(text) > MAX_SCHEMA_CHARS:
        raise InvalidSchemaError(f"The schema is longer than {MAX_SCHEMA_CHARS} characters", param="response_format")
    _check(schema, 0)
    converter: Any = importlib.import_module("llama_cpp.llama_grammar")
    try:
        grammar: str = converter.json_schema_to_gbnf(text)
    except Exception as error:
        raise InvalidSchemaError(f"The schema cannot be made a grammar: {error}", param="response_format") from error
    return grammar


def _check(value: JsonValue, depth: int) -> None:
    if depth > MAX_SCHEMA_DEPTH:
        raise InvalidSchemaError(f"The schema nests more than {MAX_SCHEMA_DEPTH} deep", param="response_format")
    if isinstance(value, dict):
        for key, item in value.items():
            # Each repetition becomes rules of its own.
            if (
                key in {"minItems", "maxItems", "minLength", "maxLength"}
                and isinstance(item, int)
                and item > MAX_REPETITIONS
            ):
                raise InvalidSchemaError(f"{key} must be at most {MAX_REPETITIONS}", param="response_format")
            if key == "$ref" and isinstance(item, str) and not item.startswith("#"):
                raise InvalidSchemaError("A schema may only refer to itself ('#/...')", param="response_format")
            _check(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            _check(item, depth + 1)


def tool_grammar(tools: Sequence[ToolSpec], *, opening: str, closing: str, parallel: bool) -> str:
    """A grammar for one call, or several, of any of the tools.

    Args:
        tools: At least one.
        opening: Text before each call's JSON.
        closing: Text after it.
        parallel: Whether more than one call may come.

    Raises:
        InvalidSchemaError: As `schema_grammar`.
    """
    definitions = {f"tool{index}": _call_schema(tool, f"tool{index}") for index, tool in enumerate(tools)}
    schema = {"$defs": definitions, "oneOf": [{"$ref": f"#/$defs/{name}"} for name in definitions]}
    grammar = schema_grammar(schema)
    renamed = [f"cardcage-call{line[4:]}" if line.startswith("root ") else line for line in grammar.splitlines()]
    one = f"{json.dumps(opening)} cardcage-call {json.dumps(closing)}"
    root = f'root ::= {one} ("\\n" {one}){{0,{MAX_CALLS - 1}}}' if parallel else f"root ::= {one}"
    return "\n".join([root, *renamed])


def _call_schema(tool: ToolSpec, name: str) -> dict[str, JsonValue]:
    parameters = dict(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.name},
            "arguments": _move_references(parameters, f"/$defs/{name}/properties/arguments"),
        },
        "required": ["name", "arguments"],
    }


def _move_references(value: JsonValue, prefix: str) -> JsonValue:
    """References of a tool's own schema point to its root, which is not ours; give them their new place."""
    if isinstance(value, dict):
        return {
            key: f"#{prefix}{item[1:]}"
            if key == "$ref" and isinstance(item, str) and item.startswith("#")
            else _move_references(item, prefix)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_move_references(item, prefix) for item in value]
    return value
