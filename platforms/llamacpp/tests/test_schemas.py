"""Every JSON Schema keyword is kept to or refused by name: nothing in between."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardcage_platform_llamacpp.disjoint import are_disjoint
from cardcage_platform_llamacpp.schemas import MAX_LEAST, ready_schema
from cardcage_sdk.chat import ResponseFormat, ToolChoice, ToolSpec
from cardcage_sdk.errors import InvalidSchemaError

in_worker = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.model]

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
BOOL = {"type": "boolean"}
CLOSED = {"type": "object", "additionalProperties": False}
SHORT = {"type": "string", "maxLength": 6}
CAT = {**CLOSED, "properties": {"kind": {"const": "cat"}, "lives": {"enum": [7, 9]}}, "required": ["kind", "lives"]}
DOG = {**CLOSED, "properties": {"kind": {"const": "dog"}, "barks": BOOL}, "required": ["kind"]}

KEPT: dict[str, dict[str, Any]] = {
    "type": {"type": "boolean"},
    "type of several": {"type": ["integer", "null"], "minimum": 0, "maximum": 50},
    "enum": {"enum": ["red", 3, None, [1], {"a": True}]},
    "enum with a bound": {"enum": [1, 7, 9], "minimum": 5},
    "const": {"const": {"a": [1, 2.5, "x"]}},
    "minimum and maximum": {"type": "integer", "minimum": -5, "maximum": 5},
    "exclusive bounds": {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 4},
    "bounds of numbers": {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
    "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    "numbers, negative": {"type": "number", "minimum": -2.5, "exclusiveMaximum": 0},
    "numbers, small": {"type": ["number", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 3, "maximum": 99},
    "multipleOf a part": {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 2},
    "format of numbers": {"type": "integer", "format": "int32"},
    "minLength and maxLength": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}$"},
    "pattern without anchors": {"type": "string", "pattern": "b", "maxLength": 3},
    "pattern and maxLength": {"type": "string", "pattern": "^a+$", "minLength": 2, "maxLength": 4},
    **{
        f"format {name}": {"type": "string", "format": name}
        for name in ("date", "time", "date-time", "duration", "ipv4", "ipv6", "uuid")
    },
    "format email": {"type": "string", "format": "email", "maxLength": 12},
    "items, minItems, maxItems": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3},
    "prefixItems": {"type": "array", "prefixItems": [BOOL, {"enum": ["a"]}], "items": False, "minItems": 2},
    "items of draft 7": {"$schema": DRAFT_7, "type": "array", "items": [BOOL, {"enum": [1]}], "additionalItems": False},
    "properties and required": {**CLOSED, "properties": {"a": BOOL, "b": {"enum": [1, 2]}}, "required": ["b"]},
    "open objects": {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": BOOL}}, "c": BOOL}},
    "open objects combined": {
        "$defs": {"base": {"type": "object", "properties": {"a": BOOL}, "required": ["a"]}},
        "allOf": [{"$ref": "#/$defs/base"}],
        "properties": {"b": BOOL},
        "required": ["b"],
        "maxProperties": 2,
    },
    "additionalProperties": {"type": "object", "additionalProperties": BOOL, "maxProperties": 2},
    "patternProperties": {**CLOSED, "patternProperties": {"^x[0-9]$": BOOL}, "maxProperties": 3},
    "minProperties": {**CLOSED, "patternProperties": {"^[a-z]{1,5}$": BOOL}, "minProperties": 1, "maxProperties": 2},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    "allOf of objects": {
        "allOf": [
            {"type": "object", "properties": {"a": BOOL}, "required": ["a"]},
            {"properties": {"a": {"const": True}, "b": BOOL}, "required": ["b"], "additionalProperties": False},
        ]
    },
    "anyOf": {"anyOf": [{"type": "null"}, {"enum": [1, 2]}]},
    "anyOf beside properties": {
        **CLOSED,
        "properties": {"a": BOOL, "b": BOOL},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    },
    "oneOf of types": {"oneOf": [BOOL, {"type": "integer", "minimum": 0, "maximum": 9}]},
    "oneOf of constants": {"oneOf": [{"const": 1}, {"const": True}, {"enum": ["1", "2"]}]},
    "oneOf with a discriminator": {
        "$defs": {"cat": CAT, "dog": DOG},
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
    },
    "oneOf beside anyOf": {"oneOf": [{"const": 1}, {"const": 2}], "anyOf": [{"minimum": 2}, {"type": "string"}]},
    "$ref and its siblings": {
        "$defs": {"few": {"type": "integer", "minimum": 0}},
        "$ref": "#/$defs/few",
        "maximum": 4,
    },
    "$ref with escapes": {"$defs": {"a b/c~d": BOOL}, "$ref": "#/$defs/a%20b~1c~0d"},
    "$ref to a property": {**CLOSED, "properties": {"a": BOOL, "b": {"$ref": "#/properties/a"}}, "required": ["b"]},
    "recursion": {
        "$defs": {
            "node": {
                **CLOSED,
                "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                "required": ["next"],
            }
        },
        "$ref": "#/$defs/node",
    },
    "definitions": {"definitions": {"x": BOOL}, "$ref": "#/definitions/x"},
    "uniqueItems false": {"type": "array", "uniqueItems": False, "items": BOOL, "maxItems": 3},
    "names that are keywords": {
        **CLOSED,
        "properties": {"not": BOOL, "extends": BOOL, "$ref": BOOL, "properties": BOOL},
        "required": ["not", "extends", "$ref", "properties"],
    },
    "annotations": {"type": "boolean", "title": "t", "description": "d", "default": True, "examples": [1], "x-mine": 1},
    "its own relaxing": {"x-guidance": {"lenient": True}, "type": "integer", "minimum": 2, "maximum": 4},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "not": ({"type": "string", "not": {"const": "a"}}, "not"),
    "not, deep inside": ({"type": "array", "items": {"allOf": [{"not": {"type": "string"}}]}}, "not"),
    "not, and leniency": ({"not": {"type": "string"}, "x-guidance": {"lenient": True}}, "not"),
    "if": ({"if": {"type": "string"}, "then": {"minLength": 3}}, "if"),
    "else": ({"else": {"type": "integer"}}, "else"),
    "contains": ({"type": "array", "contains": BOOL}, "contains"),
    "minContains": ({"type": "array", "minContains": 2}, "minContains"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "unevaluatedItems": ({"type": "array", "unevaluatedItems": False}, "unevaluatedItems"),
    "unevaluatedProperties": ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    "dependentSchemas": ({"type": "object", "dependentSchemas": {"a": {}}}, "dependentSchemas"),
    "dependencies": ({"type": "object", "dependencies": {"a": ["b"]}}, "dependencies"),
    "minProperties": ({"type": "object", "minProperties": 2}, "minProperties"),
    "maxProperties": ({**CLOSED, "properties": dict.fromkeys("abc", BOOL), "maxProperties": 2}, "maxProperties"),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^x": BOOL, "y$": {"type": "integer"}}},
        "patternProperties",
    ),
    "format": ({"type": "string", "format": "phone"}, "format"),
    "format of numbers": ({"type": "integer", "format": "even"}, "format"),
    "pattern": ({"type": "string", "pattern": "^(a"}, "pattern"),
    "pattern that looks ahead": ({"type": "string", "pattern": "^(?!a)b"}, "pattern"),
    "pattern of another dialect": ({"type": "string", "pattern": "^[^a&&b]$"}, "pattern"),
    "oneOf": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    "oneOf of open objects": (
        {"oneOf": [{"type": "object", "required": ["a"]}, {"type": "object", "required": ["b"]}]},
        "oneOf",
    ),
    "$ref of elsewhere": ({"$ref": "https://example.invalid/schema"}, "$ref"),
    "$ref of nothing": ({"$ref": "#/$defs/missing"}, "$ref"),
    "$ref of itself": ({"$defs": {"n": {"$ref": "#/$defs/n"}}, "$ref": "#/$defs/n"}, "no answer satisfies it"),
    "$dynamicRef": ({"$dynamicRef": "#x"}, "$dynamicRef"),
    "type": ({"type": "persn"}, "type"),
    "type of a type": ({"type": 7}, "type"),
    "additionalItems": ({"type": "array", "prefixItems": [BOOL], "additionalItems": False}, "additionalItems"),
    "disallow": ({"disallow": "string"}, "disallow"),
    "divisibleBy": ({"type": "integer", "divisibleBy": 3}, "divisibleBy"),
    "maximum": ({"type": "integer", "minimum": 5, "maximum": 3}, "maximum"),
    "minimum of a wrong type": ({"type": "integer", "minimum": "3"}, "minimum"),
    "minimum over 2^53": ({"type": "integer", "minimum": 10**18}, "minimum"),
    "exclusiveMinimum": ({"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}, "exclusiveMinimum"),
    "exclusiveMaximum": ({"allOf": [{"exclusiveMaximum": 3}, {"minimum": 2.5}], "type": "number"}, "exclusiveMaximum"),
    "multipleOf": ({"type": "integer", "multipleOf": 123456789}, "multipleOf"),
    "multipleOf together": ({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}], "type": "integer"}, "multipleOf"),
    "minItems": ({"type": "array", "items": BOOL, "minItems": 10**9}, "minItems"),
    "const of many digits": ({"const": 10**30}, "64 bits"),
    "impossible": ({"allOf": [{"type": "string", "format": "date"}, {"pattern": "^x"}]}, ""),
}


@pytest.mark.parametrize("name", KEPT)
class TestKept:
    pytestmark = in_worker

    async def test_a_hot_answer_satisfies(self, worker, name: str) -> None:
        """Nothing but the schema holds the model at this temperature, and each draw is another answer."""
        schema = KEPT[name]
        checker = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        validator = checker(schema, format_checker=checker.FORMAT_CHECKER)
        answers = await asyncio.gather(
            *(
                worker.ask(
                    "Say something.",
                    response_format=ResponseFormat(kind="json_schema", schema=schema),
                    sampling={"max_tokens": 100, "temperature": 2.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0},
                )
                for _ in range(4)
            )
        )
        ended = [answer.text() for answer in answers if answer.finished().reason == "stop"]
        assert ended, [answer.text() for answer in answers]
        for text in ended:
            validator.validate(json.loads(text))


@pytest.mark.parametrize("name", REFUSED)
class TestRefused:
    pytestmark = in_worker

    async def test_prepare_refuses_and_names_it(self, worker, kit, name: str) -> None:
        schema, word = REFUSED[name]
        request = kit.chat("x", response_format=ResponseFormat(kind="json_schema", schema=schema))
        with pytest.raises(InvalidSchemaError, match=rf"(?<!\w){re.escape(word)}(?!\w)") as caught:
            await worker.connection.prepare(request)
        assert caught.value.param == "response_format"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.model
class TestBound:
    @pytest.mark.parametrize(
        "sampling",
        [
            {},
            {"temperature": 1.0, "seed": 5},
            {"repeat_penalty": 1.8, "frequency_penalty": 1.0},
            {"logit_bias": {2: 100.0}},
        ],
        ids=["greedy", "seed", "penalties", "end forced"],
    )
    async def test_under_every_way_of_sampling(self, worker, sampling) -> None:
        schema = {**CLOSED, "properties": {"x": {"type": "integer", "minimum": 100, "maximum": 105}}, "required": ["x"]}
        answer = await worker.ask(
            "Hello",
            response_format=ResponseFormat(kind="json_schema", schema=schema),
            logprobs=2,
            sampling={"max_tokens": 60, **sampling},
        )
        assert 100 <= json.loads(answer.text())["x"] <= 105
        assert answer.finished().reason == "stop"

    async def test_an_answer_ends_with_its_last_character(self, worker) -> None:
        """Complete with the last token that was allowed, it is no answer that was cut off."""
        form = ResponseFormat(kind="json_schema", schema={"const": "abc"})
        free = await worker.ask("Hello", response_format=form)
        spent = free.finished().usage.completion_tokens
        cut = await worker.ask("Hello", response_format=form, sampling={"max_tokens": spent})
        assert cut.text() == '"abc"'
        assert cut.finished().reason == "stop"

    async def test_several_calls_where_they_are_allowed_and_one_where_not(self, worker, kit) -> None:
        tools = (
            ToolSpec(
                name="add",
                parameters={**CLOSED, "properties": {"a": {"maximum": 3, "type": "integer"}}, "required": ["a"]},
            ),
            ToolSpec(name="now"),
        )
        hot = {"max_tokens": 300, "temperature": 2.0, "min_p": 0.0}
        many = [
            await worker.ask("x", tools=tools, tool_choice=ToolChoice(mode="required"), sampling=hot) for _ in range(4)
        ]
        one = await worker.ask(
            "x", tools=tools, tool_choice=ToolChoice(mode="required"), parallel_tool_calls=False, sampling=hot
        )
        assert len(one.calls) == 1
        calls = [call for answer in [*many, one] if answer.finished().reason == "tool_calls" for call in answer.calls]
        for name, arguments in calls:
            value = json.loads(arguments)
            assert value["a"] <= 3 if name == "add" else value == {}
        bad = ToolSpec(name="bad", parameters={"type": "object", "properties": {"a": {"not": {}}}})
        with pytest.raises(InvalidSchemaError, match="not") as caught:
            await worker.connection.prepare(kit.chat("x", tools=(bad,), tool_choice=ToolChoice(mode="required")))
        assert caught.value.param == "tools"


def test_what_is_rewritten_means_the_same() -> None:
    schema = {"oneOf": [{"const": 1}, {"const": 2}], "anyOf": [{"minimum": 2}], "uniqueItems": False}
    assert ready_schema(schema, "p") == {"anyOf": [{"minimum": 2}], "allOf": [{"anyOf": [{"const": 1}, {"const": 2}]}]}
    assert schema["uniqueItems"] is False, "the client's own is left alone"
    data = {"const": {"oneOf": [1], "uniqueItems": False, "disallow": 1}}
    assert ready_schema(data, "p") == data


def test_objects_are_closed_where_nothing_else_may_speak_of_them() -> None:
    inner = {"type": "object", "properties": {"a": BOOL}}
    assert ready_schema({"items": inner}, "p")["items"]["additionalProperties"] is False
    for extra in ({"patternProperties": {}}, {"additionalProperties": True}, {"minProperties": 1}, {"required": ["b"]}):
        assert ready_schema(inner | extra, "p").get("additionalProperties") is not False
    combined = [{"allOf": [inner]}, {"anyOf": [inner], "required": ["b"]}, {"$ref": "#/d", "anyOf": [{}], "d": inner}]
    for schema in combined:
        assert ready_schema(schema, "p") == schema
    optional = {"anyOf": [inner, {"type": "null"}], "description": "x"}
    assert ready_schema(optional, "p")["anyOf"][0]["additionalProperties"] is False


def test_numbers_have_digits_that_programs_keep() -> None:
    assert ready_schema({"type": "integer", "minimum": 0}, "p") == {"type": "integer", "minimum": 0, "maximum": 2**53}
    free = ready_schema({"type": ["number", "null"]}, "p")
    assert free == {"type": ["number", "null"], "minimum": -(2**53), "maximum": 2**53, "multipleOf": 1e-9}
    assert "multipleOf" not in ready_schema({"type": "number", "minimum": 0, "maximum": 1e-12}, "p")
    for schema in ({"type": "integer", "const": 2**60}, {"enum": [1e300]}, {"allOf": [{"type": "number"}]}):
        assert ready_schema(schema, "p") == schema


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": list(range(30_000))},
        {"const": float("nan")},
        {"minItems": MAX_LEAST + 1},
        {"oneOf": [{"const": number} for number in range(70)]},
    ],
)
def test_sizes_are_bounded(schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchemaError):
        ready_schema(schema, "p")


_LEAVES = st.sampled_from(
    [{"const": 1}, {"const": True}, {"const": "1"}, {"enum": [1, 2]}, {"type": "integer"}, {"type": "number"},
     {"type": "string"}, {"type": ["null", "string"]}, {}, {"const": 1.5}, {"enum": [[1], {"a": 1}]}]
)  # fmt: skip
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.builds(lambda a, b: {"type": "object", "properties": {"a": a, "b": b}, "required": ["a"]}, inner, inner),
        st.builds(lambda a: {"properties": {"a": a}, "required": ["a"]}, inner),
        st.builds(lambda b: {"type": "object", "required": ["b"], "additionalProperties": b}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"allOf": [a, b]}, inner, inner),
    ),
    max_leaves=4,
)
_LEAF_VALUES = [1, True, "1", 2, None, 1.5, [1], {"a": 1}, "x"]
VALUES = [
    *_LEAF_VALUES,
    *({"a": value} for value in _LEAF_VALUES),
    *({"b": value} for value in _LEAF_VALUES),
    *({"a": one, "b": other} for one in _LEAF_VALUES for other in _LEAF_VALUES),
]


@given(_SCHEMAS, _SCHEMAS)
def test_what_is_called_disjoint_shares_no_value(left: dict[str, Any], right: dict[str, Any]) -> None:
    if are_disjoint(left, right, {}):
        one, other = jsonschema.Draft202012Validator(left), jsonschema.Draft202012Validator(right)
        assert not [value for value in VALUES if one.is_valid(value) and other.is_valid(value)]
