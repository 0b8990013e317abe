"""How long silence is legitimate."""

from __future__ import annotations

import pytest

from cardcage.workers.settings import SupervisionSettings
from cardcage.workers.watchdog import CallProgress, expected_tokens, progress_deadline
from cardcage_sdk.chat import ChatRequest, Message, TextPart
from cardcage_sdk.embeddings import EmbedRequest, RerankRequest
from cardcage_sdk.events import Accepted, Progress, TextDelta

SETTINGS = SupervisionSettings(hang_floor_seconds=10.0, prefill_factor=3.0, unmeasured_prefill_tokens_per_second=5.0)


@pytest.mark.parametrize(
    ("remaining", "rate", "seconds"),
    [(0, 100.0, 10.0), (100, 100.0, 10.0), (1000, 100.0, 30.0), (1000, None, 600.0), (10, None, 10.0)],
)
def test_a_long_prefill_is_legitimate(remaining, rate, seconds):
    assert progress_deadline(SETTINGS, remaining_tokens=remaining, prefill_tokens_per_second=rate) == seconds


def test_progress_of_a_prefill_then_of_an_answer():
    call = CallProgress(prompt_tokens=100, last_at=0.0)
    assert call.remaining_tokens == 100
    call.saw(Progress(prefill_tokens=60), now=1.0)
    assert (call.remaining_tokens, call.last_at) == (40, 1.0)
    call.saw(Progress(prefill_tokens=30), now=2.0)
    assert call.remaining_tokens == 40
    call.saw(Accepted(prompt_tokens=100), now=3.0)
    assert call.remaining_tokens == 40
    call.saw(TextDelta("a"), now=4.0)
    assert call.remaining_tokens == 0


def test_tokens_are_counted_where_they_can_be_and_guessed_high_where_not():
    chat = ChatRequest(id="r", model="m", messages=(Message(role="user", content=(TextPart("x" * 100),)),))
    assert expected_tokens(chat, Accepted(prompt_tokens=7)) == 7
    assert expected_tokens(chat, Accepted()) == 50
    assert expected_tokens(ChatRequest(id="r", model="m", prompt=(1, 2, 3)), None) == 3
    assert expected_tokens(EmbedRequest(id="r", model="m", inputs=("x" * 10, (1, 2))), None) == 7
    assert expected_tokens(RerankRequest(id="r", model="m", query="ab", documents=("cd", "ef")), None) == 4
