"""What the worker knows of a request that runs: its text pipelines, counts and times."""

from __future__ import annotations

import dataclasses
import math
import time
from array import array
from collections import deque
from typing import TYPE_CHECKING, Literal

from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
from cardcage_sdk.errors import EngineFailedError
from cardcage_sdk.events import Finished, Progress, ReasoningDelta, Text, TextDelta, Timings, ToolCallDelta, Usage
from cardcage_sdk.text.pipeline import TextPipeline
from cardcage_sdk.worker.log import log_breach

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardcage_sdk.events import Accepted, EngineOutput
    from cardcage_sdk.ipc.frames import StepEvent
    from cardcage_sdk.models import ModelInfo

__all__ = ["ChatRun", "PrefillMeter", "check_result"]


class PrefillMeter:
    """The rate at which prompts were computed lately. Written by threads that run requests, read by the reader thread."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=9)

    def record(self, *, tokens: int, seconds: float) -> None:
        """Note one prompt; `tokens` without cached ones."""
        if tokens > 0 and seconds > 0:
            self._rates.append(tokens / seconds)

    @property
    def tokens_per_second(self) -> float | None:
        """Median of the last prompts, or None."""
        rates = sorted(self._rates)
        return rates[len(rates) // 2] if rates else None


class ChatRun:
    """One running chat request. Used by one thread at a time.

    Attributes:
        is_done: Every choice has its `Finished`.
        stopped: Choices that the pipeline ended itself since the last look; whoever tells the engine clears it.
        reasoned: Choices whose reasoning ended since the last look; cleared likewise.
    """

    def __init__(
        self,
        request: ChatRequest,
        info: ModelInfo,
        accepted: Accepted,
        *,
        output: Literal["raw", "parsed"],
        meter: PrefillMeter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._request = request
        self._accepted = accepted
        self._meter = meter
        self._clock = clock
        self._started = clock()
        self._first: float | None = None
        self._prompt_tokens = accepted.prompt_tokens
        self._cached_tokens: int | None = None
        self._pipelines = [
            TextPipeline(request, info, choice=choice, output=output, starts_in_reasoning=accepted.starts_in_reasoning)
            for choice in range(max(1, request.n))
        ]
        self._is_reasoning = [True] * len(self._pipelines)
        self._finished_by_engine: set[int] = set()
        self.stopped: list[int] = []
        self.reasoned: list[int] = []

    @property
    def is_done(self) -> bool:
        """Every choice has its `Finished`."""
        return all(pipeline.is_finished for pipeline in self._pipelines)

    def feed(self, output: EngineOutput) -> list[StepEvent]:
        """Take one output (not `Failed`) of the engine and return the events that it completes.

        Raises:
            EngineFailedError, WorkerProtocolError: The engine does not keep its contract; the request fails.
        """
        if isinstance(output, Progress):
            self._prompt_tokens = output.prompt_tokens or self._prompt_tokens
            self._cached_tokens = output.cached_tokens if output.cached_tokens is not None else self._cached_tokens
            return [output]
        choice = getattr(output, "choice", None)
        if not isinstance(choice, int) or not 0 <= choice < len(self._pipelines):
            raise EngineFailedError(
                f"The engine yielded {type(output).__name__} of choice {choice}, of {len(self._pipelines)} choices"
            )
        if isinstance(output, (Text, TextDelta, ReasoningDelta, ToolCallDelta)) and self._first is None:
            self._first = self._clock()
        pipeline = self._pipelines[choice]
        if pipeline.is_finished:
            if choice in self._finished_by_engine:
                log_breach(f"{type(output).__name__} after Finished of choice {choice} of request {self._request.id}")
            return []
        events = pipeline.feed(output)
        if isinstance(output, Finished):
            self._finished_by_engine.add(choice)
        if pipeline.stop_found:
            self.stopped.append(choice)
        if self._is_reasoning[choice] and pipeline.reasoning_ended:
            self._is_reasoning[choice] = False
            self.reasoned.append(choice)
        # The union of chat events has Accepted, which no pipeline yields.
        return [self._complete(event, pipeline) if isinstance(event, Finished) else event for event in events]  # type: ignore[misc]

    def _complete(self, finished: Finished, pipeline: TextPipeline) -> Finished:
        """Fill in counts and times that the engine does not tell."""
        now = self._clock()
        first = now if self._first is None else self._first
        usage = finished.usage or Usage(
            prompt_tokens=self._prompt_tokens or 0,
            completion_tokens=pipeline.completion_tokens,
            cached_tokens=self._cached_tokens,
        )
        if usage.reasoning_tokens is None:
            usage = dataclasses.replace(usage, reasoning_tokens=pipeline.reasoning_tokens)
        timings = finished.timings or Timings()
        if timings.prefill_seconds is None:
            timings = dataclasses.replace(timings, prefill_seconds=first - self._started)
        if timings.decode_seconds is None:
            timings = dataclasses.replace(timings, decode_seconds=now - first)
        self._meter.record(
            tokens=usage.prompt_tokens - (usage.cached_tokens or 0), seconds=timings.prefill_seconds or 0.0
        )
        return dataclasses.replace(finished, usage=usage, timings=timings)


def check_result(request: EmbedRequest | RerankRequest, result: object) -> EmbedResult | RerankResult:
    """Take what an engine made of an embedding or rerank.

    Raises:
        EngineFailedError: It is of the wrong type or shape, or not finite.
    """
    if isinstance(request, EmbedRequest) and isinstance(result, EmbedResult):
        expected = 4 * len(request.inputs) * result.dimensions
        if len(result.vectors) != expected:
            raise EngineFailedError(
                f"The engine returned {len(result.vectors)} bytes of vectors for {len(request.inputs)} inputs of "
                f"{result.dimensions} dimensions, not {expected}"
            )
        # A sum is finite only where every term is, and is the cheapest look at each.
        if not math.isfinite(sum(array("f", result.vectors))):
            raise EngineFailedError("The engine returned a vector that is not finite")
        return result
    if isinstance(request, RerankRequest) and isinstance(result, RerankResult):
        if len(result.scores) != len(request.documents):
            raise EngineFailedError(
                f"The engine returned {len(result.scores)} scores for {len(request.documents)} documents"
            )
        if not all(math.isfinite(score) for score in result.scores):
            raise EngineFailedError("The engine returned a score that is not finite")
        return result
    raise EngineFailedError(f"The engine answered {type(request).__name__} with {type(result).__name__}")
