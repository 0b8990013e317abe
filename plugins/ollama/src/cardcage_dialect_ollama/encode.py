"""From neutral events and results to the API's answers. Pure: the caller gives the time.

`Answer` makes both the lines of a stream and the one object of an answer that is not streamed, from the same events.
"""

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any, Literal

from cardcage_dialect_ollama.context import encode_context
from cardcage_sdk.chat import Message, TextPart
from cardcage_sdk.embeddings import EmbedResult
from cardcage_sdk.errors import EngineFailedError, InvalidRequestError
from cardcage_sdk.events import (
    Accepted,
    ChatEvent,
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
)

__all__ = ["Answer", "Stopwatch", "encode_only", "encode_vectors", "utc_text"]

_NANO = 1_000_000_000
_ID_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def utc_text(seconds: float) -> str:
    """Unix time as RFC 3339 in UTC with a fraction."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(slots=True, kw_only=True)
class Stopwatch:
    """When what happened to a request, in seconds of one clock; None while it has not.

    Attributes:
        arrived: The request came.
        held: The model was loaded.
        accepted: It was rendered and counted.
        first: The first piece of the answer came.
        ended: The last one did.
    """

    arrived: float
    held: float | None = None
    accepted: float | None = None
    first: float | None = None
    ended: float | None = None

    def durations(self, finished: Finished) -> dict[str, int]:
        """Nanoseconds, by Ollama's names; what is zero or unknown is left out. The engine's own times are better than these."""
        timings = finished.timings
        queue = (timings.queue_seconds if timings else None) or 0.0
        load = None if self.held is None else self.held - self.arrived + queue
        prefill = timings.prefill_seconds if timings else None
        decode = timings.decode_seconds if timings else None
        if prefill is None and self.first is not None and self.accepted is not None:
            prefill = max(0.0, self.first - self.accepted - queue)
        if decode is None and self.ended is not None and self.first is not None:
            decode = self.ended - self.first
        total = None if self.ended is None else self.ended - self.arrived
        found = {
            "total_duration": total,
            "load_duration": load,
            "prompt_eval_duration": prefill,
            "eval_duration": decode,
        }
        return {name: round(seconds * _NANO) for name, seconds in found.items() if seconds}


def encode_only(kind: Literal["chat", "generate"], *, model: str, reason: str, now: float) -> dict[str, Any]:
    """The answer to a request that only loads or unloads."""
    body = {"message": {"role": "assistant", "content": ""}} if kind == "chat" else {"response": ""}
    return {"model": model, "created_at": utc_text(now), **body, "done": True, "done_reason": reason}


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    pieces: list[str] = field(default_factory=list)


class Answer:
    """Takes the events of one answer; `feed` gives the lines that each makes, `last` the line that ends the stream.

    `whole`, asked after all events instead, is the answer that was not streamed.
    """

    def __init__(
        self,
        kind: Literal["chat", "generate"],
        *,
        model: str,
        clock: Callable[[], float],
        watch: Stopwatch,
        seed: str,
        exchange: Sequence[Message] | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            kind: Which route's form.
            model: As the client named it.
            clock: Unix time in seconds.
            watch: Filled by whoever runs the request.
            seed: Ids of calls come from it.
            exchange: What came before the answer, for `context`; None leaves that out.
        """
        self._kind = kind
        self._model = model
        self._clock = clock
        self._watch = watch
        self._ids = Random(seed)
        self._exchange = exchange
        self._accepted_tokens: int | None = None
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._open: _Call | None = None
        self._open_index: int | None = None
        self._calls: list[dict[str, Any]] = []
        self._finished: Finished | None = None

    def feed(self, event: ChatEvent) -> list[dict[str, Any]]:
        """The lines that one event makes, none or some."""
        match event:
            case Accepted():
                self._accepted_tokens = event.prompt_tokens
            case TextDelta() if event.text or event.logprobs:
                return [*self._close_call(), self._piece(event.text, event.logprobs)]
            case ReasoningDelta() if event.text or event.logprobs:
                self._thinking.append(event.text)
                self._logprobs.extend(event.logprobs)
                return [*self._close_call(), self._line(thinking=event.text, logprobs=event.logprobs)]
            case ToolCallDelta():
                return self._call(event)
            case Finished():
                self._finished = event
                return self._close_call()
        return []

    def last(self) -> dict[str, Any]:
        """The last line of a stream.

        Raises:
            EngineFailedError: The events ended before the answer did.
        """
        return self._end(self._body())

    def whole(self) -> dict[str, Any]:
        """The whole answer as one object.

        Raises:
            EngineFailedError: As `last`.
        """
        body = self._body("".join(self._text), thinking="".join(self._thinking), calls=self._calls)
        return self._end(body, logprobs=self._logprobs)

    def _end(self, body: dict[str, Any], logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        finished = self._finished
        if finished is None:
            raise EngineFailedError("The engine ended without finishing its answer")
        end: dict[str, Any] = {
            **self._head(),
            **body,
            "done": True,
            "done_reason": "length" if finished.reason == "length" else "stop",
        }
        if logprobs:
            end["logprobs"] = [_logprob(token) for token in logprobs]
        if self._exchange is not None:
            said = Message(role="assistant", content=(TextPart("".join(self._text)),))
            end["context"] = encode_context((*self._exchange, said))
        usage = finished.usage
        counts = {
            "prompt_eval_count": (usage.prompt_tokens if usage else self._accepted_tokens) or 0,
            "eval_count": usage.completion_tokens if usage else 0,
        }
        metrics = {**self._watch.durations(finished), **counts}
        order = ("total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count")
        return {**end, **{name: metrics[name] for name in (*order, "eval_duration") if metrics.get(name)}}

    def _head(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": utc_text(self._clock())}

    def _body(self, text: str = "", *, thinking: str = "", calls: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if thinking:
            extra["thinking"] = thinking
        if calls:
            extra["tool_calls"] = list(calls)
        if self._kind == "chat":
            return {"message": {"role": "assistant", "content": text, **extra}}
        return {"response": text, **extra}

    def _line(
        self,
        text: str = "",
        *,
        thinking: str = "",
        calls: Sequence[dict[str, Any]] = (),
        logprobs: Sequence[TokenLogprob] = (),
    ) -> dict[str, Any]:
        line = {**self._head(), **self._body(text, thinking=thinking, calls=calls), "done": False}
        if logprobs:
            line["logprobs"] = [_logprob(token) for token in logprobs]
        return line

    def _piece(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        self._text.append(text)
        self._logprobs.extend(logprobs)
        return self._line(text, logprobs=logprobs)

    def _call(self, event: ToolCallDelta) -> list[dict[str, Any]]:
        lines = self._close_call() if event.index != self._open_index else []
        if self._open is None:
            self._open = _Call(id=f"call_{''.join(self._ids.choices(_ID_CHARACTERS, k=8))}", name=event.name or "")
            self._open_index = event.index
        self._open.pieces.append(event.arguments)
        return lines

    def _close_call(self) -> list[dict[str, Any]]:
        """A call goes out whole: its arguments are an object. What is none was no call, so it goes out as the text it is."""
        call, self._open, self._open_index = self._open, None, None
        if call is None:
            return []
        written = "".join(call.pieces)
        arguments = _arguments(written)
        if arguments is None:
            return [self._piece(f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "arguments": {written}}}')]
        encoded = {
            "id": call.id,
            "function": {"index": len(self._calls), "name": call.name, "arguments": arguments},
        }
        self._calls.append(encoded)
        return [self._line(calls=[encoded])]


def _arguments(text: str) -> dict[str, Any] | None:
    if not text.strip():
        return {}
    try:
        value = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _no_json(name: str) -> None:
    raise ValueError(name)


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    entry = _token(token)
    if token.top:
        entry["top_logprobs"] = [_token(top) for top in token.top]
    return entry


def _token(token: TokenLogprob | TopLogprob) -> dict[str, Any]:
    value = max(-9999.0, min(0.0, token.logprob)) if not math.isnan(token.logprob) else -9999.0
    return {"token": token.token, "logprob": value, "bytes": list(token.data)}


def encode_vectors(result: EmbedResult, count: int, *, dimensions: int = 0) -> list[list[float]]:
    """The vectors as numbers; nine digits are all that a float32 holds.

    Args:
        result: Vectors of the inputs.
        count: How many there are.
        dimensions: Cut to so many components and normalise again; 0, or as many as there are or more, keeps all.

    Raises:
        InvalidRequestError: A component is not finite.
    """
    size = result.dimensions
    values = struct.unpack(f"<{count * size}f", result.vectors)
    if not all(map(math.isfinite, values)):
        raise InvalidRequestError("embedding contains NaN or Inf values", param="input")
    vectors = []
    for start in range(0, len(values), size):
        vector = values[start : start + size]
        if 0 < dimensions < size:
            vector = vector[:dimensions]
            length = math.sqrt(math.fsum(value * value for value in vector)) or 1.0
            vector = tuple(value / length for value in vector)
        vectors.append([float(f"{value:.9g}") for value in vector])
    return vectors
