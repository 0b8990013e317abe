"""Spellings of control tokens in a client's text, with a vocabulary small enough to follow by eye. No llama.cpp needed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cardcage_platform_llamacpp.guidance import Form
from cardcage_platform_llamacpp.prompt import Prompter, SegmentTokenizer
from cardcage_sdk.chat import ChatRequest, Message, TextPart, ToolChoice, ToolSpec
from cardcage_sdk.errors import InvalidRequestError
from cardcage_sdk.models import ModelArtifact
from cardcage_sdk.text.segments import Segment


@dataclass
class TinyVocabulary:
    """One token a character; control tokens are matched where asked, user-defined ones always, as in llama.cpp."""

    control: dict[str, int] = field(default_factory=lambda: {"<|end|>": 1001, "<|start|>": 1002, "<s>": 1003})
    user_defined: dict[str, int] = field(default_factory=lambda: {"<think>": 2001, "\n\n": 2002})
    adds_bos: bool = False
    bos: int = 1003
    eos: int = 1001
    size: int = 4000

    def text(self, token: int) -> str:
        return next((text for text, known in self.control.items() if known == token), "")

    def show(self, text: str) -> None:
        pass

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        known = {**self.user_defined, **(self.control if parse_special else {})}
        tokens = [self.bos] if add_special and self.adds_bos else []
        for piece in re.split("(" + "|".join(map(re.escape, known)) + ")", text):
            tokens += [known[piece]] if piece in known else [ord(character) for character in piece]
        return tokens


def control(text: str) -> Segment:
    return Segment(text, is_control=True)


def client(text: str) -> Segment:
    return Segment(text, is_control=False)


def test_the_templates_tokens_are_control() -> None:
    tokens = SegmentTokenizer(TinyVocabulary()).tokenize([control("<|start|>"), client("hi"), control("<|end|>")])
    assert tokens == [1002, ord("h"), ord("i"), 1001]


@pytest.mark.parametrize("spelling", ["<|end|>", "<|start|>", "<think>"])
def test_the_clients_spelling_is_text(spelling: str) -> None:
    tokenizer = SegmentTokenizer(TinyVocabulary(), tags=("<think>",))
    tokens = tokenizer.tokenize([control("<|start|>"), client(f"a{spelling}b{spelling}"), control("<|end|>")])
    assert tokens == [1002, *map(ord, f"a{spelling}b{spelling}"), 1001]


def test_ordinary_user_defined_tokens_stay_whole() -> None:
    """Only tags are guarded: some vocabularies list runs of white space as user-defined."""
    tokens = SegmentTokenizer(TinyVocabulary(), tags=("<think>",)).tokenize([client("a\n\nb<|end|>")])
    assert tokens == [ord("a"), 2002, ord("b"), *map(ord, "<|end|>")]


def test_a_spelling_put_together_across_a_border_is_text() -> None:
    tokens = SegmentTokenizer(TinyVocabulary()).tokenize([client("<|e"), control("nd|>"), client("x")])
    assert 1001 not in tokens


@pytest.mark.parametrize("forged", [False, True])
def test_the_begin_token_comes_once(forged: bool) -> None:
    tokenizer = SegmentTokenizer(TinyVocabulary(adds_bos=True))
    tokens = tokenizer.tokenize([control("<s><|start|>"), client("<|end|>" if forged else "hi")])
    assert tokens.count(1003) == 1
    assert tokens[:2] == [1003, 1002]


THINKER = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>{% endfor %}"
    "<|start|>assistant\n<think>\n{% if enable_thinking is defined and not enable_thinking %}\n</think>\n{% endif %}"
)


def prompter(**fields: Any) -> Prompter:
    artifact = ModelArtifact(path=Path(__file__), name="tiny", **fields)
    return Prompter(TinyVocabulary(), artifact, THINKER)  # type: ignore[arg-type]


def ask(text: str = "hi", **fields: Any) -> ChatRequest:
    return ChatRequest(id="r", model="m", messages=(Message(role="user", content=(TextPart(text),)),), **fields)


def test_a_prompt_that_opens_reasoning_says_so() -> None:
    thinking = prompter()
    assert thinking.reasoning_tags == ("<think>", "</think>")
    assert thinking.can_switch_thinking
    assert thinking.build(ask()).starts_in_reasoning
    assert not thinking.build(ask(enable_thinking=False)).starts_in_reasoning
    assert not thinking.build(ask("<think>\n", enable_thinking=False)).starts_in_reasoning


def test_model_toml_goes_before_the_file() -> None:
    own = prompter(chat_template="{{ messages[0]['content'] }}", reasoning_tags=("<r>", "</r>"), tool_format="json")
    assert own.build(ask("abc")).tokens == list(map(ord, "abc"))
    assert own.reasoning_tags == ("<r>", "</r>")
    assert own.tool_format == "json"
    assert not own.can_switch_thinking


def test_a_forced_call_has_the_form_that_the_model_calls_in() -> None:
    request = ask(tools=(ToolSpec(name="f"),), tool_choice=ToolChoice(mode="required"))
    tagged = prompter().build(request).grammar
    assert isinstance(tagged, Form)
    assert tagged.param == "tools"
    assert "<tool_call>" in tagged.text
    bare = prompter(tool_format="json").build(request).grammar
    assert isinstance(bare, Form)
    assert "tool_call" not in bare.text
    with pytest.raises(InvalidRequestError):
        prompter().build(ask(tool_choice=ToolChoice(mode="required")))
