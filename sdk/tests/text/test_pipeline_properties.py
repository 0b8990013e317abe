"""However a text is cut into pieces, the same events come out."""

import dataclasses
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cardcage_sdk.chat import ChatRequest, Sampling, ToolSpec
from cardcage_sdk.events import ChatEvent, Finished, ReasoningDelta, Text, TextDelta, TokenLogprob, ToolCallDelta
from cardcage_sdk.models import ModelInfo
from cardcage_sdk.text.pieces import Piece
from cardcage_sdk.text.pipeline import TextPipeline
from cardcage_sdk.text.stops import StopFilter
from cardcage_sdk.text.utf8 import Utf8Assembler

INFO = ModelInfo(tool_format="hermes", reasoning_tags=("<think>", "</think>"))
TOOLS = (ToolSpec(name="f"), ToolSpec(name="g"))

# Everything that means something to the pipeline, broken and whole, and what surrounds it.
FRAGMENTS = st.sampled_from(
    [
        "<think>", "</think>", "<thi", "</", "<", "\n", " ", "\n\n", "Hello", "ä", "🛠️", "end", "STOP", "ST", "OP",
        "<tool_call>", "</tool_call>", "<tool_", '{"name": "f", "arguments": {"a": 1}}', '{"name":"g","arguments":{}}',
        '{"name": "f", "arguments": {"text": "}</tool_call><think>"}}', '{"arguments": {"a": [1]}, "name": "f"}',
        '{"name": "f"}', '{"name": "nobody", "arguments": {}}', '{"city": "Paris"}', '{"name": "f", "arguments": {"a": ]}}',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"name": "f", "arguments": {"a": "\\', '\\"', '"', "{", "}", "[", "]",
        '{"function": {"name": "f", "parameters": {}}}', '{"name"', "tool", ",", ":",
    ]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=8).map("".join)


def merge(events: list[ChatEvent]) -> list[ChatEvent]:
    """Join what a client joins."""
    out: list[ChatEvent] = []
    for event in events:
        last = out[-1] if out else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta):
            out[-1] = TextDelta(last.text + event.text, logprobs=last.logprobs + event.logprobs)
        elif isinstance(event, ReasoningDelta) and isinstance(last, ReasoningDelta):
            out[-1] = ReasoningDelta(last.text + event.text, logprobs=last.logprobs + event.logprobs)
        elif isinstance(event, ToolCallDelta) and isinstance(last, ToolCallDelta) and event.index == last.index:
            out[-1] = dataclasses.replace(last, arguments=last.arguments + event.arguments)
        else:
            out.append(event)
    return out


def run(pieces: list[bytes], request: ChatRequest, *, starts_in_reasoning: bool = False) -> list[ChatEvent]:
    pipeline = TextPipeline(request, INFO, starts_in_reasoning=starts_in_reasoning, new_id=lambda: "call_0")
    events: list[ChatEvent] = []
    for piece in pieces:
        if pipeline.is_finished:
            break
        events += pipeline.feed(Text(piece))
    if not pipeline.is_finished:
        events += pipeline.feed(Finished(reason="stop"))
    assert isinstance(events[-1], Finished)
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert all(event.text for event in events if isinstance(event, (TextDelta, ReasoningDelta)))
    return merge(events)


def cut(data: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(point % (len(data) + 1) for point in points), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@settings(max_examples=400, deadline=None)
@given(
    text=TEXTS,
    points=st.lists(st.integers(0, 10_000), max_size=12),
    stop=st.lists(st.sampled_from(["STOP", "ST", "end", "\n\n", "</think>", "}}", "o"]), max_size=3),
    parallel=st.booleans(),
    starts_in_reasoning=st.booleans(),
)
@example(
    text='<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
    points=[30],
    stop=["}}"],
    parallel=False,
    starts_in_reasoning=False,
)
@example(text='{"name": "f", "arguments": "{}"}Hello', points=[], stop=["o"], parallel=False, starts_in_reasoning=False)
def test_any_cut_gives_the_same_events(
    text: str, points: list[int], stop: list[str], parallel: bool, starts_in_reasoning: bool
) -> None:
    request = ChatRequest(
        id="r", model="m", tools=TOOLS, parallel_tool_calls=parallel, sampling=Sampling(stop=tuple(stop))
    )
    data = text.encode()
    whole = run([data], request, starts_in_reasoning=starts_in_reasoning)
    assert run(cut(data, points), request, starts_in_reasoning=starts_in_reasoning) == whole
    assert run([data[i : i + 1] for i in range(len(data))], request, starts_in_reasoning=starts_in_reasoning) == whole


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_without_tools_tags_or_stops_nothing_is_changed(text: str) -> None:
    pipeline = TextPipeline(ChatRequest(id="r", model="m"), ModelInfo())
    events = [event for byte in text.encode() for event in pipeline.feed(Text(bytes([byte])))]
    events += pipeline.feed(Finished(reason="length"))
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == text
    assert events[-1] == Finished(reason="length")


@settings(max_examples=300, deadline=None)
@given(
    data=st.binary(max_size=40) | st.text(max_size=20).map(str.encode),
    points=st.lists(st.integers(0, 1000), max_size=8),
)
def test_utf8_at_any_byte(data: bytes, points: list[int]) -> None:
    assembler = Utf8Assembler()
    out = "".join(assembler.feed(piece) for piece in cut(data, points)) + assembler.finish()
    assert out == data.decode("utf-8", "replace")


@settings(max_examples=300, deadline=None)
@given(
    text=st.text("abcä", max_size=30),
    stops=st.lists(st.text("abcä", min_size=1, max_size=4), min_size=1, max_size=4),
    points=st.lists(st.integers(0, 1000), max_size=10),
)
def test_stop_strings_at_any_cut(text: str, stops: list[str], points: list[int]) -> None:
    edges = [0, *sorted(point % (len(text) + 1) for point in points), len(text)]
    found = StopFilter(stops)
    out = "".join(found.feed(Piece(text[start:end])).text for start, end in pairwise(edges))
    out += found.finish().text
    # Defined without any streaming: the first prefix of the text that ends with a stop string, without the longest such.
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            assert (out, found.found) == (text[: end - len(longest)], longest)
            return
    assert (out, found.found) == (text, None)


@settings(max_examples=300, deadline=None)
@given(
    words=st.lists(st.sampled_from(["Hi ", "ä", "<think>", "</think>", "ST", "OP", " x", "🛠", "\n"]), max_size=10),
    size=st.integers(1, 3),
)
def test_each_logprob_goes_with_its_text(words: list[str], size: int) -> None:
    data = "".join(words).encode()
    tokens = [data[start : start + size] for start in range(0, len(data), size)]
    pipeline = TextPipeline(ChatRequest(id="r", model="m", sampling=Sampling(stop=("STOP",))), INFO)
    events: list[ChatEvent] = []
    for number, token in enumerate(tokens):
        logprob = TokenLogprob(token="?", token_id=number, logprob=-1.0, data=token)
        events += pipeline.feed(Text(token, (number,), (logprob,)))
        if pipeline.is_finished:
            break
    if not pipeline.is_finished:
        events += pipeline.feed(Finished(reason="stop"))
    deltas = [event for event in events if isinstance(event, (TextDelta, ReasoningDelta))]
    seen = [logprob.token_id for event in deltas for logprob in event.logprobs]
    assert seen == sorted(set(seen)), "each token at most once, in order"
    if not any("<" in word or "ST" in word for word in words) and data.decode().strip():
        assert b"".join(token.data for event in deltas for token in event.logprobs) == data
