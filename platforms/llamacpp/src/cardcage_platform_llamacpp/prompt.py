"""From a request to the tokens of its prompt, and to the grammar that binds its answer. Worker process only.

A client's text must not become control: a user who writes `<|im_end|>` means those ten characters. The sdk's template says which
stretches of the rendered prompt the client wrote. Where none of them spells a control token, which is nearly always, the prompt
is tokenized as a whole, exactly as the model was trained; otherwise stretch by stretch, the client's as plain text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardcage_platform_llamacpp.guidance import form_of
from cardcage_sdk.errors import InvalidRequestError
from cardcage_sdk.text.template import CHATML, ChatTemplate, find_reasoning_tags, opens_reasoning
from cardcage_sdk.text.toolcalls import CALL_CLOSE, CALL_OPEN

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cardcage_platform_llamacpp.binding import Vocabulary
    from cardcage_platform_llamacpp.guidance import Form
    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.models import ModelArtifact
    from cardcage_sdk.text.segments import Segment

__all__ = ["Prompt", "Prompter", "SegmentTokenizer"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is to be computed, and what the answer must be like.

    Attributes:
        grammar: What binds the answer: a `Form`, or a client's GBNF; None for free text.
        starts_in_reasoning: The prompt ends inside an open reasoning tag; the grammar takes hold when that is closed.
    """

    tokens: list[int]
    grammar: Form | str | None = None
    starts_in_reasoning: bool = False


class SegmentTokenizer:
    """Tokens of a prompt in which the template's control tokens are control and the client's spellings are text."""

    def __init__(self, vocabulary: Vocabulary, tags: Collection[str] = ()) -> None:
        """Learn the spellings.

        Args:
            vocabulary: All its control tokens are guarded.
            tags: Further spellings, as those of reasoning and tool calls, which vocabularies list as ordinary tokens.
        """
        self._vocabulary = vocabulary
        self.control = frozenset(text for text in vocabulary.control if len(text) > 1)
        guarded = sorted(
            self.control | {tag for tag in tags if tag in vocabulary.user_defined}, key=len, reverse=True
        )  # longest first: one spelling may begin with another
        self._spelling = re.compile("|".join(map(re.escape, guarded))) if guarded else None

    def tokenize(self, segments: Sequence[Segment]) -> list[int]:
        """Tokens of all segments, with the begin token that the model is configured for."""
        vocabulary = self._vocabulary
        text = "".join(segment.text for segment in segments)
        if self._count(text) == sum(self._count(segment.text) for segment in segments if segment.is_control):
            tokens = vocabulary.tokenize(text, add_special=True, parse_special=True)
        else:
            tokens = vocabulary.tokenize("", add_special=True, parse_special=True)
            for segment in segments:
                if segment.is_control:
                    tokens += vocabulary.tokenize(segment.text, add_special=False, parse_special=True)
                else:
                    tokens += self._plain(segment.text)
        # Templates write the begin token themselves, and the model may be configured to get it from the tokenizer too.
        if vocabulary.adds_bos and len(tokens) > 1 and tokens[0] == tokens[1] == vocabulary.bos:
            del tokens[0]
        return tokens

    def _count(self, text: str) -> int:
        return len(self._spelling.findall(text)) if self._spelling else 0

    def _plain(self, text: str) -> list[int]:
        """Tokens of a client's text. A spelling is cut in two, for tokens that are no control match in plain text too."""
        tokens: list[int] = []
        at = 0
        for match in self._spelling.finditer(text) if self._spelling else ():
            tokens += self._vocabulary.tokenize(text[at : match.start() + 1], add_special=False, parse_special=False)
            at = match.start() + 1
        return tokens + self._vocabulary.tokenize(text[at:], add_special=False, parse_special=False)


class Prompter:
    """Turns requests into prompts for one model.

    Attributes:
        has_template: The model or its `model.toml` brings one.
        tool_format: How the model writes its calls.
        reasoning_tags: Tags around what it thinks, or None.
    """

    def __init__(self, vocabulary: Vocabulary, artifact: ModelArtifact, own_template: str | None) -> None:
        """Compile the template: that of `model.toml` before that of the file.

        Raises:
            InvalidModelError: It does not compile.
        """
        self._vocabulary = vocabulary
        source = artifact.chat_template or own_template
        self.has_template = source is not None
        self._template = ChatTemplate(
            source or CHATML,
            bos_token=vocabulary.text(vocabulary.bos),
            eos_token=vocabulary.text(vocabulary.eos),
        )
        self.reasoning_tags = artifact.reasoning_tags or find_reasoning_tags(source or "")
        # A template that tells its model of tools in another form than tags leaves the bare object as the likely one.
        speaks_hermes = not self._template.facts.handles_tools or CALL_OPEN in (source or "")
        self.tool_format = artifact.tool_format or ("hermes" if speaks_hermes else "json")
        tags = (*(self.reasoning_tags or ()), CALL_OPEN, CALL_CLOSE)
        for tag in tags:
            vocabulary.show(tag)
        self._tokenizer = SegmentTokenizer(vocabulary, tags)

    @property
    def can_switch_thinking(self) -> bool:
        """The template reads `enable_thinking`."""
        return self._template.can_switch_thinking

    def build(self, request: ChatRequest) -> Prompt:
        """Render, tokenize, and say what binds the answer.

        Raises:
            InvalidRequestError: An empty prompt, an unknown token, or a conversation that the template refuses.
            InvalidSchemaError: A schema that does not make a grammar.
        """
        grammar = self._grammar(request)
        if request.prompt is not None:
            return Prompt(self._raw(request.prompt), grammar)
        segments = self._template.segments(request, control=self._tokenizer.control)
        tokens = self._tokenizer.tokenize(segments)
        if not tokens:
            raise InvalidRequestError("The conversation is empty", param="messages")
        ends_open = (
            bool(segments) and segments[-1].is_control and opens_reasoning(segments[-1].text, self.reasoning_tags)
        )
        return Prompt(tokens, grammar, starts_in_reasoning=ends_open)

    def _raw(self, prompt: str | tuple[int, ...]) -> list[int]:
        """A prompt whose control tokens are the caller's own business."""
        if isinstance(prompt, str):
            tokens = self._vocabulary.tokenize(prompt, add_special=True, parse_special=True)
        else:
            tokens = list(prompt)
            if not all(0 <= token < self._vocabulary.size for token in tokens):
                raise InvalidRequestError(
                    f"The prompt names a token outside the model's {self._vocabulary.size}", param="prompt"
                )
        if not tokens and self._vocabulary.bos >= 0:
            # Nothing to go on from but the beginning of any text.
            return [self._vocabulary.bos]
        if not tokens:
            raise InvalidRequestError("The prompt is empty", param="prompt")
        return tokens

    def _grammar(self, request: ChatRequest) -> Form | str | None:
        form = form_of(request, tool_format=self.tool_format)
        if form is None and request.response_format.kind == "grammar":
            return request.response_format.grammar or ""
        return form
