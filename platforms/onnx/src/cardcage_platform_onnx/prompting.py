"""From a chat request to the tokens of its prompt. Worker only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cardcage_platform_onnx.model_files import read_json
from cardcage_sdk.errors import UnsupportedError
from cardcage_sdk.text.template import CHATML, ChatTemplate, find_reasoning_tags, opens_reasoning

if TYPE_CHECKING:
    from pathlib import Path

    from cardcage_platform_onnx.vocabulary import Vocabulary
    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.models import ModelArtifact

__all__ = ["Prompter", "Rendered"]

TEMPLATE_FILE = "chat_template.jinja"
TOKENIZER_CONFIG = "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class Rendered:
    """The prompt's tokens, and whether the answer begins inside reasoning."""

    tokens: list[int]
    starts_in_reasoning: bool = False


class Prompter:
    """Renders and tokenises for one model. Used by one thread.

    Attributes:
        has_template: The model, or its `model.toml`, brings a template.
        tool_format: Form of tool calls in the model's text.
        reasoning_tags: Tags around reasoning; None for a model that does not reason.
    """

    def __init__(self, vocabulary: Vocabulary, directory: Path, artifact: ModelArtifact) -> None:
        """Compile the template: that of `model.toml` before that of the directory.

        Raises:
            InvalidModelError: The template does not compile, or a JSON file is broken.
        """
        self._vocabulary = vocabulary
        config = read_json(directory / TOKENIZER_CONFIG)
        source = artifact.chat_template or _own_template(directory, config)
        self.has_template = source is not None
        self._template = ChatTemplate(
            source or CHATML, bos_token=_token(config, "bos_token"), eos_token=_token(config, "eos_token")
        )
        self.tool_format = artifact.tool_format or "hermes"
        self.reasoning_tags = artifact.reasoning_tags or find_reasoning_tags(source or "")
        spellings = sorted((re.escape(text) for text in vocabulary.control if len(text) > 1), key=len, reverse=True)
        self._control = re.compile("|".join(spellings)) if spellings else None

    @property
    def can_switch_thinking(self) -> bool:
        """Thinking can be switched on and off."""
        return self._template.can_switch_thinking

    def build(self, request: ChatRequest) -> Rendered:
        """Tokens of a request's prompt.

        Raises:
            InvalidRequestError: The template refuses the conversation, or token ids are wrong.
            UnsupportedError: A raw prompt with a suffix.
        """
        if request.suffix is not None:
            raise UnsupportedError("suffix")
        if isinstance(request.prompt, tuple):
            return Rendered(self._vocabulary.check(request.prompt))
        if request.prompt is not None:
            # A raw prompt is the client's own template, so control tokens in it are control.
            return Rendered(self._vocabulary.check(self._vocabulary.encode(request.prompt, is_start=True)))
        segments = self._template.segments(request, control=self._vocabulary.control)
        text = "".join(segment.text for segment in segments)
        starts_in_reasoning = opens_reasoning(text, self.reasoning_tags)
        if not any(self._spells_control(segment.text) for segment in segments if not segment.is_control):
            # As a whole, so that words at the seams become the tokens that the model was trained with.
            return Rendered(self._vocabulary.encode(text, is_start=False), starts_in_reasoning)
        tokens: list[int] = []
        for segment in segments:
            tokens += self._vocabulary.encode(segment.text, is_start=False, is_client_text=not segment.is_control)
        return Rendered(tokens, starts_in_reasoning)

    def _spells_control(self, text: str) -> bool:
        return self._control is not None and self._control.search(text) is not None


def _own_template(directory: Path, config: dict[str, Any]) -> str | None:
    file = directory / TEMPLATE_FILE
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):  # several by name; one of them is the default
        template = next((item.get("template") for item in template if item.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _token(config: dict[str, Any], name: str) -> str:
    value = config.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else ""
