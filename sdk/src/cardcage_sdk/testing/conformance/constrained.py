"""Checks of answers that must have a form: JSON and tool calls."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cardcage_sdk.capabilities import Feature, Task
from cardcage_sdk.chat import ResponseFormat, ToolChoice, ToolSpec
from cardcage_sdk.errors import InvalidRequestError
from cardcage_sdk.testing.conformance.subject import Answer, Subject, expect, joined_arguments

if TYPE_CHECKING:
    from cardcage_sdk.chat import JsonValue

__all__ = ["CHECKS"]

# Nothing in it can be long, so every model comes to an end.
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "green", "blue"]},
        "is_warm": {"type": "boolean"},
        "mixed_with": {"type": "array", "items": {"enum": ["white", "black"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["color", "is_warm", "mixed_with"],
    "additionalProperties": False,
}
_TOOLS = (
    ToolSpec(
        name="set_lamp",
        description="Set a lamp to a color",
        parameters={
            "type": "object",
            "properties": {"color": {"enum": ["red", "green"]}, "is_on": {"type": "boolean"}},
            "required": ["color", "is_on"],
            "additionalProperties": False,
        },
    ),
    ToolSpec(name="get_time", description="Tell the time"),
)


async def check_json_object(subject: Subject) -> None:
    """A JSON object is one, by construction."""
    subject.need(Task.CHAT, Feature.JSON_OBJECT)
    request = subject.request("Name a color.", max_tokens=200, response_format=ResponseFormat(kind="json_object"))
    answer = await subject.chat(request)
    if answer.finished().reason == "stop":
        value = _json(answer, "response_format json_object")
        expect(isinstance(value, dict), f"response_format json_object gave {value!r}, which is no object")
    else:
        expect(answer.text().lstrip().startswith("{"), f"response_format json_object gave {answer.text()!r}")


async def check_json_schema(subject: Subject) -> None:
    """An answer under a JSON Schema validates against it."""
    subject.need(Task.CHAT, Feature.JSON_SCHEMA)
    form = ResponseFormat(kind="json_schema", name="color", schema=_SCHEMA)
    answer = await subject.chat(subject.request("Describe a color.", max_tokens=200, response_format=form))
    expect(
        answer.finished().reason == "stop",
        f"an answer of bounded form ended with '{answer.finished().reason}': {answer.text()!r}",
    )
    _validate(_json(answer, "response_format json_schema"), _SCHEMA)


async def check_bad_schema(subject: Subject) -> None:
    """A schema that cannot be compiled is refused before anything is generated."""
    subject.need(Task.CHAT, Feature.JSON_SCHEMA)
    form = ResponseFormat(kind="json_schema", name="bad", schema={"type": "no such type"})
    try:
        await subject.connection.prepare(subject.request(response_format=form))
    except InvalidRequestError:
        return
    expect(False, "prepare() takes a schema whose type does not exist")


async def check_required_tool(subject: Subject) -> None:
    """tool_choice 'required' gives a call of one of the tools, with arguments that validate."""
    subject.need(Task.CHAT, Feature.TOOLS, Feature.FORCED_TOOLS)
    request = subject.request("Make it green.", max_tokens=200, tools=_TOOLS, tool_choice=ToolChoice(mode="required"))
    _check_calls(await subject.chat(request), "tool_choice 'required'", {tool.name for tool in _TOOLS})


async def check_named_tool(subject: Subject) -> None:
    """A named tool is the one that is called, once where parallel calls are switched off."""
    subject.need(Task.CHAT, Feature.TOOLS, Feature.FORCED_TOOLS)
    for name in ("set_lamp", "get_time"):
        request = subject.request(
            "Make it green.", max_tokens=200, tools=_TOOLS, tool_choice=ToolChoice(mode="named", name=name)
        )
        answer = await subject.chat(replace(request, parallel_tool_calls=False))
        _check_calls(answer, f"the named tool '{name}'", {name})
        count = len(joined_arguments(answer.calls()))
        expect(count == 1, f"parallel_tool_calls is False, and {count} calls came")


async def check_no_tool(subject: Subject) -> None:
    """tool_choice 'none' gives no call."""
    subject.need(Task.CHAT, Feature.TOOLS)
    request = subject.request("Make it green.", tools=_TOOLS, tool_choice=ToolChoice(mode="none"))
    answer = await subject.chat(request)
    expect(not answer.calls(), f"tool_choice is 'none', and a call came: {joined_arguments(answer.calls())}")
    expect(answer.finished().reason != "tool_calls", "tool_choice is 'none', and the reason is 'tool_calls'")


async def check_free_tools(subject: Subject) -> None:
    """With tools offered and none demanded, a request ends well, and a call that comes is a whole one."""
    subject.need(Task.CHAT, Feature.TOOLS)
    answer = await subject.chat(subject.request("Make it green, please.", max_tokens=64, tools=_TOOLS))
    for name, _ in joined_arguments(answer.calls()):
        expect(name, "a tool call has no name")
    has_calls, reason = bool(answer.calls()), answer.finished().reason
    expect(has_calls or reason != "tool_calls", "the reason is 'tool_calls', and there is none")
    expect(not has_calls or reason in {"tool_calls", "length"}, f"there are tool calls, and the reason is '{reason}'")


def _check_calls(answer: Answer, what: str, names: set[str]) -> None:
    calls = joined_arguments(answer.calls())
    expect(calls, f"{what} gave no call, but the text {answer.text()!r}")
    expect(answer.finished().reason == "tool_calls", f"{what} ended with reason '{answer.finished().reason}'")
    schemas = {tool.name: tool.parameters for tool in _TOOLS}
    for name, arguments in calls:
        expect(name in names, f"{what} called '{name}'")
        try:
            value = json.loads(arguments)
        except ValueError:
            expect(False, f"{what}: the arguments {arguments!r} are no JSON")
            raise
        _validate(value, schemas[name] or {"type": "object"})


def _json(answer: Answer, what: str) -> Any:
    try:
        return json.loads(answer.text())
    except ValueError:
        expect(False, f"{what} gave {answer.text()!r}, which is no JSON")
        raise


def _validate(value: JsonValue, schema: Any) -> None:
    """Validate with jsonschema where it is installed, by hand for the few words of the schemas above otherwise."""
    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError:
        _validate_by_hand(value, schema)
        return
    errors = sorted(error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(value))
    expect(not errors, f"{value!r} does not validate: {'; '.join(errors)}")


def _validate_by_hand(value: JsonValue, schema: Any) -> None:
    kinds = {"object": dict, "array": list, "boolean": bool}
    if "type" in schema:
        expect(isinstance(value, kinds[schema["type"]]), f"{value!r} is no {schema['type']}")
    expect("enum" not in schema or value in schema["enum"], f"{value!r} is none of {schema.get('enum')}")
    if isinstance(value, dict):
        expect(set(schema.get("required", ())) <= set(value), f"{value!r} lacks one of {schema.get('required')}")
        for name, item in value.items():
            expect(
                name in schema.get("properties", {}) or schema.get("additionalProperties", True),
                f"{value!r} must not have '{name}'",
            )
            _validate_by_hand(item, schema.get("properties", {}).get(name, {}))
    if isinstance(value, list):
        expect(
            schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)),
            f"{value!r} has {len(value)} items",
        )
        for item in value:
            _validate_by_hand(item, schema.get("items", {}))


CHECKS = [
    check_json_object,
    check_json_schema,
    check_bad_schema,
    check_required_tool,
    check_named_tool,
    check_no_tool,
    check_free_tools,
]
