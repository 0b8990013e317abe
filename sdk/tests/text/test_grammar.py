"""Frames of constrained answers, read back by the parser that they are made for."""

import json
from typing import Any

import jsonschema
import pytest

from cardcage_sdk.chat import ChatRequest, ResponseFormat, ToolChoice, ToolSpec
from cardcage_sdk.errors import InvalidRequestError, InvalidSchemaError
from cardcage_sdk.text.grammar import answer_frame
from cardcage_sdk.text.pieces import Piece
from cardcage_sdk.text.toolcalls import ToolCallParser

TREE = ToolSpec(
    name="plant",
    parameters={
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "required": ["tree"],
        "$defs": {
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
        },
    },
)
CLOCK = ToolSpec(name="clock")


def request(**fields: Any) -> ChatRequest:
    return ChatRequest(id="r", model="m", **fields)


def test_free_answers_have_no_frame() -> None:
    assert answer_frame(request()) is None
    assert answer_frame(request(tools=(CLOCK,))) is None
    assert answer_frame(request(response_format=ResponseFormat(kind="grammar", grammar="root ::= x"))) is None


def test_response_formats() -> None:
    frame = answer_frame(request(response_format=ResponseFormat(kind="json_object")))
    assert frame is not None
    assert dict(frame.schema) == {"type": "object"}
    schema = {"type": "array"}
    frame = answer_frame(request(response_format=ResponseFormat(kind="json_schema", schema=schema)))
    assert frame is not None
    assert (frame.schema, frame.opening, frame.closing, frame.may_repeat) == (schema, "", "", False)


@pytest.mark.parametrize("tools", [(TREE,), (CLOCK, TREE)], ids=["one", "two"])
def test_references_of_a_tool_lead_where_they_did(tools: tuple[ToolSpec, ...]) -> None:
    frame = answer_frame(request(tools=tools, tool_choice=ToolChoice(mode="required")))
    assert frame is not None
    assert frame.may_repeat
    validator = jsonschema.Draft202012Validator(frame.schema)
    validator.check_schema(frame.schema)
    good = {"name": "plant", "arguments": {"tree": {"next": {"next": {}}}}}
    assert validator.is_valid(good)
    assert not validator.is_valid({"name": "plant", "arguments": {"tree": {"other": 1}}})
    assert not validator.is_valid({"name": "nobody", "arguments": {}})
    parser = ToolCallParser([tool.name for tool in tools], new_id=lambda: "id")
    parts = parser.feed(Piece(f"{frame.opening}{json.dumps(good)}{frame.closing}")) + parser.finish()
    assert [getattr(part, "name", None) for part in parts] == ["plant", None]
    assert "".join(part.arguments for part in parts if not isinstance(part, Piece)) == json.dumps(good["arguments"])


def test_a_named_tool_comes_once() -> None:
    frame = answer_frame(request(tools=(CLOCK, TREE), tool_choice=ToolChoice(mode="named", name="clock")))
    assert frame is not None
    assert not frame.may_repeat
    validator = jsonschema.Draft202012Validator(frame.schema)
    assert validator.is_valid({"name": "clock", "arguments": {}})
    assert not validator.is_valid({"name": "clock", "arguments": {"x": 1}})


def test_required_calls_come_once_where_parallel_ones_are_off() -> None:
    frame = answer_frame(request(tools=(CLOCK,), tool_choice=ToolChoice(mode="required"), parallel_tool_calls=False))
    assert frame is not None
    assert not frame.may_repeat


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tools": (CLOCK,), "tool_choice": ToolChoice(mode="named", name="other")}, "no tool is called 'other'"),
        ({"tool_choice": ToolChoice(mode="required")}, "there are no tools"),
    ],
)
def test_a_call_that_cannot_be_made(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        answer_frame(request(**fields))
    assert caught.value.param == "tool_choice"


def test_a_schema_that_is_none() -> None:
    with pytest.raises(InvalidSchemaError):
        answer_frame(request(response_format=ResponseFormat(kind="json_schema", schema=[])))  # type: ignore[arg-type]
