"""Answers: lines of streams and whole objects from the same events, models, progress."""

from __future__ import annotations

import json
import math
import re
import struct
from typing import Any, Literal

import pytest

from cardcage_dialect_ollama.context import decode_context
from cardcage_dialect_ollama.encode import Answer, Stopwatch, encode_only, encode_vectors, utc_text
from cardcage_dialect_ollama.encode_models import encode_capabilities, human_number, shown_names
from cardcage_dialect_ollama.encode_progress import PullLines
from cardcage_dialect_ollama.options import parameters_of
from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.chat import Message, Sampling, TextPart
from cardcage_sdk.embeddings import EmbedResult
from cardcage_sdk.errors import EngineFailedError, InvalidRequestError, ModelNotFoundError, StorageFullError
from cardcage_sdk.events import (
    Accepted,
    ChatEvent,
    Finished,
    ReasoningDelta,
    TextDelta,
    Timings,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from cardcage_sdk.library import FileProgress, PullProgress, StoredModel
from cardcage_sdk.models import ModelFile
from cardcage_sdk.service import GenerationDefaults


def answer(kind: Literal["chat", "generate"] = "chat", **options: Any) -> Answer:
    watch = options.pop("watch", Stopwatch(arrived=0.0))
    return Answer(kind, model="Mine", clock=lambda: 1_785_000_000.25, watch=watch, seed="s", **options)


def lines(made: Answer, *events: ChatEvent) -> list[dict[str, Any]]:
    return [line for event in events for line in made.feed(event)]


def test_times() -> None:
    assert utc_text(1_785_000_000.25) == "2026-07-25T17:20:00.250000Z"


def test_a_stream_and_its_whole() -> None:
    events = (
        Accepted(prompt_tokens=3),
        ReasoningDelta("hm"),
        TextDelta("Hel"),
        TextDelta(""),
        TextDelta("lo"),
        Finished(reason="stop", usage=Usage(prompt_tokens=3, completion_tokens=4)),
    )
    streamed = answer()
    made = lines(streamed, *events)
    assert [line["message"] for line in made] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "Hel"},
        {"role": "assistant", "content": "lo"},
    ]
    assert {(line["model"], line["created_at"], line["done"]) for line in made} == {
        ("Mine", "2026-07-25T17:20:00.250000Z", False)
    }
    assert streamed.last() == {
        "model": "Mine",
        "created_at": "2026-07-25T17:20:00.250000Z",
        "message": {"role": "assistant", "content": ""},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 3,
        "eval_count": 4,
    }
    whole = answer()
    lines(whole, *events)
    assert whole.whole()["message"] == {"role": "assistant", "content": "Hello", "thinking": "hm"}


def test_generate_has_the_exchange_as_context() -> None:
    asked = Message(role="user", content=(TextPart("hi"),))
    made = answer("generate", exchange=(asked,))
    assert lines(made, TextDelta("yo")) == [
        {"model": "Mine", "created_at": "2026-07-25T17:20:00.250000Z", "response": "yo", "done": False}
    ]
    lines(made, Finished(reason="length"))
    last = made.last()
    assert (last["response"], last["done_reason"]) == ("", "length")
    assert decode_context(last["context"]) == (asked, Message(role="assistant", content=(TextPart("yo"),)))
    assert "eval_count" not in last


def test_calls_go_out_whole_with_objects_as_arguments() -> None:
    made = answer()
    out = lines(
        made,
        ToolCallDelta(index=0, id="x", name="weather", arguments='{"city": '),
        ToolCallDelta(index=0, arguments='"Paris"}'),
        ToolCallDelta(index=1, id="y", name="time"),
        Finished(reason="tool_calls"),
    )
    calls = [line["message"]["tool_calls"] for line in out]
    assert [len(call) for call in calls] == [1, 1]
    assert calls[0][0]["function"] == {"index": 0, "name": "weather", "arguments": {"city": "Paris"}}
    assert calls[1][0]["function"] == {"index": 1, "name": "time", "arguments": {}}
    assert all(re.fullmatch(r"call_[a-z0-9]{8}", call[0]["id"]) for call in calls)
    assert calls[0][0]["id"] != calls[1][0]["id"]
    assert made.last()["done_reason"] == "stop"
    assert made.whole()["message"]["tool_calls"] == [calls[0][0], calls[1][0]]


@pytest.mark.parametrize("written", ['{"city": ', "[1]", '{"a": NaN}', "text"])
def test_a_call_without_an_object_is_the_text_that_it_is(written: str) -> None:
    made = answer()
    out = lines(made, ToolCallDelta(index=0, id="x", name="weather", arguments=written), Finished(reason="length"))
    assert [line["message"] for line in out] == [
        {"role": "assistant", "content": f'{{"name": "weather", "arguments": {written}}}'}
    ]
    assert "tool_calls" not in made.whole()["message"]


def test_logprobs_are_in_each_line_and_joined_in_the_whole() -> None:
    top = TopLogprob(token="o", token_id=1, logprob=-math.inf, data=b"o")
    token = TokenLogprob(token="Hi", token_id=0, logprob=-0.5, data=b"Hi", top=(top,))
    made = answer()
    (line,) = lines(made, TextDelta("Hi", logprobs=(token,)))
    expected = {
        "token": "Hi",
        "logprob": -0.5,
        "bytes": [72, 105],
        "top_logprobs": [{"token": "o", "logprob": -9999.0, "bytes": [111]}],
    }
    assert line["logprobs"] == [expected]
    lines(made, TextDelta("", logprobs=(token,)), Finished(reason="stop"))
    assert made.whole()["logprobs"] == [expected, expected]
    json.dumps(made.whole(), allow_nan=False)


def test_durations_are_nanoseconds_and_zero_ones_are_left_out() -> None:
    watch = Stopwatch(arrived=1.0, held=1.5, accepted=1.5, first=2.0, ended=3.0)
    made = answer(watch=watch)
    lines(made, Finished(reason="stop", timings=Timings(queue_seconds=0.25)))
    last = made.last()
    assert {name: last[name] for name in last if name.endswith("duration")} == {
        "total_duration": 2_000_000_000,
        "load_duration": 750_000_000,
        "prompt_eval_duration": 250_000_000,
        "eval_duration": 1_000_000_000,
    }
    told = answer(watch=Stopwatch(arrived=1.0, held=1.0))
    lines(told, Finished(reason="stop", timings=Timings(prefill_seconds=0.0, decode_seconds=2.0)))
    assert {name for name in told.last() if name.endswith("duration")} == {"eval_duration"}


def test_an_answer_that_did_not_end_is_none() -> None:
    with pytest.raises(EngineFailedError):
        answer().last()


def test_load_and_unload() -> None:
    assert encode_only("generate", model="m", reason="load", now=0.0) == {
        "model": "m",
        "created_at": "1970-01-01T00:00:00.000000Z",
        "response": "",
        "done": True,
        "done_reason": "load",
    }
    assert encode_only("chat", model="m", reason="unload", now=0.0)["message"] == {"role": "assistant", "content": ""}


def vectors(*values: float, size: int) -> EmbedResult:
    return EmbedResult(vectors=struct.pack(f"<{len(values)}f", *values), dimensions=size, prompt_tokens=(1,))


def test_vectors() -> None:
    result = vectors(0.6, 0.8, 0.0, 0.1, 0.2, 0.3, size=3)
    assert encode_vectors(result, 2)[1] == pytest.approx([0.1, 0.2, 0.3])
    assert encode_vectors(result, 2, dimensions=1) == [[1.0], [1.0]]
    for larger in (0, 3, 9, -1):
        assert len(encode_vectors(result, 2, dimensions=larger)[0]) == 3
    assert encode_vectors(vectors(0.0, 0.0, size=2), 1, dimensions=1) == [[0.0]]
    with pytest.raises(InvalidRequestError, match=r"^embedding contains NaN or Inf values$"):
        encode_vectors(vectors(math.nan, 1.0, size=2), 1)


@pytest.mark.parametrize(
    ("count", "text"),
    [(8_030_261_248, "8.0B"), (134_515_008, "134.52M"), (22_000, "22K"), (5, "5"), (None, ""), (0, "")],
)
def test_numbers_of_weights(count: int | None, text: str) -> None:
    assert human_number(count) == text


def test_capabilities_are_what_it_can() -> None:
    everything = Capabilities(tasks=frozenset(Task), features=frozenset(Feature))
    assert encode_capabilities(everything, thinks=False) == [
        "completion", "tools", "insert", "vision", "audio", "thinking", "embedding",
    ]  # fmt: skip
    assert encode_capabilities(Capabilities(tasks=frozenset({Task.CHAT})), thinks=False) == ["completion"]
    assert encode_capabilities(Capabilities(tasks=frozenset({Task.CHAT})), thinks=True) == ["completion", "thinking"]
    assert encode_capabilities(Capabilities(tasks=frozenset({Task.EMBED})), thinks=False) == ["embedding"]
    assert encode_capabilities(None, thinks=True) == []


def test_names_are_the_shortest_that_mean_one_model() -> None:
    def model(path: str, name: str, source: str | None = None) -> StoredModel:
        return StoredModel(id=f"{name}@{path}", name=name, path=path, source=source)

    assert shown_names(
        [
            model("a", "fox"),
            model("b", "cat:1b", "huggingface:Org/Repo:Q4"),
            model("c", "me-thing:v1", "ollama:me/thing:v1"),
            model("d", "own-thing", "own/thing:latest"),
            model("e", "dog:2b", "ollama:library/dog:2b"),
            model("f", "two:1b"),
            model("g", "two:1b"),
        ]
    ) == {
        "a": "fox:latest",
        "b": "cat:1b",
        "c": "me/thing:v1",
        "d": "own/thing:latest",
        "e": "dog:2b",
        "f": "two:1b@f",
        "g": "two:1b@g",
    }


def test_parameters_by_ollamas_names() -> None:
    defaults = GenerationDefaults(sampling=Sampling(max_tokens=5, stop=("a", "b"), top_k=3), max_context_len=9)
    assert parameters_of(defaults) == {"num_ctx": 9, "num_predict": 5, "stop": ["a", "b"], "top_k": 3}


# --- progress


def progress(state: Any, *files: FileProgress, **more: Any) -> PullProgress:
    return PullProgress(id="p", model="m", state=state, files=files, **more)


def file(
    completed: int, *, is_done: bool = False, name: str = "m.gguf", sha256: str | None = "ab" * 32
) -> FileProgress:
    return FileProgress(name=name, completed_bytes=completed, total_bytes=10, is_done=is_done, sha256=sha256)


LAYER = {"status": "pulling abababababab", "digest": "sha256:" + "ab" * 32, "total": 10}


def test_a_pull_line_by_line() -> None:
    pull = PullLines()
    states = [
        progress("resolving"),
        progress("downloading", file(0)),
        progress("downloading", file(0)),
        progress("downloading", file(4)),
        progress("checking", file(10, is_done=True)),
        progress("checking", file(10, is_done=True)),
        progress("done", file(10, is_done=True)),
    ]
    out = [pull.begin(), *(line for state in states for line in pull.feed(state))]
    assert out == [
        {"status": "pulling manifest"},
        LAYER,
        {**LAYER, "completed": 4},
        {**LAYER, "completed": 10},
        {"status": "verifying sha256 digest"},
        {"status": "writing manifest"},
        {"status": "success"},
    ]
    assert pull.has_ended


def test_a_pull_that_is_joined_begins_with_a_bar() -> None:
    assert PullLines().feed(progress("downloading", file(4))) == [LAYER, {**LAYER, "completed": 4}]


def test_a_model_that_is_there_already() -> None:
    stored = StoredModel(
        id="i", name="n", path="/p", files=(ModelFile(name="m.gguf", size_bytes=10, sha256="ab" * 32),)
    )
    assert PullLines().feed(progress("done", result=stored, is_new=False)) == [
        {**LAYER, "completed": 10},
        {"status": "verifying sha256 digest"},
        {"status": "writing manifest"},
        {"status": "success"},
    ]


def test_a_file_without_a_digest_has_its_name() -> None:
    (line,) = PullLines().feed(progress("downloading", file(0, name="a.bin", sha256=None)))
    assert line == {"status": "pulling a.bin", "digest": "file:a.bin", "total": 10}


def test_a_pull_that_fails() -> None:
    pull = PullLines()
    error = StorageFullError(needed_bytes=2, free_bytes=1, path="/s")
    assert pull.feed(progress("failed", error=error)) == [{"error": error.message}]
    assert pull.has_ended
    assert PullLines().failure(ModelNotFoundError("x")) == {"error": "pull model manifest: file does not exist"}
