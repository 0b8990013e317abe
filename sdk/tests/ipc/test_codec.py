"""Values come out of the pipe equal to what went in, and bytes that are no frame are named as such."""

import dataclasses
import random
import struct
from pathlib import Path
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardcage_sdk import errors
from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.chat import (
    AudioPart,
    ChatRequest,
    ImagePart,
    Message,
    ResponseFormat,
    Sampling,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from cardcage_sdk.embeddings import EmbedRequest, EmbedResult
from cardcage_sdk.errors import CardcageError, ContextLengthExceededError, InvalidRequestError, WorkerProtocolError
from cardcage_sdk.events import Accepted, Failed, Finished, TextDelta, TokenLogprob, TopLogprob, Usage
from cardcage_sdk.hookspecs import CONTRACT_VERSION
from cardcage_sdk.ipc import frames
from cardcage_sdk.ipc.codec import VALUE_CLASSES, Codec
from cardcage_sdk.ipc.frames import (
    FRAME_LIMIT,
    Cancel,
    Frame,
    FrameBuffer,
    Hello,
    Load,
    Loaded,
    Ping,
    Result,
    Start,
    Step,
    check_hello,
    decode_frame,
    encode_frame,
)
from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelFile, ModelInfo

CODEC = Codec(VALUE_CLASSES)

REQUEST = ChatRequest(
    id="r1",
    model="m",
    messages=(
        Message(role="system", content=(TextPart("sys"),)),
        Message(
            role="user",
            content=(
                TextPart("ü"),
                ImagePart(data=b"\x00\xff", media_type="image/png"),
                AudioPart(data=b"a", format="wav"),
            ),
        ),
        Message(role="assistant", tool_calls=(ToolCall(id="c", name="f", arguments="{}"),), reasoning="hm"),
        Message(role="tool", content=(TextPart("42"),), tool_call_id="c", name="f"),
    ),
    sampling=Sampling(temperature=0.5, logit_bias={1: -100.0, -7: 2.5}, stop=("a", "b"), seed=-(2**63)),
    n=2,
    logprobs=0,
    tools=(ToolSpec(name="f", parameters={"type": "object", "maximum": 10**40, "x": [None, True, 1.5, {"y": []}]}),),
    tool_choice=ToolChoice(mode="named", name="f"),
    response_format=ResponseFormat(kind="json_schema", schema={}),
    enable_thinking=False,
    template_arguments={"list": [1, 2], "nested": {"a": {"b": "c"}}},
    reuse_prefix=False,
)

VALUES: list[Any] = [
    REQUEST,
    ChatRequest(id="r", model="m"),
    ChatRequest(id="r", model="m", prompt=(1, 2, 3)),
    ChatRequest(id="r", model="m", prompt="text", suffix=""),
    EmbedRequest(id="e", model="m", inputs=("text", (1, 2))),
    EmbedResult(vectors=b"\x00" * 8, dimensions=2, prompt_tokens=(1,)),
    Capabilities(tasks=frozenset(Task), features=frozenset(Feature), sampling=frozenset({"top_k"}), output="parsed"),
    ModelArtifact(
        path=Path("/models/ü"),
        name="n",
        chips=("a",),
        files=(ModelFile(name="x", size_bytes=2**40),),
        reasoning_tags=("<a>", "</a>"),
        extra={"k": [1]},
    ),
    ModelInfo(capabilities=Capabilities(tasks=frozenset({Task.EMBED})), details={"a": 1}, reasoning_tags=("<", ">")),
    LoadOptions(options={"a": None}),
    Accepted(prompt_tokens=3, starts_in_reasoning=True),
    TextDelta(
        "x",
        1,
        (
            TokenLogprob(
                token="x",
                token_id=5,
                logprob=-1,
                data=b"x",
                top=(TopLogprob(token="y", token_id=6, logprob=-2.0, data=b"y"),),
            ),
        ),
    ),
    Finished(reason="stop", usage=Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=0)),
    TextDelta("lone surrogate \ud800"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_round_trip(value: Any) -> None:
    back = CODEC.loads(CODEC.dumps(value))
    assert back == value
    assert type(back) is type(value)


def test_types_are_rebuilt_and_json_stays_json() -> None:
    back = CODEC.loads(CODEC.dumps(REQUEST))
    assert isinstance(back, ChatRequest)
    assert isinstance(back.messages, tuple)
    assert isinstance(back.sampling.stop, tuple)
    assert back.sampling.logit_bias == {1: -100.0, -7: 2.5}
    assert isinstance(back.template_arguments["list"], list)


def test_defaults_are_left_out() -> None:
    raw = msgpack.unpackb(CODEC.dumps(ChatRequest(id="r", model="m")))
    assert raw == {"$": "ChatRequest", "id": "r", "model": "m"}


def test_a_none_that_is_no_default_survives() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Value:
        size: int | None = 5

    globals()["Value"] = Value
    codec = Codec((Value,))
    assert codec.loads(codec.dumps(Value(size=None))) == Value(size=None)


@pytest.mark.parametrize("cls", errors.error_classes(), ids=lambda cls: cls.__name__)
def test_errors_travel_as_themselves(cls: type[CardcageError]) -> None:
    error = errors.from_wire({"class": cls.__name__, "message": "because", "param": "p", "fields": {}})
    back = CODEC.loads(CODEC.dumps(Failed(error=error)))
    assert isinstance(back, Failed)
    assert type(back.error) is cls
    assert back.error.to_wire() == error.to_wire()


def test_an_error_with_fields() -> None:
    back = CODEC.loads(CODEC.dumps(Failed(error=ContextLengthExceededError(prompt_tokens=9, context_tokens=4))))
    assert isinstance(back, Failed)
    assert back.error.fields == {"prompt_tokens": 9, "context_tokens": 4}


def test_a_plugin_s_own_error_travels_as_its_nearest_ancestor() -> None:
    class OwnError(InvalidRequestError):
        pass

    back = CODEC.loads(CODEC.dumps(Failed(error=OwnError("mine", param="x"))))
    assert isinstance(back, Failed)
    assert type(back.error) is InvalidRequestError
    assert back.error.message == "mine"


def test_scalars_of_array_libraries_are_numbers() -> None:
    class Scalar:
        def __init__(self, value: float) -> None:
            self.value = value

        def __float__(self) -> float:
            return self.value

    class Index(Scalar):
        def __index__(self) -> int:
            return int(self.value)

    delta = TextDelta("x", logprobs=(TokenLogprob(token="x", token_id=Index(3), logprob=Scalar(-0.5), data=b"x"),))  # type: ignore[arg-type]
    back = CODEC.loads(CODEC.dumps(delta))
    assert back == TextDelta("x", logprobs=(TokenLogprob(token="x", token_id=3, logprob=-0.5, data=b"x"),))


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x".__class__], ids=repr)
def test_what_is_no_json_cannot_be_sent(value: Any) -> None:
    with pytest.raises(WorkerProtocolError, match="cannot be encoded"):
        CODEC.dumps(ChatRequest(id="r", model="m", template_arguments={"x": value}))


def test_an_unregistered_class_cannot_be_sent() -> None:
    with pytest.raises(WorkerProtocolError, match="Hello is not registered"):
        CODEC.dumps(Hello(contract=(0, 1), pid=1))


def pack(value: Any) -> bytes:
    return bytes(msgpack.packb(value))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "Malformed frame"),
        (b"\xc1", "Malformed frame"),
        (pack([1]), "expected a tagged map, got list"),
        (pack({"a": 1}), "unknown type None"),
        (pack({"$": "Path"}), "unknown type 'Path'"),
        (pack({"$": ["x"]}), "unknown type"),
        (pack({"$": "Usage", "prompt_tokens": 1}), "Usage.completion_tokens is missing"),
        (
            pack({"$": "Usage", "prompt_tokens": 1, "completion_tokens": "2"}),
            "Usage.completion_tokens: expected int, got str",
        ),
        (pack({"$": "Usage", "prompt_tokens": True, "completion_tokens": 2}), "expected int, got bool"),
        (pack({"$": "Usage", "prompt_tokens": 1, "completion_tokens": 2, "x": 3}), "Usage has no x"),
        (pack({"$": "ModelArtifact", "path": "a\0b", "name": "n"}), "expected a path"),
        (pack({"$": "Message", "role": "judge"}), "'judge' is none of"),
        (pack({"$": "Capabilities", "tasks": ["fly"]}), "'fly' is no Task"),
        (pack({"$": "Capabilities", "tasks": [], "sampling": ["sharpness"]}), "unknown sampling parameters"),
        (pack({"$": "Failed", "error": {"$": "!", "class": "X"}}), "an error without message or fields"),
        (
            pack({"$": "Failed", "error": {"$": "Usage", "prompt_tokens": 1, "completion_tokens": 2}}),
            "expected CardcageError, got Usage",
        ),
        (pack({"$": "Text", "text": 5}), "Text.text"),
        (msgpack.packb({"$": "Text", "text": msgpack.ExtType(7, b"")}), "unknown extension type 7"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else value,
)
def test_bytes_that_are_no_value(data: bytes, words: str) -> None:
    with pytest.raises(WorkerProtocolError) as caught:
        CODEC.loads(data)
    assert words in caught.value.message


FRAMES: list[Frame] = [
    Hello(contract=CONTRACT_VERSION, pid=7),
    Load(
        target=frames.EngineTarget(path="a:B"),
        artifact=ModelArtifact(path=Path("/x"), name="x"),
        options=LoadOptions(),
        capabilities=Capabilities(tasks=frozenset({Task.CHAT})),
    ),
    Loaded(info=ModelInfo()),
    Start(request=REQUEST, accepted=Accepted(prompt_tokens=1)),
    Step(
        events=(("a", TextDelta("x")), ("b", Failed(error=WorkerProtocolError("y"))), ("a", Finished(reason="stop"))),
        released=("a",),
    ),
    Result(request_id="e", result=EmbedResult(vectors=b"1234", dimensions=1, prompt_tokens=(2,))),
    Cancel(request_id="a"),
    Ping(number=3),
]


def test_frames_of_a_stream_cut_anywhere() -> None:
    data = b"".join(map(encode_frame, FRAMES))
    source = random.Random(5)
    for _ in range(50):
        buffer = FrameBuffer()
        out: list[Frame] = []
        position = 0
        while position < len(data):
            size = source.choice([1, 2, 3, 7, 50, 500])
            out += buffer.feed(data[position : position + size])
            position += size
        assert list(map(repr, out)) == list(map(repr, FRAMES))


def test_a_frame_over_the_limit_is_refused_by_its_length() -> None:
    with pytest.raises(WorkerProtocolError, match="over the limit"):
        list(FrameBuffer().feed(struct.pack("<I", FRAME_LIMIT + 1)))
    with pytest.raises(WorkerProtocolError, match="over the limit"):
        encode_frame(Start(request=ChatRequest(id="r", model="m", prompt="x" * (FRAME_LIMIT + 1))))


def test_a_value_is_no_frame() -> None:
    with pytest.raises(WorkerProtocolError, match="TextDelta is no frame"):
        decode_frame(CODEC.dumps(TextDelta("x")))


def test_every_frame_class_is_registered() -> None:
    for cls in get_args(Frame):
        with pytest.raises(WorkerProtocolError) as caught:
            decode_frame(pack({"$": cls.__name__, "no such field": 1}))
        assert "unknown type" not in caught.value.message


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (Ping(number=1), "must be a hello, not Ping"),
        (Hello(contract=(99, 0), pid=1), "contract 99.0 there"),
    ],
    ids=["ping", "version"],
)
def test_the_first_frame(frame: Frame, words: str) -> None:
    with pytest.raises(WorkerProtocolError, match=words):
        check_hello(frame)


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_a_protocol_error_or_wait_for_more(data: bytes) -> None:
    buffer = FrameBuffer(limit=1000)
    try:
        out = list(buffer.feed(data))
    except WorkerProtocolError:
        return
    assert out == []


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(tag=st.sampled_from([cls.__name__ for cls in (*VALUE_CLASSES, *get_args(Frame))] + ["!"]), fields=st.dictionaries(
    st.sampled_from(sorted({field.name for cls in VALUE_CLASSES for field in dataclasses.fields(cls)})), JSON, max_size=6,
))  # fmt: skip
def test_well_formed_msgpack_of_the_wrong_shape(tag: str, fields: dict[str, Any]) -> None:
    try:
        data = msgpack.packb({"$": tag, **fields})
    except OverflowError:
        return
    try:
        value = decode_frame(data)
    except WorkerProtocolError:
        return
    assert decode_frame(encode_frame(value)[4:]) == value


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255), which=st.integers(0, len(FRAMES) - 1))
def test_one_wrong_byte(position: int, byte: int, which: int) -> None:
    body = bytearray(encode_frame(FRAMES[which])[4:])
    body[position % len(body)] = byte
    try:
        decode_frame(body)
    except WorkerProtocolError:
        return


@given(JSON.filter(lambda value: not isinstance(value, bytes)))
@settings(max_examples=200, deadline=None)
def test_any_json_value_survives(value: Any) -> None:
    request = ChatRequest(id="r", model="m", template_arguments={"value": value})
    assert CODEC.loads(CODEC.dumps(request)) == request
