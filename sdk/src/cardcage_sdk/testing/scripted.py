"""Engines that say what a file tells them to, in both shapes. Worker process only; its platforms are in `platforms`."""

from __future__ import annotations

import struct
import threading
import time
from array import array
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cardcage_sdk.capabilities import Task
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankResult
from cardcage_sdk.engine import BatchEngine, Engine, EngineBase
from cardcage_sdk.errors import ContextLengthExceededError, UnsupportedError
from cardcage_sdk.events import Accepted, Finished, Progress, Text, Usage
from cardcage_sdk.models import ModelInfo
from cardcage_sdk.testing.script import SCRIPTED_CAPABILITIES, Script, Token, read_script, vector
from cardcage_sdk.worker.loading import SELF_TEST_ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.embeddings import RerankRequest
    from cardcage_sdk.engine import BatchOutput, Request
    from cardcage_sdk.events import EngineOutput
    from cardcage_sdk.models import LoadOptions, ModelArtifact

__all__ = ["ScriptedBatchEngine", "ScriptedEngine"]


class _ScriptedBase(EngineBase):
    """What both shapes share: the script, the model's facts, and everything that is no text generation."""

    script: Script
    extra: Mapping[str, JsonValue]

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Read the script."""
        script, self.extra = read_script(artifact, options.options)
        context = options.context_tokens or artifact.context_tokens
        self.script = script if context is None else replace(script, context_tokens=context)
        time.sleep(self.script.load_seconds)
        tasks = frozenset(Task(task) for task in self.script.tasks)
        return ModelInfo(
            context_tokens=self.script.context_tokens,
            slots=options.slots,
            max_slots=options.max_slots,
            capabilities=replace(SCRIPTED_CAPABILITIES, tasks=tasks),
            embedding_dimensions=self.script.dimensions if Task.EMBED in tasks else None,
            has_chat_template=True,
            tool_format=artifact.tool_format or "hermes",
            reasoning_tags=artifact.reasoning_tags or ("<think>", "</think>"),
            parameter_count=0,
        )

    def prepare(self, request: Request) -> Accepted:
        """Count the words."""
        if isinstance(request, ChatRequest):
            return self.script.prepare(request)
        if isinstance(request, EmbedRequest):
            return Accepted(prompt_tokens=sum(self._count_inputs(request)))
        return Accepted(prompt_tokens=len(f"{request.query} {' '.join(request.documents)}".split()))

    def vectors(self, request: EmbedRequest) -> EmbedResult:
        """A vector for each input, of its own direction and always the same."""
        counts = self._count_inputs(request)
        ignores = self.script.ignores
        wanted = None if "dimensions" in ignores else request.dimensions
        dimensions = min(wanted or self.script.dimensions, self.script.dimensions)
        normalize = request.normalize and "normalize" not in ignores
        values = array("f")
        for item in reversed(request.inputs) if "order" in ignores else request.inputs:
            values.extend(vector(item, dimensions, normalize=normalize))
        return EmbedResult(
            vectors=struct.pack(f"<{len(values)}f", *values), dimensions=dimensions, prompt_tokens=tuple(counts)
        )

    def scores(self, request: RerankRequest) -> RerankResult:
        """The share of the query's words that a document has."""
        wanted = set(request.query.lower().split())
        scores = [len(wanted & set(text.lower().split())) / max(1, len(wanted)) for text in request.documents]
        return RerankResult(scores=tuple(scores), prompt_tokens=self.prepare(request).prompt_tokens or 0)

    def usage(self, request: ChatRequest, completion_tokens: int) -> Usage:
        """What an answer cost."""
        return Usage(
            prompt_tokens=self.script.count_prompt(request), completion_tokens=completion_tokens, cached_tokens=0
        )

    def _count_inputs(self, request: EmbedRequest) -> list[int]:
        counts = [len(item.split()) if isinstance(item, str) else len(item) for item in request.inputs]
        limit = self.script.context_tokens
        if max(counts, default=0) > limit and not request.truncate and "context" not in self.script.ignores:
            raise ContextLengthExceededError(prompt_tokens=max(counts), context_tokens=limit, param="input")
        return [min(count, limit) for count in counts]


class ScriptedEngine(_ScriptedBase, Engine):
    """The blocking shape. Choices come one after the other; waits end at once when cancelled."""

    def __init__(self) -> None:
        self._cancelled: dict[str, threading.Event] = {}

    def chat(self, request: ChatRequest) -> Iterator[EngineOutput]:
        """Say what the script says."""
        if Task.CHAT.value not in self.script.tasks:
            raise UnsupportedError(Task.CHAT.value)
        self.script.prepare(request)
        cancelled = self._cancelled[request.id] = threading.Event()
        try:
            if request.id != SELF_TEST_ID:
                for step in range(self.script.prefill_steps):
                    if self._wait(cancelled, self.script.delay_seconds):
                        return
                    yield Progress(prefill_tokens=step, prompt_tokens=self.script.count_prompt(request))
                if self._wait(cancelled, self.script.prefill_seconds):
                    return
            for choice in range(1 if "n" in self.script.ignores else request.n):
                yield from self._answer(request, choice, cancelled)
        finally:
            del self._cancelled[request.id]

    def embed(self, request: EmbedRequest) -> EmbedResult:
        """See `vectors`."""
        if Task.EMBED.value not in self.script.tasks:
            raise UnsupportedError(Task.EMBED.value)
        return self.vectors(request)

    def rerank(self, request: RerankRequest) -> RerankResult:
        """See `scores`."""
        if Task.RERANK.value not in self.script.tasks:
            raise UnsupportedError(Task.RERANK.value)
        return self.scores(request)

    def cancel(self, request_id: str) -> None:
        """End the wait that the request is in."""
        cancelled = self._cancelled.get(request_id)
        if cancelled is not None and "cancel" not in self.script.ignores:
            cancelled.set()

    def emit(self, request: ChatRequest, token: Token, number: int, choice: int) -> Text:
        """The output of one token; `number` counts from 0."""
        del number
        return Text(token.data, (token.id,), self.script.logprobs(request, token), choice)

    def _answer(self, request: ChatRequest, choice: int, cancelled: threading.Event) -> Iterator[EngineOutput]:
        tokens = self.script.tokens(request, choice)
        limit = self.script.limit(request)
        for number, token in enumerate(tokens[:limit]):
            if self._wait(cancelled, self.script.delay_seconds):
                return
            yield self.emit(request, token, number, choice)
        reason = "length" if len(tokens) > limit else "stop"
        yield Finished(reason=reason, usage=self.usage(request, min(limit, len(tokens))), choice=choice)

    def _wait(self, cancelled: threading.Event, seconds: float) -> bool:
        return cancelled.wait(seconds) if seconds else cancelled.is_set()


@dataclass(slots=True)
class _Sequence:
    """One choice that runs in the batch."""

    request: ChatRequest
    choice: int
    tokens: list[Token]
    limit: int
    prefill_steps: int
    position: int = 0


@dataclass(slots=True)
class _Waiting:
    """An embedding or rerank that the next step answers."""

    request: EmbedRequest | RerankRequest


@dataclass(slots=True)
class _Batch:
    sequences: dict[tuple[str, int], _Sequence] = field(default_factory=dict)
    waiting: list[_Waiting] = field(default_factory=list)


class ScriptedBatchEngine(_ScriptedBase, BatchEngine):
    """The shape with a step loop: every running choice says one token a step."""

    def __init__(self) -> None:
        self._batch = _Batch()
        self._max_slots = 1

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Read the script."""
        self._max_slots = options.max_slots
        return super().load(artifact, options)

    def add(self, request: Request) -> None:
        """Take a request into the batch."""
        self.prepare(request)
        if not isinstance(request, ChatRequest):
            task = Task.EMBED if isinstance(request, EmbedRequest) else Task.RERANK
            if task.value not in self.script.tasks:
                raise UnsupportedError(task.value)
            self._batch.waiting.append(_Waiting(request))
            return
        if Task.CHAT.value not in self.script.tasks:
            raise UnsupportedError(Task.CHAT.value)
        for choice in range(1 if "n" in self.script.ignores else request.n):
            self._batch.sequences[request.id, choice] = _Sequence(
                request=request,
                choice=choice,
                tokens=self.script.tokens(request, choice),
                limit=self.script.limit(request),
                prefill_steps=0 if request.id == SELF_TEST_ID else self.script.prefill_steps,
            )

    def step(self) -> Sequence[tuple[str, BatchOutput]]:
        """Say one token of each."""
        time.sleep(self.script.delay_seconds)
        outputs: list[tuple[str, BatchOutput]] = []
        for item in self._batch.waiting:
            request = item.request
            result = self.vectors(request) if isinstance(request, EmbedRequest) else self.scores(request)
            outputs.append((request.id, result))
        self._batch.waiting.clear()
        for key, sequence in list(self._batch.sequences.items()):
            output = self._advance(sequence)
            outputs.append((sequence.request.id, output))
            if isinstance(output, Finished):
                del self._batch.sequences[key]
        return outputs

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Forget a request or one choice of it."""
        batch = self._batch
        batch.waiting = [item for item in batch.waiting if item.request.id != request_id]
        for key in list(batch.sequences):
            if key[0] == request_id and choice in {None, key[1]}:
                del batch.sequences[key]

    def resize(self, slots: int) -> int:
        """Any number up to the most that the load allowed."""
        return min(slots, self._max_slots)

    def emit(self, request: ChatRequest, token: Token, number: int, choice: int) -> Text:
        """The output of one token; `number` counts from 0."""
        del number
        return Text(token.data, (token.id,), self.script.logprobs(request, token), choice)

    def _advance(self, sequence: _Sequence) -> EngineOutput:
        request, position = sequence.request, sequence.position
        if sequence.prefill_steps:
            sequence.prefill_steps -= 1
            return Progress(prompt_tokens=self.script.count_prompt(request))
        sequence.position += 1
        if position < min(sequence.limit, len(sequence.tokens)):
            return self.emit(request, sequence.tokens[position], position, sequence.choice)
        reason = "length" if len(sequence.tokens) > sequence.limit else "stop"
        return Finished(reason=reason, usage=self.usage(request, position), choice=sequence.choice)
