"""The structural check of client schemas."""

from __future__ import annotations

from typing import Any

import pytest

from cardcage_sdk.client_json import MAX_DEPTH, check_schema
from cardcage_sdk.errors import InvalidSchemaError


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object", "properties": {"a": True, "b": {"type": ["string", "null"]}}, "required": ["a"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        {"type": "array", "prefixItems": [{"type": "string"}], "items": False},
        {"type": "array", "items": [{"type": "string"}, {"type": "number"}]},
        {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/x"}], "$defs": {"x": {"const": 1}}},
        {"enum": ["a", 1, None]},
        {"type": "string", "pattern": "^a+$", "format": "date", "maxLength": 5},
        {"type": "number", "minimum": -1.5, "maximum": 2},
        {"title": "T", "description": "d", "default": {"type": "nonsense"}, "examples": [1], "x-own": object},
        nested(MAX_DEPTH),
    ],
    ids=lambda schema: str(schema)[:50],
)
def test_well_formed(schema: dict[str, Any]) -> None:
    assert check_schema(schema, param="p") is schema


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ("string", "must be a JSON Schema object"),
        (True, "must be a JSON Schema object"),
        ({"type": "strin"}, "'type' 'strin' is unknown at #"),
        ({"type": None}, "'type' None is unknown"),
        ({"type": []}, "'type' .* is unknown"),
        ({"type": ["string", 5]}, "'type' .* is unknown"),
        ({"properties": []}, "'properties' must be an object"),
        ({"properties": {"a": {"properties": {"b": 5}}}}, "#/properties/a/properties/b must be an object"),
        ({"properties": {"a": {"type": "x"}}}, "at #/properties/a"),
        ({"required": "a"}, "'required' must be an array of strings"),
        ({"required": [1]}, "'required' must be an array of strings"),
        ({"enum": []}, "'enum' must be a non-empty array"),
        ({"enum": "a"}, "'enum' must be a non-empty array"),
        ({"anyOf": []}, "'anyOf' must be a non-empty array"),
        ({"allOf": {}}, "'allOf' must be a non-empty array"),
        ({"oneOf": ["x"]}, "#/oneOf/0 must be an object"),
        ({"items": "string"}, "#/items must be an object"),
        ({"items": None}, "#/items must be an object"),
        ({"minLength": -1}, "'minLength' must be an integer"),
        ({"maxItems": 1.5}, "'maxItems' must be an integer"),
        ({"minItems": True}, "'minItems' must be an integer"),
        ({"minimum": "0"}, "'minimum' must be a number"),
        ({"pattern": 5}, "'pattern' must be a string"),
        ({"$ref": "http://example.org/schema"}, "'\\$ref' must point into this schema"),
        ({"$ref": 5}, "'\\$ref' must point into this schema"),
        (nested(MAX_DEPTH + 1), "nested deeper than"),
        ({"properties": {str(i): {} for i in range(20_001)}}, "more than 20000 schemas"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_malformed(schema: Any, says: str) -> None:
    with pytest.raises(InvalidSchemaError, match=says) as caught:
        check_schema(schema, param="response_format.json_schema.schema")
    assert caught.value.param == "response_format.json_schema.schema"
