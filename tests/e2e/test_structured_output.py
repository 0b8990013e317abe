"""`response_format` with a real model: what ends by `stop` validates; a refused schema is a 400 before any byte."""

import json

import jsonschema
import openai
import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

CLOSED = {"additionalProperties": False}
GOOD = {
    "person": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        **CLOSED,
    },
    "one of a few words": {
        "type": "object",
        "properties": {"color": {"enum": ["red", "green", "blue"]}},
        "required": ["color"],
    },
    "constants": {
        "type": "object",
        "properties": {"kind": {"const": "cat"}, "legs": {"const": 4}},
        "required": ["kind", "legs"],
    },
    "numbers": {
        "type": "object",
        "properties": {"x": {"type": "integer", "minimum": -5, "maximum": 5}, "y": {"type": "boolean"}},
        "required": ["x", "y"],
    },
    "list of words": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 2, "maxItems": 3},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"enum": ["a", "b"]}],
        "minItems": 2,
        "maxItems": 2,
    },
    "nothing or a flag": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    "one of two shapes": {
        "oneOf": [
            {"type": "object", "properties": {"cat": {"const": True}}, "required": ["cat"], **CLOSED},
            {"type": "object", "properties": {"dog": {"const": True}}, "required": ["dog"], **CLOSED},
        ]
    },
    "nested": {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {"b": {"enum": [1, 2]}}, "required": ["b"], **CLOSED}},
        "required": ["a"],
        **CLOSED,
    },
    "definitions": {
        "$defs": {"side": {"enum": ["left", "right"]}},
        "type": "object",
        "properties": {"first": {"$ref": "#/$defs/side"}, "second": {"$ref": "#/$defs/side"}},
        "required": ["first", "second"],
        **CLOSED,
    },
    "pattern": {
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{2}$"}},
        "required": ["code"],
    },
    "optional keys": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}},
        "required": ["b"],
        **CLOSED,
    },
    "two types": {"type": "object", "properties": {"v": {"type": ["boolean", "null"]}}, "required": ["v"], **CLOSED},
    "other scripts": {
        "type": "object",
        "properties": {"größe": {"enum": ["klein", "groß"]}},
        "required": ["größe"],
        **CLOSED,
    },
}
BAD = {
    "not an object": "person",
    "unknown type": {"type": "persn"},
    "type of a wrong kind": {"type": 7},
    "dangling reference": {"$ref": "#/$defs/nobody"},
    "broken pattern": {"type": "string", "pattern": "^([a-z$"},
    "remote reference": {"$ref": "https://example.invalid/schema.json"},
}
QUESTION = [{"role": "user", "content": "Make up an example."}]


def formatted(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


def test_there_are_twenty():
    assert len(GOOD) + len(BAD) == 20


@pytest.fixture
def client(smollm2):
    with openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("name", GOOD)
def test_an_answer_that_ends_by_stop_validates(client, name):
    answer = client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        response_format=formatted(GOOD[name]),
        max_tokens=120,
        seed=7,
        temperature=0.8,
    )
    (choice,) = answer.choices
    # Everything in these schemas is bounded, so the grammar itself ends the answer.
    assert choice.finish_reason == "stop", choice.message.content
    jsonschema.validate(json.loads(choice.message.content), GOOD[name])


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("name", BAD)
def test_a_refused_schema_is_a_400_before_the_first_byte(smollm2, client, name, stream):
    body = {
        "model": "smollm2",
        "messages": QUESTION,
        "response_format": formatted(BAD[name]),
        "stream": stream,
        "max_tokens": 8,
    }
    with smollm2.http() as http:
        response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400, response.text
    assert response.headers["content-type"].startswith("application/json")
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"].startswith("response_format")
    assert error["message"]
    # The worker lives, and the next request is served.
    assert client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=2).choices[0].message.content
