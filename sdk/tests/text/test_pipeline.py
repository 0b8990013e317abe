"""What a text becomes, by example."""

import json
from typing import Any

import pytest

from cardcage_sdk.chat import ChatRequest, ResponseFormat, Sampling, ToolChoice, ToolSpec
from cardcage_sdk.errors import WorkerProtocolError
from cardcage_sdk.events import ChatEvent, Finished, ReasoningDelta, Text, TextDelta, ToolCallDelta
from cardcage_sdk.models import ModelInfo
from cardcage_sdk.text.pipeline import TextPipeline
from cardcage_sdk.text.toolcalls import new_call_id

INFO = ModelInfo(tool_format="hermes", reasoning_tags=("<think>", "</think>"))
TOOLS = (ToolSpec(name="f"),)


def run(
    text: str, reason: str = "stop", *, info: ModelInfo = INFO, starts_in_reasoning: bool = False, **fields: Any
) -> list[ChatEvent]:
    """Events of a text that arrives two characters at a time."""
    stop = fields.pop("stop", ())
    request = ChatRequest(id="r", model="m", sampling=Sampling(stop=stop), **{"tools": TOOLS, **fields})
    pipeline = TextPipeline(request, info, starts_in_reasoning=starts_in_reasoning)
    events: list[ChatEvent] = []
    for start in range(0, len(text), 2):
        if not pipeline.is_finished:
            events += pipeline.feed(Text(text[start : start + 2]))
    return events + pipeline.feed(Finished(reason=reason))


def text_of(events: list[ChatEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def reasoning_of(events: list[ChatEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, ReasoningDelta))


def calls_of(events: list[ChatEvent]) -> list[tuple[str | None, str]]:
    calls: dict[int, tuple[str | None, str]] = {}
    for event in events:
        if isinstance(event, ToolCallDelta):
            name, arguments = calls.get(event.index, (event.name, ""))
            calls[event.index] = (name, arguments + event.arguments)
    return list(calls.values())


def reason_of(events: list[ChatEvent]) -> str:
    assert isinstance(events[-1], Finished)
    return events[-1].reason


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("\n <think>Hm.</think>Yes.", "Hm.", "Yes."),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("<think></think>", "", ""),
        ("Use <think> and </think> tags.", "", "Use <think> and </think> tags."),
        ("<thinking> is no tag", "", "<thinking> is no tag"),
        ("<think>never closed", "never closed", ""),
        ("<think>a </thought> b</think>c", "a </thought> b", "c"),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        ("<thi", "", "<thi"),
        ("<think>a</thi", "a</thi", ""),
        ("  plain", "", "  plain"),
    ],
)
def test_reasoning(text: str, reasoning: str, answer: str) -> None:
    events = run(text)
    assert (reasoning_of(events), text_of(events)) == (reasoning, answer)


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("<think>\nHm.</think>Yes.", "Hm.", "Yes."),
        ("</think>Yes.", "", "Yes."),
        ("Hm", "Hm", ""),
    ],
)
def test_reasoning_that_the_prompt_opened(text: str, reasoning: str, answer: str) -> None:
    events = run(text, starts_in_reasoning=True)
    assert (reasoning_of(events), text_of(events)) == (reasoning, answer)


def test_a_raw_prompt_keeps_its_tags() -> None:
    events = run("<think>a</think>b", prompt="x", tools=())
    assert text_of(events) == "<think>a</think>b"


@pytest.mark.parametrize(
    ("text", "calls", "answer"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"a": "ä"}}\n</tool_call>', [("f", '{"a": "ä"}')], ""),
        ('Let me see.\n\n<tool_call>{"name":"f","arguments":{}}</tool_call>', [("f", "{}")], "Let me see."),
        (
            '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>\n<tool_call>{"name":"h","arguments":{"b":[{}]}}</tool_call>',
            [("f", '{"a":1}'), ("h", '{"b":[{}]}')],
            "",
        ),
        ('<tool_call>{"name":"f","arguments":{"a":"</tool_call>}"}}</tool_call>', [("f", '{"a":"</tool_call>}"}')], ""),
        ('<tool_call>{"arguments":{"a":1},"name":"f"}</tool_call> done', [("f", '{"a": 1}')], "done"),
        ('<tool_call>{"name":"f"}</tool_call>', [("f", "{}")], ""),
        ('<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}</tool_call>', [("f", '{"a":1}')], ""),
        ('<tool_call>{"name":"f","arguments":{"a":1},"id":"x"}</tool_call>', [("f", '{"a":1}')], ""),
        ('<tool_call>{"name":"f","arguments":{"a":1}</tool_call>', [("f", '{"a":1}')], ""),
        ('<tool_call>{"type":"function","function":{"name":"f","arguments":{}}}</tool_call>', [("f", "{}")], ""),
        ('{"name": "f", "arguments": {"a": 1}}', [("f", '{"a": 1}')], ""),
        (
            '\n{"name": "f", "parameters": {"a": 1}}\n{"name": "f", "arguments": {}}',
            [("f", '{"a": 1}'), ("f", "{}")],
            "",
        ),
    ],
)
def test_tool_calls(text: str, calls: list[tuple[str, str]], answer: str) -> None:
    events = run(text)
    assert calls_of(events) == calls
    assert text_of(events) == answer
    assert reason_of(events) == "tool_calls"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>not JSON</tool_call>",
        '<tool_call>{"nam": "f"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f"',
        "<tool_call>",
        "<tool_cal",
        "Call it with <tool_call> tags, as in <tool_call>x</tool_call>.",
        '{"name": "unknown", "arguments": {}}',
        '{"city": "Paris"}',
        '{"name": "f"',
        'He said: {"name": "f", "arguments": {}}',
        "{ not json",
    ],
)
def test_what_only_looks_like_a_call_stays_text(text: str) -> None:
    events = run(text)
    assert calls_of(events) == []
    assert text_of(events) == text
    assert reason_of(events) == "stop"


def test_a_call_that_is_cut_off_has_what_there_is_of_its_arguments() -> None:
    events = run('<tool_call>{"name": "f", "arguments": {"a": [1', reason="length")
    assert calls_of(events) == [("f", '{"a": [1')]
    assert reason_of(events) == "length"


def test_arguments_that_are_no_json_are_passed_on_as_they_are() -> None:
    events = run('<tool_call>{"name": "f", "arguments": {"a": ]}}</tool_call>after')
    assert calls_of(events) == [("f", '{"a": ]}}')]
    assert text_of(events) == "after"


def test_arguments_stream() -> None:
    events = run('<tool_call>{"name": "f", "arguments": {"text": "a long text that comes in pieces"}}</tool_call>')
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    assert len(deltas) > 5
    assert deltas[0].id is not None
    assert deltas[0].arguments == ""
    assert all(delta.id is None and delta.name is None for delta in deltas[1:])
    assert json.loads("".join(delta.arguments for delta in deltas)) == {"text": "a long text that comes in pieces"}


def test_without_parallel_calls_the_first_ends_the_answer() -> None:
    text = '<tool_call>{"name":"f","arguments":{}}</tool_call><tool_call>{"name":"f","arguments":{}}</tool_call>'
    request = ChatRequest(id="r", model="m", tools=TOOLS, parallel_tool_calls=False)
    pipeline = TextPipeline(request, INFO)
    events = [event for character in text if not pipeline.is_finished for event in pipeline.feed(Text(character))]
    assert pipeline.stop_found
    assert calls_of(events) == [("f", "{}")]
    assert reason_of(events) == "tool_calls"


@pytest.mark.parametrize(
    "fields",
    [{"tool_choice": ToolChoice(mode="none")}, {"tools": ()}, {"info": ModelInfo()}],
    ids=["choice none", "no tools", "no format"],
)
def test_calls_are_looked_for_only_where_they_may_be(fields: dict[str, Any]) -> None:
    text = '<tool_call>{"name":"f","arguments":{}}</tool_call>'
    assert text_of(run(text, **fields)) == text


def test_a_json_answer_that_was_asked_for_is_no_call() -> None:
    text = '{"name": "f", "arguments": {}}'
    assert text_of(run(text, response_format=ResponseFormat(kind="json_object"))) == text


def test_a_json_answer_beside_tools_streams() -> None:
    pipeline = TextPipeline(ChatRequest(id="r", model="m", tools=TOOLS), INFO)
    pipeline.feed(Text('{"city": "'))
    assert text_of(pipeline.feed(Text("Par"))) == "Par"


def test_stop_strings_are_matched_before_tags_are_taken_out() -> None:
    events = run("<think>a</think>b", stop=("</think>",))
    assert (reasoning_of(events), text_of(events)) == ("a", "")
    assert events[-1] == Finished(reason="stop", stop_sequence="</think>")


def test_a_held_back_tail_is_released_at_the_end() -> None:
    events = run("ends with ST", stop=("STOP",))
    assert text_of(events) == "ends with ST"
    assert events[-1] == Finished(reason="stop")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty stop string"):
        run("x", stop=("",))


def test_outputs_of_the_other_kind_are_refused() -> None:
    raw = TextPipeline(ChatRequest(id="r", model="m"), INFO)
    with pytest.raises(WorkerProtocolError, match="declares raw output but yielded TextDelta"):
        raw.feed(TextDelta("x"))
    parsed = TextPipeline(ChatRequest(id="r", model="m"), INFO, output="parsed")
    with pytest.raises(WorkerProtocolError, match="declares parsed output but yielded Text"):
        parsed.feed(Text("x"))


def test_parsed_output_is_passed_through() -> None:
    pipeline = TextPipeline(ChatRequest(id="r", model="m", tools=TOOLS), INFO, output="parsed")
    outputs = [ReasoningDelta("<think>"), TextDelta("a"), ToolCallDelta(index=0, id="1", name="f", arguments="{}")]
    assert [event for output in outputs for event in pipeline.feed(output)] == outputs
    assert pipeline.feed(Finished(reason="stop")) == [Finished(reason="tool_calls")]
    assert (pipeline.completion_tokens, pipeline.reasoning_tokens) == (3, 1)


def test_half_a_surrogate_pair_never_leaves() -> None:
    assert text_of(run("a\ud83d b")) == "a\ufffd b"


def test_bytes_that_become_no_character() -> None:
    pipeline = TextPipeline(ChatRequest(id="r", model="m"), INFO)
    events = pipeline.feed(Text(b"a\xf0\x9f"))
    events += pipeline.feed(Finished(reason="length"))
    assert text_of(events) == "a\ufffd"


def test_tokens_are_counted() -> None:
    pipeline = TextPipeline(ChatRequest(id="r", model="m"), INFO)
    for piece, ids in (("<think>", (1,)), ("a b", (2, 3)), ("</think>", (4,)), ("c", ()), ("d", (5,))):
        pipeline.feed(Text(piece, ids))
    assert pipeline.completion_tokens == 6
    assert pipeline.reasoning_tokens == 3
    assert pipeline.reasoning_ended


def test_ids_of_calls_are_random() -> None:
    ids = {new_call_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(identity.startswith("call_") and len(identity) == 29 for identity in ids)
