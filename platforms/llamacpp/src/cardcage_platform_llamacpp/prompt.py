"""From a request to the tokens of its prompt. Worker process only.

A client's text must not become control: a user who writes `<|im_end|>` means those ten characters. The template's own control
tokens and the client's text end up in one string, though, and templates may do anything with the text on its way (trim it,
split it, put it into JSON). So each spelling of a control token in the client's text is replaced by a random word before
rendering; the rendered string is cut at those words, and what they stand for is tokenized in two halves, so that it cannot
become one token. A request without such spellings, which is nearly every one, is tokenized as a whole.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cardcage_sdk.chat import TextPart

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardcage_platform_llamacpp.binding import Vocabulary
    from cardcage_sdk.chat import ChatRequest, JsonValue, Message

__all__ = ["Guard", "GuardedText"]


@dataclass(frozen=True, slots=True)
class GuardedText:
    """A rendered prompt with the words that stand for spellings of control tokens."""

    text: str
    words: dict[str, str]


class Guard:
    """Keeps the client's text from becoming control tokens of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary, also: Iterable[str] = ()) -> None:
        """Learn the spellings.

        Args:
            vocabulary: All its control tokens are guarded.
            also: Further tags, as those of reasoning and tool calls, which vocabularies list as ordinary tokens.
        """
        self._vocabulary = vocabulary
        spellings = {text for text in vocabulary.control if len(text) > 1}
        self._everywhere = _pattern(spellings | {tag for tag in also if tag in vocabulary.user_defined})
        # Templates look for reasoning and call tags in what the assistant said before; only control is guarded there.
        self._assistant = _pattern(spellings)

    def request(self, request: ChatRequest) -> tuple[ChatRequest, dict[str, str]]:
        """The request with words instead of spellings, and what the words stand for."""
        words: dict[str, str] = {}
        nonce = f"Cc{secrets.token_hex(8)}"

        def guard(text: str, pattern: re.Pattern[str] | None) -> str:
            if pattern is None:
                return text

            def word(match: re.Match[str]) -> str:
                name = f"{nonce}x{len(words)}z"
                words[name] = match[0]
                return name

            return pattern.sub(word, text)

        def walk(value: JsonValue) -> JsonValue:
            if isinstance(value, str):
                return guard(value, self._everywhere)
            if isinstance(value, dict):
                return {walk(key): walk(item) for key, item in value.items()}
            if isinstance(value, (list, tuple)):
                return [walk(item) for item in value]
            return value

        def message(old: Message) -> Message:
            pattern = self._assistant if old.role == "assistant" else self._everywhere
            return replace(
                old,
                content=tuple(
                    TextPart(guard(part.text, pattern)) if isinstance(part, TextPart) else part for part in old.content
                ),
                reasoning=None if old.reasoning is None else guard(old.reasoning, self._everywhere),
                name=None if old.name is None else guard(old.name, self._everywhere),
                tool_calls=tuple(
                    replace(call, name=guard(call.name, self._everywhere), arguments=guard(call.arguments, pattern))
                    for call in old.tool_calls
                ),
            )

        guarded = replace(
            request,
            messages=tuple(message(old) for old in request.messages),
            tools=tuple(
                replace(
                    tool,
                    description=None if tool.description is None else guard(tool.description, self._everywhere),
                    parameters=None if tool.parameters is None else walk(tool.parameters),
                )
                for tool in request.tools
            ),
        )
        return (guarded, words) if words else (request, words)

    def tokenize(self, prompt: GuardedText) -> list[int]:
        """Tokens of a rendered prompt; the template's control tokens are control, the client's spellings are text."""
        vocabulary = self._vocabulary
        if not prompt.words:
            tokens = vocabulary.tokenize(prompt.text, add_special=True, parse_special=True)
        else:
            tokens = []
            pieces = re.split(f"({'|'.join(map(re.escape, prompt.words))})", prompt.text)
            for index, piece in enumerate(pieces):
                spelling = prompt.words.get(piece)
                if spelling is not None:
                    for half in (spelling[:1], spelling[1:]):
                        tokens += vocabulary.tokenize(half, add_special=False, parse_special=False)
                elif piece or not index:
                    tokens += vocabulary.tokenize(piece, add_special=not index, parse_special=True)
        # Templates write the begin token themselves, and the model may be configured to get it from the tokenizer too.
        if vocabulary.adds_bos and len(tokens) > 1 and tokens[0] == tokens[1] == vocabulary.bos:
            del tokens[0]
        return tokens


def _pattern(spellings: set[str]) -> re.Pattern[str] | None:
    if not spellings:
        return None
    # Longest first: one spelling may begin with another.
    return re.compile("|".join(map(re.escape, sorted(spellings, key=len, reverse=True))))


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is to be computed and how the answer is bound."""

    tokens: list[int]
    grammar: str | None = None
    starts_in_reasoning: bool = False


class Prompter:
    """Turns requests into prompts for one model."""

    def __init__(self, vocabulary: Vocabulary, artifact: ModelArtifact, own_template: str | None) -> None:
        """Compile the template: that of `model.toml` before that of the file."""
        self._vocabulary = vocabulary
        source = artifact.chat_template or own_template
        self.has_template = source is not None
        self.tool_format = "hermes"
        self.reasoning_tags = None
        self.can_switch_thinking = False
        self._guard = Guard(vocabulary)

    def build(self, request: ChatRequest) -> Prompt:
        if isinstance(request.prompt, tuple):
            return Prompt(list(request.prompt), self._grammar(request))
        if request.prompt is not None:
            return Prompt(
                self._vocabulary.tokenize(request.prompt, add_special=True, parse_special=True), self._grammar(request)
            )
        request, words = self._guard.request(request)
        text = (
            "".join(f"<|im_start|>{m.role}\n{m.text}<|im_end|>\n" for m in request.messages) + "<|im_start|>assistant\n"
        )
        return Prompt(self._guard.tokenize(GuardedText(text, words)), self._grammar(request))

    def _grammar(self, request):
        from cardcage_platform_llamacpp.grammars import JSON_OBJECT, schema_grammar, tool_grammar

        f = request.response_format
        if request.tool_choice.mode in ("required", "named"):
            tools = [t for t in request.tools if request.tool_choice.name in (None, t.name)]
            return tool_grammar(
                tools, opening="<tool_call>\n", closing="\n</tool_call>", parallel=request.parallel_tool_calls
            )
        if f.kind == "json_object":
            return JSON_OBJECT
        if f.kind == "json_schema":
            return schema_grammar(f.schema)
        if f.kind == "grammar":
            return f.grammar
        return None
