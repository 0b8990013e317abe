"""Tool calls in a model's text.

Two forms are known: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` anywhere in the answer, as Hermes and Qwen
models write it, and the bare JSON object as the whole answer, as models write it that lost the tags.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from cardcage_sdk.events import ToolCallDelta
from cardcage_sdk.text.jsonscan import ObjectScanner
from cardcage_sdk.text.pieces import EMPTY, Piece, begun_length

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["CALL_CLOSE", "CALL_OPEN", "TOOL_FORMATS", "ToolCallParser", "new_call_id"]

CALL_OPEN: Final = "<tool_call>"
CALL_CLOSE: Final = "</tool_call>"

TOOL_FORMATS: Final = frozenset({"hermes", "json"})
"""Names for `ModelInfo.tool_format`. `hermes`: tags, or bare JSON as the whole answer; `json`: bare JSON only."""

_STRING = r'"((?:[^"\\]|\\.)*)"'
_HEAD = re.compile(
    r"\s*\{\s*\"name\"\s*:\s*" + _STRING + r"\s*,\s*\"(?:arguments|parameters)\"\s*:\s*(?=\{)", re.DOTALL
)

_FIRST_KEY = re.compile(r"\s*\{\s*" + _STRING, re.DOTALL)
_CALL_KEYS = frozenset({"name", "arguments", "parameters", "function", "type", "id"})

Part: TypeAlias = Piece | ToolCallDelta
_State: TypeAlias = Literal["start", "text", "head", "arguments", "raw", "tail", "close", "after", "done"]


def new_call_id() -> str:
    """An id for a tool call, with 96 random bits."""
    return f"call_{os.urandom(12).hex()}"


class ToolCallParser:
    """Splits text into text and tool calls, as it arrives, with the same outcome however it is cut into pieces.

    A call begins when its head is complete: the name, and the opening brace of the arguments. From there on the arguments
    are passed on as the model produces them, valid or not, up to the brace that closes them. What looked like a call but
    has no such head, or is no JSON, stays text, tags and all. A call whose members come in another order is passed on when
    it is complete. White space next to a call is dropped. A bare object counts as a call only where it names a known tool.

    Attributes:
        count: Calls begun.
        is_done: With `parallel` off, the one call is complete; everything after it is dropped.
    """

    def __init__(
        self,
        tool_names: Collection[str],
        *,
        tool_format: str = "hermes",
        bare: bool = True,
        parallel: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        if tool_format not in TOOL_FORMATS:
            raise ValueError(f"unknown tool format '{tool_format}'; known are {', '.join(sorted(TOOL_FORMATS))}")
        self._names = frozenset(tool_names)
        self._tags = tool_format == "hermes"
        self._bare = bare or not self._tags
        self._parallel = parallel
        self._new_id = new_id
        self._state: _State = "start"
        self._held = EMPTY
        self._opening = EMPTY  # white space and tag before the call that is being read, for when it stays text
        self._tagged = False
        self._scanner = ObjectScanner()
        self.count = 0

    @property
    def is_done(self) -> bool:
        """With `parallel` off, the one call is complete."""
        return self._state == "done"

    def feed(self, piece: Piece) -> list[Part]:
        """Take a piece and return what is now certain, in order."""
        self._held += piece
        out: list[Part] = []
        while self._held and self._advance(out):
            pass
        return out

    def finish(self) -> list[Part]:
        """Return what was held back; a call whose head is complete stands as it is."""
        out: list[Part] = []
        while self._state == "head":
            self._refuse(out)
            while self._held and self._advance(out):
                pass
        rest, self._held = self._held, EMPTY
        if self._state in {"start", "text"} and rest:
            out.append(rest)
        elif self._state == "raw" and rest:
            self._argue(rest.text, out)
        return out

    def _advance(self, out: list[Part]) -> bool:
        """Take one step; False where more text is needed."""
        match self._state:
            case "start":
                return self._start()
            case "text":
                return self._text(out)
            case "head":
                return self._head(out)
            case "arguments":
                return self._arguments(out)
            case "raw":
                return self._raw(out)
            case "tail":
                return self._tail()
            case "close":
                return self._close()
            case "after":
                return self._after()
            case "done":
                self._held = EMPTY
                return False

    def _start(self) -> bool:
        text = self._held.text.lstrip()
        if not text:
            return False
        if self._bare and text[0] == "{":
            self._tagged, self._opening, self._state = False, EMPTY, "head"
        else:
            self._state = "text"
        return True

    def _text(self, out: list[Part]) -> bool:
        text = self._held.text
        at = text.find(CALL_OPEN) if self._tags else -1
        if at >= 0:
            before = len(text[:at].rstrip())
            self._emit(before, out)
            opening = at - before + len(CALL_OPEN)
            self._opening, self._held = self._held.cut(0, opening), self._held.cut(opening)
            self._tagged, self._state = True, "head"
            return True
        begun = begun_length(text, (CALL_OPEN,)) if self._tags else 0
        self._emit(len(text[: len(text) - begun].rstrip()) if self._tags else len(text), out)
        return False

    def _head(self, out: list[Part]) -> bool:
        text = self._held.text
        if not text.lstrip().startswith("{"):
            if not text.strip():
                return False
            self._refuse(out)
            return True
        if head := _HEAD.match(text):
            name = _parse(f'"{head[1]}"')
            if not isinstance(name, str) or not self._is_tool(name):
                self._refuse(out)
                return True
            self._begin(name, out)
            self._held = self._held.cut(head.end())
            self._scanner, self._state = ObjectScanner(), "arguments"
            return True
        if not self._tagged and (first := _FIRST_KEY.match(text)) and first[1] not in _CALL_KEYS:
            self._refuse(out)  # a JSON answer; do not hold it back up to its end
            return True
        scanner = ObjectScanner()
        end = scanner.scan(text)
        if end is None:
            return False
        call = None if scanner.is_broken else _whole_call(text[:end])
        if call is None or not self._is_tool(call[0]):
            self._refuse(out)
            return True
        self._begin(call[0], out)
        self._argue(call[1], out)
        self._held, self._state = self._held.cut(end), "close"
        return True

    def _arguments(self, out: list[Part]) -> bool:
        text = self._held.text
        end = self._scanner.scan(text)
        self._argue(text[:end], out)
        self._held = EMPTY if end is None else self._held.cut(end)
        if end is None:
            return False
        if self._scanner.is_broken:
            self._state = "raw"
        else:
            self._scanner, self._state = ObjectScanner(already_open="{"), "tail"
        return True

    def _raw(self, out: list[Part]) -> bool:
        """Pass on arguments that are no JSON, up to the closing tag, where there is one."""
        text = self._held.text
        at = text.find(CALL_CLOSE) if self._tagged else -1
        if at >= 0:
            self._argue(text[:at], out)
            self._held, self._state = self._held.cut(at), "close"
            return True
        keep = len(text) - (begun_length(text, (CALL_CLOSE,)) if self._tagged else 0)
        self._argue(text[:keep], out)
        self._held = self._held.cut(keep)
        return False

    def _tail(self) -> bool:
        """Drop what follows the arguments inside the call's own braces."""
        end = self._scanner.scan(self._held.text)
        self._held = EMPTY if end is None else self._held.cut(end)
        if end is not None:
            self._state = "close"
        return end is not None

    def _close(self) -> bool:
        if self._tagged:
            text = self._held.text.lstrip()
            if CALL_CLOSE.startswith(text) and text != CALL_CLOSE:
                return False
            if text.startswith(CALL_CLOSE):
                self._held = self._held.cut(len(self._held) - len(text) + len(CALL_CLOSE))
        self._state = "after" if self._parallel else "done"
        return True

    def _after(self) -> bool:
        text = self._held.text.lstrip()
        self._held = self._held.cut(len(self._held) - len(text))
        if text:
            self._state = "text" if self._tagged else "start"
        return bool(text)

    def _is_tool(self, name: str) -> bool:
        """A name in tags is the model's word, which the client judges; a bare object needs to be about a known tool."""
        return bool(name) if self._tagged else name in self._names

    def _begin(self, name: str, out: list[Part]) -> None:
        out.append(ToolCallDelta(index=self.count, id=self._new_id(), name=name))
        self.count += 1
        self._opening = EMPTY

    def _argue(self, arguments: str, out: list[Part]) -> None:
        if arguments:
            out.append(ToolCallDelta(index=self.count - 1, arguments=arguments))

    def _emit(self, length: int, out: list[Part]) -> None:
        if length:
            out.append(self._held.cut(0, length))
            self._held = self._held.cut(length)

    def _refuse(self, out: list[Part]) -> None:
        """It is no call: the opening is text, and what follows it is read again as such."""
        if self._opening:
            out.append(self._opening)
            self._opening = EMPTY
        self._state = "text"


def _parse(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None


def _whole_call(text: str) -> tuple[str, str] | None:
    """Name and arguments (JSON text) of a complete call object, or None where it is none."""
    call = _parse(text)
    if isinstance(call, dict) and isinstance(call.get("function"), dict):
        call = call["function"]
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str):
        return call["name"], arguments
    if arguments is None:
        return call["name"], "{}"
    return (call["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None
