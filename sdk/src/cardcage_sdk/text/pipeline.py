"""From an engine's outputs to the events of one choice of one request."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from cardcage_sdk.errors import WorkerProtocolError
from cardcage_sdk.events import Failed, Finished, Progress, ReasoningDelta, Text, TextDelta, ToolCallDelta
from cardcage_sdk.text.pieces import EMPTY, Piece
from cardcage_sdk.text.reasoning import ReasoningSplitter
from cardcage_sdk.text.stops import StopFilter
from cardcage_sdk.text.toolcalls import ToolCallParser, new_call_id
from cardcage_sdk.text.utf8 import Utf8Assembler

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.events import ChatEvent, EngineOutput, TokenLogprob
    from cardcage_sdk.models import ModelInfo
    from cardcage_sdk.text.reasoning import Segment

__all__ = ["TextPipeline"]


class TextPipeline:
    """One choice of one request: UTF-8 assembly, stop strings (on the raw text), reasoning, tool calls, in this order.

    The joined events depend on the text only, not on how the engine cut it into pieces. Log-probabilities go with the text
    that their tokens begin in; where that is dropped (tags, a stop string, tool calls), so are they.

    Attributes:
        is_finished: The last event, `Finished`, was given out; any further output is dropped.
        stop_found: The pipeline itself ended the choice (a stop string, or the one tool call that was allowed), so the engine
            is to be told to drop it before its next step.
        completion_tokens: Tokens seen; an output without token ids counts as one.
        reasoning_tokens: How many of them came while reasoning was open; None for a model that does not reason.
    """

    def __init__(
        self,
        request: ChatRequest,
        info: ModelInfo,
        *,
        choice: int = 0,
        output: Literal["raw", "parsed"] = "raw",
        starts_in_reasoning: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        """Set up for a request.

        Args:
            request: Its stop strings, tools and tool choice are used.
            info: Tool format and reasoning tags of the model.
            choice: The choice that this one is for; outputs of others must not be fed.
            output: What the engine declares: `raw` outputs are parsed here, `parsed` ones are passed through.
            starts_in_reasoning: The prompt ends inside an open reasoning tag.
            new_id: Makes the ids of tool calls.

        Raises:
            ValueError: An empty stop string or an unknown tool format.
        """
        self._choice = choice
        self._output = output
        self._utf8 = Utf8Assembler()
        self._stops = StopFilter(request.sampling.stop or ())
        self._reasoning: ReasoningSplitter | None = None
        # A raw prompt has no turns: whatever tags its continuation has are the caller's own.
        if info.reasoning_tags is not None and request.prompt is None:
            self._reasoning = ReasoningSplitter(info.reasoning_tags, starts_inside=starts_in_reasoning)
        self._tools: ToolCallParser | None = None
        if request.tools and request.tool_choice.mode != "none" and info.tool_format is not None:
            self._tools = ToolCallParser(
                [tool.name for tool in request.tools],
                tool_format=info.tool_format,
                bare=request.response_format.kind == "text",
                parallel=request.parallel_tool_calls,
                new_id=new_id,
            )
        self._unplaced: tuple[TokenLogprob, ...] = ()
        self._has_calls = False
        self.is_finished = False
        self.stop_found = False
        self.completion_tokens = 0
        self.reasoning_tokens: int | None = 0 if self._reasoning is not None or output == "parsed" else None

    @property
    def reasoning_ended(self) -> bool:
        """The closing tag of reasoning was seen."""
        return self._reasoning is not None and self._reasoning.ended

    def feed(self, output: EngineOutput) -> list[ChatEvent]:
        """Take one output of the engine and return the events that it completes, in order.

        Raises:
            WorkerProtocolError: The output is of a kind that the engine does not declare.
        """
        if self.is_finished:
            return []
        if isinstance(output, Progress):
            return [output]
        if isinstance(output, Finished):
            return self._finish(output)
        if isinstance(output, Text) and self._output == "raw":
            return self._text(output)
        if isinstance(output, (TextDelta, ReasoningDelta, ToolCallDelta)) and self._output == "parsed":
            self._has_calls |= isinstance(output, ToolCallDelta)
            self._count(1, is_reasoning=isinstance(output, ReasoningDelta))
            return [output]
        if isinstance(output, Failed):
            raise output.error
        raise WorkerProtocolError(f"The engine declares {self._output} output but yielded {type(output).__name__}")

    # --- raw text

    def _text(self, output: Text) -> list[ChatEvent]:
        self._count(
            max(1, len(output.token_ids)), is_reasoning=self._reasoning is not None and self._reasoning.is_inside
        )
        piece = self._stops.feed(self._assemble(output))
        if self._stops.found is not None:
            return self._end_early(piece, self._stops.found)
        events = self._parts(self._split(piece))
        if self._tools is not None and self._tools.is_done:
            return [*events, *self._end_early(EMPTY, None)]
        return events

    def _assemble(self, output: Text) -> Piece:
        """Decode a piece and note where in it each token begins."""
        if not output.logprobs:
            return self._place(self._utf8.feed(output.text), ())
        data = output.text.encode("utf-8", "surrogatepass") if isinstance(output.text, str) else output.text
        if b"".join(token.data for token in output.logprobs) != data:
            return self._place(self._utf8.feed(output.text), output.logprobs)
        whole = EMPTY
        for token in output.logprobs:
            whole += self._place(self._utf8.feed(token.data), (token,))
        return whole

    def _place(self, text: str, logprobs: tuple[TokenLogprob, ...]) -> Piece:
        """Set tokens to the beginning of the text; a token that completes no character waits for the one that does."""
        tokens = self._unplaced + logprobs
        self._unplaced = () if text else tokens
        return Piece(text, tuple((0, token) for token in tokens) if text else ())

    def _split(self, piece: Piece) -> list[Segment]:
        if self._reasoning is None:
            return [("text", piece)] if piece else []
        return self._reasoning.feed(piece)

    def _parts(self, segments: list[Segment]) -> list[ChatEvent]:
        events: list[ChatEvent] = []
        for kind, piece in segments:
            if kind == "reasoning":
                events.append(ReasoningDelta(piece.text, self._choice, piece.logprobs))
            elif self._tools is None:
                events.append(TextDelta(piece.text, self._choice, piece.logprobs))
            else:
                events += map(self._event, self._tools.feed(piece))
        return events

    def _event(self, part: Piece | ToolCallDelta) -> ChatEvent:
        if isinstance(part, Piece):
            return TextDelta(part.text, self._choice, part.logprobs)
        return part if self._choice == 0 else dataclasses.replace(part, choice=self._choice)

    def _flush(self, piece: Piece) -> list[ChatEvent]:
        """Let out everything that is held back, `piece` being the last of the text."""
        events = self._parts(self._split(piece))
        if self._reasoning is not None:
            events += self._parts(self._reasoning.finish())
        if self._tools is not None:
            events += map(self._event, self._tools.finish())
        return events

    # --- the end

    def _end_early(self, piece: Piece, stop: str | None) -> list[ChatEvent]:
        self.is_finished = self.stop_found = True
        events = self._flush(piece)
        if self._tools is not None and self._tools.is_done:
            stop = None  # the one call that was allowed ended the answer before the stop string did
        return [*events, Finished(reason=self._reason("stop"), stop_sequence=stop, choice=self._choice)]

    def _finish(self, finished: Finished) -> list[ChatEvent]:
        events: list[ChatEvent] = []
        if self._output == "raw":
            piece = self._stops.feed(self._place(self._utf8.finish(), ()))
            if self._stops.found is not None:
                return self._end_early(piece, self._stops.found)
            events = self._flush(piece + self._stops.finish())
        self.is_finished = True
        return [*events, dataclasses.replace(finished, reason=self._reason(finished.reason))]

    def _reason(self, reason: str) -> str:
        calls = self._has_calls or (self._tools is not None and self._tools.count > 0)
        return "tool_calls" if calls and reason == "stop" else reason

    def _count(self, tokens: int, *, is_reasoning: bool) -> None:
        self.completion_tokens += tokens
        if is_reasoning and self.reasoning_tokens is not None:
            self.reasoning_tokens += tokens
