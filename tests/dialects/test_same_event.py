"""Several dialects over one neutral event: each writes it in its own API's form, and none by way of another."""

from __future__ import annotations

import json
from typing import Any

from cardcage_dialect_ollama.encode import Answer, Stopwatch
from cardcage_dialect_openai.encode import AnswerHead, ChatAnswer
from cardcage_dialect_openai.settings import Settings
from cardcage_sdk.events import ChatEvent, Finished, ReasoningDelta, ToolCallDelta

EVENTS: tuple[ChatEvent, ...] = (
    ReasoningDelta("Hm."),
    ToolCallDelta(index=0, id="call_x", name="weather", arguments='{"city": '),
    ToolCallDelta(index=0, arguments='"Paris"}'),
    Finished(reason="tool_calls"),
)


def test_arguments_of_calls_are_an_object_natively_and_text_for_openai() -> None:
    ollama = Answer("chat", model="m", clock=lambda: 0.0, watch=Stopwatch(arrived=0.0), seed="s")
    openai = ChatAnswer(
        head=AnswerHead(id="i", created=0, model="m", fingerprint="f"), settings=Settings(), choices=1, logprobs=False
    )
    for event in EVENTS:
        ollama.feed(event)
        openai.feed(event)
    native: dict[str, Any] = ollama.whole()["message"]
    other: dict[str, Any] = openai.encode()["choices"][0]["message"]
    assert native["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}
    assert other["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris"}'
    assert (
        json.loads(other["tool_calls"][0]["function"]["arguments"]) == native["tool_calls"][0]["function"]["arguments"]
    )
    assert (native["thinking"], other["reasoning_content"]) == ("Hm.", "Hm.")
    assert ollama.whole()["done_reason"] == "stop"
    assert openai.encode()["choices"][0]["finish_reason"] == "tool_calls"
