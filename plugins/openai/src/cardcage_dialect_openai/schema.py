"""Structural check of a client's JSON Schema, before anything compiles it. Pure.

Only the form is looked at: keywords that hold schemas hold schemas, `type` names a type, references stay inside the
document, and the whole is bounded. Whether an engine can turn it into a grammar is the engine's answer, in `prepare`.
"""

from collections.abc import Mapping
from typing import Any

from cardcage_dialect_openai.body import check_plain
from cardcage_dialect_openai.wire.fields import is_int
from cardcage_sdk.errors import InvalidSchemaError

__all__ = ["MAX_DEPTH", "MAX_NODES", "check_schema"]

MAX_DEPTH = 64
"""Most levels of nesting; each level of a schema is a level of recursion in whatever compiles it."""

MAX_NODES = 20_000
"""Most schemas in one schema."""

_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}
_SCHEMA = ("additionalProperties", "contains", "else", "if", "not", "propertyNames", "then", "unevaluatedItems",
           "unevaluatedProperties")  # fmt: skip
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SCHEMA_MAPS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_COUNTS = ("maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties")
_NUMBERS = ("maximum", "minimum", "multipleOf")


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
        if key in node and not (is_int(node[key]) and node[key] >= 0):
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
