"""Bounds and form of a client's JSON and JSON Schema, before anything compiles it or a pipe carries it. Pure.

Only the form is looked at: keywords that hold schemas hold schemas, `type` names a type, references stay inside the
document, and the whole is bounded. Whether an engine can turn it into a grammar is the engine's answer, in `prepare`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from cardcage_sdk.errors import InvalidRequestError, InvalidSchemaError

__all__ = ["MAX_DEPTH", "MAX_NODES", "check_plain", "check_schema", "decode_json"]

MAX_DEPTH = 64
"""Most levels of nesting; each level of a schema is a level of recursion in whatever compiles it."""

MAX_NODES = 20_000
"""Most schemas in one schema."""

_MAX_PLAIN_DEPTH = 200

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"

_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}
_SCHEMA = ("additionalProperties", "contains", "else", "if", "not", "propertyNames", "then", "unevaluatedItems",
           "unevaluatedProperties")  # fmt: skip
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
_NUMBERS = ("maximum", "minimum", "multipleOf")


def decode_json(data: bytes) -> Any:
    """Read the JSON of a request body.

    Lone surrogates, which JavaScript writes for a cut emoji, become U+FFFD: nothing behind this could encode them.

    Raises:
        InvalidRequestError: Not JSON in UTF-8, NaN or Infinity in it, or nested too deeply.
    """
    try:
        value = json.loads(data, parse_constant=_refuse_constant)
        if _SURROGATE_ESCAPE.search(data):
            value = _without_surrogates(value)
    except RecursionError:
        raise InvalidRequestError("The request body is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, and integers of too many digits
        reason = str(error) if data.strip() else "it is empty"
        raise InvalidRequestError(f"The request body is not valid JSON: {reason}") from error
    return value


def check_plain(value: object, *, param: str) -> None:
    """Bound a JSON value that is handed on as it is (a schema, options): a worker's pipe takes no deeper and no larger one.

    Raises:
        InvalidRequestError: More than 200 levels deep, or an integer of more than 64 bits.
    """
    pending: list[tuple[object, int]] = [(value, 0)]
    while pending:
        item, depth = pending.pop()
        if depth > _MAX_PLAIN_DEPTH:
            raise InvalidRequestError(f"'{param}' is nested deeper than {_MAX_PLAIN_DEPTH} levels", param=param)
        if isinstance(item, int) and not -(2**63) <= item < 2**64:
            raise InvalidRequestError(f"'{param}' holds an integer of more than 64 bits", param=param)
        if isinstance(item, dict):
            pending.extend((child, depth + 1) for child in item.values())
        elif isinstance(item, list):
            pending.extend((child, depth + 1) for child in item)


def check_schema(schema: object, *, param: str) -> Mapping[str, Any]:
    """Check a schema's form.

    Args:
        schema: What the client sent as a schema.
        param: Path of the schema in the request, for the error.

    Returns:
        The schema.

    Raises:
        InvalidSchemaError: Says where in the schema what is wrong.
        InvalidRequestError: It is no JSON that could be handed on.
    """
    if not isinstance(schema, dict):
        raise InvalidSchemaError(f"'{param}' must be a JSON Schema object", param=param)
    check_plain(schema, param=param)
    pending: list[tuple[object, str, int]] = [(schema, "#", 0)]
    seen = 0
    while pending:
        node, where, depth = pending.pop()
        seen += 1
        if seen > MAX_NODES:
            raise InvalidSchemaError(f"'{param}' holds more than {MAX_NODES} schemas", param=param)
        if depth > MAX_DEPTH:
            raise InvalidSchemaError(f"'{param}' is nested deeper than {MAX_DEPTH} levels", param=param)
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise InvalidSchemaError(f"'{param}' is no valid JSON Schema: {where} must be an object", param=param)
        problem = _keyword_problem(node)
        if problem:
            raise InvalidSchemaError(f"'{param}' is no valid JSON Schema: {problem} at {where}", param=param)
        pending.extend((child, f"{where}/{step}", depth + 1) for step, child in _children(node))
    return schema


def _children(node: dict[str, Any]) -> list[tuple[str, object]]:
    children: list[tuple[str, object]] = [(key, node[key]) for key in _SCHEMA if key in node]
    for key in _SCHEMA_LISTS:
        children += [(f"{key}/{index}", child) for index, child in enumerate(node.get(key, ()))]
    for key in _SCHEMA_MAPS:
        children += [(f"{key}/{name}", child) for name, child in node.get(key, {}).items()]
    items = node.get("items")
    if isinstance(items, list):  # the form of draft 7 and before
        children += [(f"items/{index}", child) for index, child in enumerate(items)]
    elif "items" in node:
        children.append(("items", items))
    return children


def _keyword_problem(node: dict[str, Any]) -> str | None:
    """The first keyword of one schema whose value has a wrong form, as a phrase, or None."""
    checks = (_type_problem, _list_problem, _map_problem, _number_problem, _string_problem)
    return next((problem for check in checks if (problem := check(node))), None)


def _type_problem(node: dict[str, Any]) -> str | None:
    kind = node.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "type" in node and (not kinds or any(not isinstance(item, str) or item not in _TYPES for item in kinds)):
        return f"'type' {kind!r} is unknown"
    return None


def _list_problem(node: dict[str, Any]) -> str | None:
    for key in _SCHEMA_LISTS:
        if key in node and not (isinstance(node[key], list) and node[key]):
            return f"'{key}' must be a non-empty array"
    if "enum" in node and not (isinstance(node["enum"], list) and node["enum"]):
        return "'enum' must be a non-empty array"
    required = node.get("required", [])
    if not isinstance(required, list) or any(not isinstance(name, str) for name in required):
        return "'required' must be an array of strings"
    return None


def _map_problem(node: dict[str, Any]) -> str | None:
    return next((f"'{key}' must be an object" for key in _SCHEMA_MAPS if not isinstance(node.get(key, {}), dict)), None)


def _number_problem(node: dict[str, Any]) -> str | None:
    for key in _COUNTS:
        if key in node and not (_is_int(node[key]) and node[key] >= 0):
            return f"'{key}' must be an integer of at least 0"
    for key in _NUMBERS:
        if key in node and (isinstance(node[key], bool) or not isinstance(node[key], int | float)):
            return f"'{key}' must be a number"
    return None


def _string_problem(node: dict[str, Any]) -> str | None:
    for key in ("pattern", "format"):
        if key in node and not isinstance(node[key], str):
            return f"'{key}' must be a string"
    reference = node.get("$ref")
    if reference is not None and not (isinstance(reference, str) and reference.startswith("#")):
        return "'$ref' must point into this schema"
    return None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _repaired(text: str) -> str:
    return _SURROGATE.sub(_REPLACEMENT, text)


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return _repaired(value)
    if isinstance(value, list):
        return [_without_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_repaired(key): _without_surrogates(item) for key, item in value.items()}
    return value
