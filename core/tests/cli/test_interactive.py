"""The commands of a conversation, and what is sent."""

import io

import pytest

from cardcage.cli import interactive
from cardcage.cli.conversation import Answer, Conversation
from cardcage.cli.interactive import command


@pytest.fixture
def conversation():
    return Conversation(
        model="m", messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    )


def say(line, conversation, capsys):
    assert command(line, conversation, lambda: {"id": "m", "platform": "p"})
    return capsys.readouterr().err.strip()


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye", " /exit "])
def test_leaving(conversation, line):
    assert not command(line, conversation, dict)


def test_setting_and_unsetting_a_parameter(conversation, capsys):
    assert say("/set temperature 0.5", conversation, capsys) == "temperature = 0.5"
    assert say("/set max_tokens 7", conversation, capsys) == "max_tokens = 7"
    assert conversation.body()["temperature"] == 0.5
    assert conversation.body()["max_tokens"] == 7
    assert say("/show params", conversation, capsys) == "temperature = 0.5\nmax_tokens = 7"
    say("/set temperature", conversation, capsys)
    assert "temperature" not in conversation.body()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set max_tokens 1.5", "whole number"),
        ("/set top_p much", "a number"),
        ("/set colour blue", "cannot be set; known are: temperature"),
        ("/set", "cannot be set"),
        ("/show", "/show info"),
        ("/dance", "unknown command '/dance'"),
        ("/help", "/clear"),
        ("/show info", "platform: p"),
        ("/show params", "nothing is set"),
        ("/show system", "no system prompt"),
    ],
)
def test_answers_to_commands(conversation, capsys, line, words):
    assert words in say(line, conversation, capsys)


def test_the_system_prompt_comes_first_and_survives_clear(conversation, capsys):
    say("/system Be brief.", conversation, capsys)
    say("/clear", conversation, capsys)
    assert conversation.body()["messages"] == [{"role": "system", "content": "Be brief."}]
    assert say("/show system", conversation, capsys) == "Be brief."
    say("/system", conversation, capsys)
    assert conversation.body()["messages"] == []


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("one line\n", "one line"),
        ('"""\nfirst\nsecond\n"""\n', "first\nsecond"),
        ('"""first\nsecond"""\n', "first\nsecond"),
        ('"""all on one"""\n', "all on one"),
        ('say """ in the middle\n', 'say """ in the middle'),
    ],
)
def test_lines_are_joined_between_quotes(monkeypatch, capsys, typed, text):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert interactive._read() == text


def test_the_rate_is_that_of_the_tokens_after_the_first():
    answer = Answer(prompt_tokens=3, completion_tokens=11, first_token_seconds=0.5, last_token_seconds=2.5)
    assert answer.stats() == {
        "prompt_tokens": 3,
        "completion_tokens": 11,
        "first_token_ms": 500.0,
        "tokens_per_second": 5.0,
    }


@pytest.mark.parametrize(
    "answer", [Answer(), Answer(completion_tokens=1, first_token_seconds=1.0, last_token_seconds=1.0)]
)
def test_there_is_no_rate_without_two_tokens(answer):
    assert answer.stats()["tokens_per_second"] is None
