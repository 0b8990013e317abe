"""What the golden exchanges do not show of encoding: its refusals and its edges."""

from __future__ import annotations

import base64
import dataclasses
import json
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardcage_dialect_openai.completions import CompletionAnswer, CompletionChunks
from cardcage_dialect_openai.encode import (
    AnswerHead,
    ChatAnswer,
    ChatChunks,
    encode_embedding,
    encode_finish_reason,
    fingerprint,
    finite,
)
from cardcage_dialect_openai.settings import Settings, read_settings
from cardcage_dialect_openai.sse import DONE, encode_error_event
from cardcage_sdk.capabilities import Capabilities, Task
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.embeddings import EmbedResult
from cardcage_sdk.errors import ConfigError, EngineCrashedError, EngineFailedError
from cardcage_sdk.events import Accepted, Finished, TextDelta, Usage
from cardcage_sdk.models import ModelInfo
from cardcage_sdk.service import GenerationDefaults, ModelStatus

HEAD = AnswerHead(id="i", created=1, model="m", fingerprint="fp")


def chunks(include_usage: bool | None, profile: str) -> ChatChunks:
    settings = read_settings({"profile": profile})
    return ChatChunks(head=HEAD, settings=settings, choices=1, logprobs=False, include_usage=include_usage)


@pytest.mark.parametrize(
    ("profile", "include_usage", "sent"),
    [
        ("llamapi", None, True),
        ("llamapi", True, True),
        ("llamapi", False, False),
        ("openai", None, False),
        ("openai", True, True),
        ("openai", False, False),
    ],
)
def test_the_usage_chunk(profile: str, include_usage: bool | None, sent: bool) -> None:
    made = chunks(include_usage, profile)
    made.feed(Finished(reason="stop", usage=Usage(prompt_tokens=1, completion_tokens=2)))
    end = made.end()
    assert len(end) == int(sent)
    if sent:
        assert end[0]["choices"] == []
        assert end[0]["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


def test_an_answer_that_never_finished_is_no_answer() -> None:
    answer = ChatAnswer(head=HEAD, settings=Settings(), choices=2, logprobs=False)
    stream = chunks(None, "llamapi")
    request = ChatRequest(id="r", model="m", prompt="x", n=2)
    legacy = CompletionAnswer(head=HEAD, requests=[request], echo=False)
    legacy_stream = CompletionChunks(head=HEAD, requests=[request], echo=False, include_usage=None)
    for event in (Accepted(prompt_tokens=1), TextDelta("half"), Finished(reason="stop", choice=0)):
        answer.feed(event)
        legacy.feed(0, event)
        legacy_stream.feed(0, event)
    for encode in (answer.encode, stream.end, legacy.encode, legacy_stream.end):
        with pytest.raises(EngineFailedError):
            encode()


def test_usage_without_counts_is_what_was_accepted() -> None:
    answer = ChatAnswer(head=HEAD, settings=Settings(), choices=1, logprobs=False)
    answer.feed(Accepted(prompt_tokens=5))
    answer.feed(Finished(reason="stop"))
    assert answer.encode()["usage"] == {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 5}


@pytest.mark.parametrize(
    ("reason", "has_calls", "encoded"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("tool_calls", True, "tool_calls"),
        ("length", True, "length"),
        ("length", False, "length"),
        ("", False, "stop"),
        ("reason of next year", False, "stop"),
    ],
)
def test_finish_reasons_are_what_typed_clients_take(reason: str, has_calls: bool, encoded: str) -> None:
    assert encode_finish_reason(reason, has_calls=has_calls) == encoded


@pytest.mark.parametrize(
    ("value", "shown"),
    [(-0.5, -0.5), (float("-inf"), -9999.0), (float("nan"), -9999.0), (-1e5, -9999.0), (1e-9, 0.0)],
)
def test_log_probabilities_fit_json(value: float, shown: float) -> None:
    assert finite(value) == shown


def test_the_end_of_a_stream() -> None:
    assert DONE == b"data: [DONE]\n\n"


def test_the_error_event_of_the_page() -> None:
    event, data, *rest = encode_error_event(EngineCrashedError("m", signal="SIGSEGV")).decode().split("\n")
    assert event == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "server_error"
    assert rest == ["", ""]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_vectors_keep_every_bit_in_both_encodings(numbers: list[float]) -> None:
    raw = struct.pack(f"<{len(numbers)}f", *numbers)
    result = EmbedResult(vectors=bytes(len(raw)) + raw, dimensions=len(numbers), prompt_tokens=(1, 1))
    as_text = json.loads(encode_embedding(result, 1, "base64"))
    assert base64.b64decode(as_text["embedding"]) == raw
    as_numbers = json.loads(encode_embedding(result, 1, "float"))
    assert struct.pack(f"<{len(numbers)}f", *as_numbers["embedding"]) == raw
    assert as_numbers["index"] == as_text["index"] == 1


STATUS = ModelStatus(
    id="m", name="m", path="/m", platform="p", kind="chat", tasks=frozenset({"chat"}), state="ready", instance_count=1,
    requested_instance_count=1, request_queue_size=1, running=0, queued=0, loaded_at=1.0, pinned=True, size_bytes=10,
    capabilities=Capabilities(tasks=frozenset({Task.CHAT})), info=ModelInfo(details={"file": "q4"}),
    defaults=GenerationDefaults(),
)  # fmt: skip


def test_the_fingerprint_changes_with_what_decides_the_text() -> None:
    marks = {
        fingerprint(status)
        for status in (
            STATUS,
            dataclasses.replace(STATUS, platform="q"),
            dataclasses.replace(STATUS, path="/n"),
            dataclasses.replace(STATUS, size_bytes=11),
            dataclasses.replace(STATUS, info=ModelInfo(details={"file": "q8"})),
        )
    }
    assert len(marks) == 5
    same = dataclasses.replace(STATUS, id="other", loaded_at=2.0, running=3)
    assert fingerprint(same) == fingerprint(STATUS)
    assert fingerprint(STATUS).startswith("fp_")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"profile": "azure"}, "profile"),
        ({"profil": "openai"}, "profil"),
        ({"ping_seconds": 0}, "ping_seconds"),
        ({"reasoning_field": "both"}, "reasoning_field"),
        ({"max_image_pixels": 0}, "max_image_pixels"),
    ],
)
def test_wrong_settings_stop_the_start(table: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=rf"\[dialects.openai\] {says}"):
        read_settings(table)
