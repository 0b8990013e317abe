"""Telling a client's text from the template's in a rendered prompt.

A client that writes `<|im_end|>` means ten characters, not the end of its turn. Before rendering, text of the client is replaced
by random words that no client can guess and no template looks for; the rendered prompt is cut at these words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cardcage_sdk.chat import TextPart

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cardcage_sdk.chat import ChatRequest, Message, ToolSpec

__all__ = ["Guard", "Segment"]

# What control tokens look like in the vocabularies of well-known models, for engines that cannot list theirs.
_USUAL = re.compile(
    r"<\|[^|<>\s]{1,64}\|>|<｜[^｜<>\s]{1,64}｜>|</?s>|<(?:bos|eos|pad|unk|start_of_turn|end_of_turn)>|\[/?INST\]"
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a prompt; special tokens are meant as such only where `is_control`."""

    text: str
    is_control: bool


class Guard:
    """Replaces text by words in one request, and finds it again in its rendered prompt.

    The words are letters and digits only, so that JSON, trimming, splitting and changes of quoting leave them whole.
    """

    def __init__(self, control: Collection[str], *, nonce: str) -> None:
        self._nonce = nonce
        self._texts: dict[str, str] = {}
        spellings = sorted((re.escape(text) for text in control if len(text) > 1), key=len, reverse=True)
        self._control = re.compile("|".join([*spellings, _USUAL.pattern]))

    def hide_contents(self, request: ChatRequest) -> ChatRequest:
        """Replace every text of a message, but for white space around it, which templates trim."""
        return self._replace(request, self._hide_all)

    def hide_spellings(self, request: ChatRequest) -> ChatRequest:
        """Replace only what is spelled like control."""
        return self._replace(request, self._hide_control)

    def split(self, prompt: str) -> tuple[Segment, ...]:
        """Cut a rendered prompt at the words, and put the client's text back."""
        if not self._texts:
            return (Segment(prompt, is_control=True),) if prompt else ()
        pieces = re.split(f"({self._nonce}x[0-9]+z)", prompt)
        return tuple(
            Segment(self._texts.get(piece, piece), is_control=piece not in self._texts) for piece in pieces if piece
        )

    def _hide_all(self, text: str) -> str:
        core = text.strip()
        if not core:
            return text
        start = text.index(core)
        return text[:start] + self._word(core) + text[start + len(core) :]

    def _hide_control(self, text: str) -> str:
        return self._control.sub(lambda match: self._word(match[0]), text)

    def _word(self, text: str) -> str:
        word = f"{self._nonce}x{len(self._texts)}z"
        self._texts[word] = text
        return word

    def _replace(self, request: ChatRequest, hide: Callable[[str], str]) -> ChatRequest:
        return replace(
            request,
            messages=tuple(self._message(message, hide) for message in request.messages),
            tools=tuple(self._tool(tool) for tool in request.tools),
        )

    def _message(self, message: Message, hide: Callable[[str], str]) -> Message:
        # Names and arguments of calls are encoded as JSON on the way, so only spellings can be found again in them.
        return replace(
            message,
            content=tuple(
                TextPart(hide(part.text)) if isinstance(part, TextPart) else part for part in message.content
            ),
            reasoning=None if message.reasoning is None else hide(message.reasoning),
            name=None if message.name is None else self._hide_control(message.name),
            tool_calls=tuple(
                replace(call, name=self._hide_control(call.name), arguments=self._hide_control(call.arguments))
                for call in message.tool_calls
            ),
        )

    def _tool(self, tool: ToolSpec) -> ToolSpec:
        return replace(
            tool,
            description=None if tool.description is None else self._hide_control(tool.description),
            parameters=None if tool.parameters is None else self._walk(tool.parameters),
        )

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._hide_control(value)
        if isinstance(value, dict):
            return {self._walk(key): self._walk(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._walk(item) for item in value]
        return value
