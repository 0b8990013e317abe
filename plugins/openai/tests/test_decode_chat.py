"""Every field of a chat request: what it becomes, and how it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cardcage_dialect_openai.body import parse_body
from cardcage_dialect_openai.decode import decode_chat, think_if_able
from cardcage_dialect_openai.errors import row_of
from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.wire.chat import ChatCompletionRequest
from cardcage_sdk.chat import (
    ChatRequest,
    Message,
    ResponseFormat,
    Sampling,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from cardcage_sdk.errors import InvalidRequestError, InvalidSchemaError, UnsupportedError

USER = {"role": "user", "content": "hello"}
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}},
}
TIME = {"type": "function", "function": {"name": "time"}}


def decode(fields: dict[str, Any], *, profile: str = "llamapi", drop: tuple[str, ...] = ()) -> ChatRequest:
    body = {"model": "m", "messages": [USER], **fields}
    for name in drop:
        del body[name]
    wire = parse_body(ChatCompletionRequest, json.dumps(body).encode())
    return decode_chat(wire, request_id="r", settings=Settings(profile=profile))  # type: ignore[arg-type]


def test_the_least_request_is_silent_on_everything() -> None:
    assert decode({}) == ChatRequest(
        id="r", model="m", messages=(Message(role="user", content=(TextPart("hello"),)),), sampling=Sampling()
    )


def test_null_is_absent_for_every_optional_field() -> None:
    optional = set(ChatCompletionRequest.model_fields) - {"model", "messages"}
    assert len(optional) > 30
    assert decode(dict.fromkeys(optional)) == decode({})


@pytest.mark.parametrize(
    ("fields", "attribute", "value"),
    [
        ({"temperature": 0}, "temperature", 0.0),
        ({"temperature": 2}, "temperature", 2.0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_k": 40}, "top_k", 40),
        ({"top_k": -1}, "top_k", 0),
        ({"min_p": 0.05}, "min_p", 0.05),
        ({"repeat_penalty": 1.1}, "repeat_penalty", 1.1),
        ({"repeat_last_n": -1}, "repeat_last_n", -1),
        ({"frequency_penalty": -2}, "frequency_penalty", -2.0),
        ({"presence_penalty": 2}, "presence_penalty", 2.0),
        ({"max_tokens": 7}, "max_tokens", 7),
        ({"max_tokens": 7.0}, "max_tokens", 7),
        ({"max_completion_tokens": 8}, "max_tokens", 8),
        ({"max_completion_tokens": 8, "max_tokens": 7}, "max_tokens", 8),
        ({"max_tokens": 10**12}, "max_tokens", 2**31 - 1),
        ({"stop": "END"}, "stop", ("END",)),
        ({"stop": ["a", "", "b"]}, "stop", ("a", "b")),
        ({"stop": ""}, "stop", None),
        ({"stop": []}, "stop", None),
        ({"seed": 42}, "seed", 42),
        ({"seed": 0}, "seed", 0),
        ({"logit_bias": {"15": -100, "7": 1.5}}, "logit_bias", {15: -100.0, 7: 1.5}),
        ({"logit_bias": {}}, "logit_bias", None),
    ],
)
def test_sampling_fields(fields: dict[str, Any], attribute: str, value: object) -> None:
    assert getattr(decode(fields).sampling, attribute) == value


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**31, 2**63, 2**64 - 1, 10**40])
def test_any_integer_is_a_seed_and_always_the_same_one(seed: int) -> None:
    folded = decode({"seed": seed}).sampling.seed
    assert folded is not None
    assert 0 <= folded < 2**31
    assert decode({"seed": seed}).sampling.seed == folded


def test_a_nucleus_of_nothing_is_greedy() -> None:
    sampling = decode({"top_p": 0, "temperature": 1.5}).sampling
    assert (sampling.temperature, sampling.top_p) == (0.0, None)


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"logprobs": True, "top_logprobs": 0}, 0),
    ],
)
def test_logprobs(fields: dict[str, Any], logprobs: int | None) -> None:
    assert decode(fields).logprobs == logprobs


@pytest.mark.parametrize(
    "ignored",
    [
        {"user": "u"},
        {"metadata": {"a": "b"}},
        {"store": True},
        {"service_tier": "flex"},
        {"prompt_cache_key": "k"},
        {"safety_identifier": "s"},
        {"verbosity": "low"},
        {"prediction": {"type": "content", "content": "x"}},
        {"keep_alive": "5m", "options": {"num_ctx": 1}, "mirostat": 2},
        {"field_of_next_year": [1, 2]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_changes_no_answer_is_ignored(ignored: dict[str, Any]) -> None:
    assert decode(ignored) == decode({})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "0.7"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": 1.5}, "top_k"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 5, "max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"stop": 5}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": ["x", 1]}, "stop"),
        ({"seed": 1.5}, "seed"),
        ({"seed": "1"}, "seed"),
        ({"logit_bias": {"hello": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"²": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 0}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": False, "stream_options": {}}, "stream_options"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"enable_thinking": "no"}, "enable_thinking"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"not a name": 1}}, "chat_template_kwargs"),
        ({"model": ""}, "model"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [USER, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}]},
         "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": ""}}]}]},
         "messages[0].tool_calls[0].function.name"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": "json_object"}, "response_format"),
        ({"grammar": "root ::= x", "response_format": {"type": "json_object"}}, "grammar"),
        ({"tools": [{"type": "function", "function": {"name": "two words"}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
         "tools[0].function.parameters"),
        ({"tools": [WEATHER], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": 1}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, "tool_choice"),
    ],
    ids=lambda value: value if isinstance(value, str) else json.dumps(value, ensure_ascii=True)[:60],
)  # fmt: skip
def test_wrong_fields_are_refused_by_path(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(fields)
    assert caught.value.param == param
    assert param in caught.value.message or "'" in caught.value.message
    assert "\n" not in caught.value.message
    assert row_of(caught.value).status == 400


@pytest.mark.parametrize("name", ["model", "messages"])
def test_required_fields(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"'{name}' is required") as caught:
        decode({}, drop=(name,))
    assert caught.value.param == name


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "v"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
    ],
)
def test_what_cannot_be_honoured_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        decode(fields)
    assert caught.value.param == param


def test_unset_forms_of_refused_fields_pass() -> None:
    assert decode({"functions": [], "function_call": "none", "modalities": ["text"], "tools": []}) == decode({})


# --- messages -----------------------------------------------------------------------------------------------------


def message(entry: dict[str, Any], *, profile: str = "llamapi") -> Message:
    return decode({"messages": [entry]}, profile=profile).messages[0]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_developer_is_system(role: str) -> None:
    assert message({"role": role, "content": "be brief"}) == Message(role="system", content=(TextPart("be brief"),))


def test_text_parts_stay_one_message() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    decoded = message({"role": "user", "content": parts})
    assert decoded.content == (TextPart("a"), TextPart("b"))
    assert decoded.text == "ab"


@pytest.mark.parametrize(("content", "decoded"), [("", (TextPart(""),)), (None, ()), ([], ())])
def test_empty_content(content: object, decoded: object) -> None:
    assert message({"role": "user", "content": content}).content == decoded


@pytest.mark.parametrize(
    ("arguments", "text"), [('{"a":1}', '{"a":1}'), ("", ""), (None, ""), ('{"a":', '{"a":'), ({"a": 1}, '{"a": 1}')]
)
def test_tool_calls_that_an_agent_sends_back(arguments: object, text: str) -> None:
    calls = [{"id": "call_9", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    decoded = message({"role": "assistant", "content": None, "tool_calls": calls})
    assert decoded.tool_calls == (ToolCall(id="call_9", name="f", arguments=text),)
    assert decoded.content == ()


def test_tool_calls_without_ids_get_some() -> None:
    calls = [{"function": {"name": "f"}}, {"function": {"name": "g"}}]
    decoded = message({"role": "assistant", "tool_calls": calls})
    assert [call.id for call in decoded.tool_calls] == ["call_0", "call_1"]


def test_tool_answers() -> None:
    decoded = message({"role": "tool", "tool_call_id": "call_9", "content": [{"type": "text", "text": "42"}]})
    assert (decoded.role, decoded.tool_call_id, decoded.text) == ("tool", "call_9", "42")


def test_a_tool_answer_without_id_is_for_the_profile_to_judge() -> None:
    entry = {"role": "tool", "content": "42"}
    assert message(entry).tool_call_id is None
    with pytest.raises(InvalidRequestError) as caught:
        message(entry, profile="openai")
    assert caught.value.param == "messages[0].tool_call_id"


def test_the_deprecated_function_role_and_call() -> None:
    assert message({"role": "function", "name": "f", "content": "42"}) == Message(
        role="tool", name="f", content=(TextPart("42"),)
    )
    old = message({"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}})
    assert old.tool_calls == (ToolCall(id="call_0", name="f", arguments="{}"),)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_that_comes_back(name: str) -> None:
    assert message({"role": "assistant", "content": "x", name: "because"}).reasoning == "because"


# --- tools --------------------------------------------------------------------------------------------------------


def test_tools() -> None:
    decoded = decode({"tools": [WEATHER, TIME], "parallel_tool_calls": False})
    assert decoded.tools == (
        ToolSpec(name="weather", description="d", parameters={"type": "object", "properties": {}}),
        ToolSpec(name="time"),
    )
    assert decoded.tool_choice == ToolChoice(mode="auto")
    assert decoded.parallel_tool_calls is False


def test_the_page_takes_any_tool_type_that_holds_a_function() -> None:
    assert decode({"tools": [{**TIME, "type": "something"}]}).tools == (ToolSpec(name="time"),)


@pytest.mark.parametrize(
    ("choice", "decoded"),
    [
        ("auto", ToolChoice(mode="auto")),
        ("none", ToolChoice(mode="none")),
        ("required", ToolChoice(mode="required")),
        ({"type": "function", "function": {"name": "time"}}, ToolChoice(mode="named", name="time")),
    ],
)
def test_tool_choice(choice: object, decoded: ToolChoice) -> None:
    assert decode({"tools": [WEATHER, TIME], "tool_choice": choice}).tool_choice == decoded


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_narrow_the_tools(mode: str) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [TIME]}}
    decoded = decode({"tools": [WEATHER, TIME], "tool_choice": choice})
    assert [tool.name for tool in decoded.tools] == ["time"]
    assert decoded.tool_choice.mode == mode


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_a_choice_without_tools_changes_nothing(choice: str) -> None:
    assert decode({"tool_choice": choice}).tool_choice.mode == choice


# --- form of the answer -------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("form", "decoded"),
    [
        ({"type": "text"}, ResponseFormat()),
        ({"type": "json_object"}, ResponseFormat(kind="json_object")),
        ({"type": "json_object", "schema": SCHEMA}, ResponseFormat(kind="json_schema", schema=SCHEMA)),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
            ResponseFormat(kind="json_schema", name="n", schema=SCHEMA),
        ),
    ],
)
def test_response_format(form: dict[str, Any], decoded: ResponseFormat) -> None:
    assert decode({"response_format": form}).response_format == decoded


def test_grammar() -> None:
    expected = ResponseFormat(kind="grammar", grammar='root ::= "x"')
    assert decode({"grammar": 'root ::= "x"', "response_format": {"type": "text"}}).response_format == expected
    assert decode({"grammar": ""}).response_format == ResponseFormat()


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "strin"}}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": [1]}}, "response_format.json_schema.schema"),
        ({"type": "json_object", "schema": {"enum": []}}, "response_format.schema"),
    ],
)
def test_missing_and_malformed_schemas(form: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidSchemaError) as caught:
        decode({"response_format": form})
    assert caught.value.param == param


# --- thinking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "can_think", "thinking", "effort"),
    [
        ({}, True, None, None),
        ({"enable_thinking": False}, False, False, None),
        ({"enable_thinking": True}, False, True, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, True, False, None),
        ({"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}}, True, True, None),
        ({"reasoning_effort": "none"}, True, False, None),
        ({"reasoning_effort": "none"}, False, False, None),
        ({"reasoning_effort": "minimal"}, True, True, "low"),
        ({"reasoning_effort": "medium"}, True, True, "medium"),
        ({"reasoning_effort": "xhigh"}, True, True, "high"),
        ({"reasoning_effort": "max"}, False, None, "high"),
        ({"reasoning_effort": "high", "enable_thinking": False}, True, False, "high"),
    ],
)
def test_thinking(fields: dict[str, Any], can_think: bool, thinking: bool | None, effort: str | None) -> None:
    decoded = think_if_able(decode(fields), can_think=can_think)
    assert (decoded.enable_thinking, decoded.reasoning_effort) == (thinking, effort)
    assert "enable_thinking" not in decoded.template_arguments


def test_template_arguments() -> None:
    decoded = decode({"chat_template_kwargs": {"enable_thinking": True, "tone": "dry", "depth": 3}})
    assert decoded.template_arguments == {"tone": "dry", "depth": 3}
