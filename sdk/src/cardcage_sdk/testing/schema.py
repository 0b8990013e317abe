"""The least value that a JSON Schema allows, for engines that have to produce one without a grammar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cardcage_sdk.errors import InvalidSchemaError

if TYPE_CHECKING:
    from cardcage_sdk.chat import JsonValue

__all__ = ["check_schema", "sample"]

_TYPES: dict[str, Any] = {"null": None, "boolean": False, "string": "", "array": [], "object": {}}
_DEPTH = 64


def check_schema(schema: Mapping[str, JsonValue] | None) -> None:
    """Refuse a schema that `sample` makes nothing of.

    Raises:
        InvalidSchemaError: Of no known form, recursive without end, or with an unknown type.
    """
    sample(schema)


def sample(schema: Mapping[str, JsonValue] | None) -> Any:
    """Make the least value that `schema` allows: only required properties, shortest strings and lists, lowest numbers.

    Raises:
        InvalidSchemaError: As `check_schema`.
    """
    if not isinstance(schema, Mapping):
        raise InvalidSchemaError("A JSON Schema must be an object", param="response_format")
    return _sample(schema, schema, 0)


def _sample(schema: Any, root: Mapping[str, JsonValue], depth: int) -> Any:
    if schema is True:
        return None
    if not isinstance(schema, Mapping) or depth > _DEPTH:
        raise InvalidSchemaError(f"No value can be made for schema {schema!r}", param="response_format")
    if "$ref" in schema:
        return _sample(_resolve(str(schema["$ref"]), root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for word in ("anyOf", "oneOf", "allOf"):
        if schema.get(word):
            return _sample({**schema[word][0]}, root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "null")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _sample(properties.get(name, True), root, depth + 1) for name in schema.get("required", ())}
    if kind == "array":
        prefix = list(schema.get("prefixItems", ()))
        items = prefix + [schema.get("items", True)] * max(0, schema.get("minItems", 0) - len(prefix))
        return [_sample(item, root, depth + 1) for item in items]
    if kind in {"integer", "number"}:
        return _number(schema)
    if kind == "string":
        return "a" * int(schema.get("minLength", 0))
    if kind not in _TYPES:
        raise InvalidSchemaError(f"Unknown type '{kind}' in a JSON Schema", param="response_format")
    return _TYPES[kind]


def _number(schema: Mapping[str, JsonValue]) -> float:
    lowest = schema.get("minimum")
    if lowest is None and "exclusiveMinimum" in schema:
        lowest = schema["exclusiveMinimum"] + 1
    if lowest is None:
        highest = schema.get("maximum", schema.get("exclusiveMaximum", 1) - 1)
        lowest = min(0, highest)
    step: float = schema.get("multipleOf", 1)
    number: float = -(-lowest // step) * step
    return number


def _resolve(reference: str, root: Mapping[str, JsonValue]) -> Any:
    if not reference.startswith("#"):
        raise InvalidSchemaError(
            f"Only references inside the schema are followed, not '{reference}'", param="response_format"
        )
    target: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        if part:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(target, Mapping) or name not in target:
                raise InvalidSchemaError(f"'{reference}' leads nowhere", param="response_format")
            target = target[name]
    return target
