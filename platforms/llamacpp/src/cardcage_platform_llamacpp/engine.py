"""The engine: one GGUF model in one worker process, generating or embedding for many requests at once."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from cardcage_platform_llamacpp import binding
from cardcage_platform_llamacpp.binding import Context, ContextSettings, Model, clamp_threads
from cardcage_platform_llamacpp.chunks import ChunkPacer
from cardcage_platform_llamacpp.declared import CAPABILITIES
from cardcage_platform_llamacpp.embedding import EmbeddingLoop
from cardcage_platform_llamacpp.generation import GenerationLoop, Sequence
from cardcage_platform_llamacpp.gguf_header import GgufError, read_header
from cardcage_platform_llamacpp.guidance import Form, GuidanceTokenizer, Matcher
from cardcage_platform_llamacpp.pacing import CpuMeter, ThreadPacer
from cardcage_platform_llamacpp.prompt import Prompter
from cardcage_platform_llamacpp.sampling import Grammar, Sampler
from cardcage_platform_llamacpp.slots import SlotTable
from cardcage_platform_llamacpp.weights import context_tokens_for, is_embedding_model, weight_files
from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.embeddings import EmbedRequest
from cardcage_sdk.engine import BatchEngine
from cardcage_sdk.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    OutOfMemoryError,
    UnsupportedError,
    UnsupportedModelError,
)
from cardcage_sdk.events import Accepted
from cardcage_sdk.hardware.files import ROOT
from cardcage_sdk.hardware.memory import read_memory
from cardcage_sdk.models import ModelInfo

if TYPE_CHECKING:
    from collections.abc import Sequence as Many
    from pathlib import Path

    from cardcage_platform_llamacpp.gguf_header import GgufHeader
    from cardcage_platform_llamacpp.prompt import Prompt
    from cardcage_platform_llamacpp.sampling import Constraint
    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.engine import BatchOutput, Request
    from cardcage_sdk.models import LoadOptions, ModelArtifact

__all__ = ["LlamaCppEngine"]

EMBEDDING_SEQUENCES = 16
"""Texts embedded in one call at most."""

EMBEDDING_BATCH_TOKENS = 2048
"""Tokens embedded in one call at least where the model's context is longer; attention buffers grow with its square."""

PAUSE_SECONDS = 0.1
"""Between two steps: the engine had nothing to do, so what the pacer's meter shows of that time is not about it."""

_PREPARED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Settings:
    """The options as the engine uses them; the platform's option model has validated them."""

    threads: int | None
    batch_tokens: int
    prefill_chunk_tokens: int
    prefill_step_seconds: float
    yield_cores: bool
    kv_unified: bool
    flash_attention: bool
    use_extra_bufts: bool
    check_tensors: bool

    @classmethod
    def of(cls, options: LoadOptions) -> _Settings:
        def value(name: str, default: JsonValue) -> JsonValue:
            return options.options.get(name, default)

        return cls(
            threads=value("threads", None),
            batch_tokens=value("batch_tokens", 512),
            prefill_chunk_tokens=value("prefill_chunk_tokens", 128),
            prefill_step_seconds=value("prefill_step_seconds", 0.15),
            yield_cores=value("yield_cores", True),
            kv_unified=value("kv_unified", False),
            flash_attention=value("flash_attention", False),
            use_extra_bufts=value("use_extra_bufts", True),
            check_tensors=value("check_tensors", False),
        )


class LlamaCppEngine(BatchEngine):
    """llama.cpp's batch API: all running requests advance in one `llama_decode`."""

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Load weights and allocate the cache of every slot."""
        settings = self._settings = _Settings.of(options)
        path, header = _find_weights(artifact)
        self._embeds = is_embedding_model(artifact, header)
        context_tokens = context_tokens_for(artifact, header, options.context_tokens)
        max_slots = max(options.max_slots, options.slots, 1)
        if max_slots > binding.MAX_SEQUENCES:
            raise InvalidRequestError(
                f"llama.cpp runs at most {binding.MAX_SEQUENCES} sequences", param="instance_count"
            )
        weights = sum(file.stat().st_size for file in weight_files(artifact))
        cache = 0 if self._embeds else header.kv_bytes_per_token() * context_tokens * max_slots
        _check_memory(weights, cache)
        binding.start()
        self._threads = self._clamp(options.cpu_threads)
        self._pacer = ThreadPacer(self._threads, CpuMeter())
        self._stepped_at = 0.0
        self._model = Model(path, use_extra_bufts=settings.use_extra_bufts, check_tensors=settings.check_tensors)
        self._max_slots = max_slots
        self._slots = min(max(options.slots, 1), max_slots)
        self._prepared: OrderedDict[str, Prompt] = OrderedDict()
        if self._embeds:
            return self._load_embedding(artifact, context_tokens)
        return self._load_generation(artifact, context_tokens)

    def _clamp(self, threads: int | None) -> int:
        """What core grants, within what the options allow."""
        bound = self._settings.threads
        if bound is not None:
            threads = bound if threads is None else min(bound, threads)
        return clamp_threads(threads)

    def _load_generation(self, artifact: ModelArtifact, context_tokens: int) -> ModelInfo:
        settings, model = self._settings, self._model
        # Every slot may have one row in a step, and a prompt should still get on.
        batch_tokens = max(settings.batch_tokens, self._max_slots + settings.prefill_chunk_tokens)
        self._context = Context(
            model,
            ContextSettings(
                context_tokens=context_tokens * self._max_slots,
                batch_tokens=batch_tokens,
                micro_batch_tokens=min(batch_tokens, 512),
                sequences=self._max_slots,
                outputs=self._max_slots,
                threads=self._threads,
                kv_unified=settings.kv_unified,
                flash_attention=settings.flash_attention,
            ),
        )
        self._context_tokens = min(context_tokens, self._context.context_tokens_per_sequence)
        # Here and not at the first request that needs it, where it would hold up everybody else's.
        self._guidance = GuidanceTokenizer(model.vocabulary)
        self._prompter = Prompter(model.vocabulary, artifact, model.chat_template)
        self._generation = GenerationLoop(
            self._context,
            model.vocabulary,
            slots=SlotTable(
                self._max_slots, can_reuse=not model.has_recurrent_state, context_tokens=self._context_tokens
            ),
            context_tokens=self._context_tokens,
            batch_tokens=batch_tokens,
            pacer=ChunkPacer(
                step_seconds=settings.prefill_step_seconds,
                most=batch_tokens,
                most_shared=settings.prefill_chunk_tokens,
            ),
        )
        missing = set() if self._prompter.can_switch_thinking else {Feature.THINKING}
        missing.add(Feature.DIMENSIONS)
        return ModelInfo(
            context_tokens=self._context_tokens,
            slots=self._slots,
            max_slots=self._max_slots,
            capabilities=_narrow(Task.CHAT, missing),
            has_chat_template=self._prompter.has_template,
            tool_format=self._prompter.tool_format,
            reasoning_tags=self._prompter.reasoning_tags,
            parameter_count=model.parameter_count,
            details={"description": model.description, "threads": self._threads},
        )

    def _load_embedding(self, artifact: ModelArtifact, context_tokens: int) -> ModelInfo:
        model = self._model
        batch_tokens = max(context_tokens, EMBEDDING_BATCH_TOKENS)
        pooling = binding.POOLING_UNSPECIFIED
        while True:
            self._context = Context(
                model,
                ContextSettings(
                    context_tokens=batch_tokens,
                    batch_tokens=batch_tokens,
                    micro_batch_tokens=batch_tokens,
                    sequences=EMBEDDING_SEQUENCES,
                    outputs=batch_tokens,
                    threads=self._threads,
                    kv_unified=True,
                    flash_attention=False,
                    pooling=pooling,
                ),
            )
            if self._context.pooling != binding.POOLING_NONE:
                break
            # A file that does not say how to pool would give one vector a token.
            self._context.close()
            pooling = binding.POOLING_MEAN
        if self._context.pooling == binding.POOLING_RANK:
            raise UnsupportedModelError(
                f"'{artifact.name}' scores documents (rank pooling), which is not supported yet"
            )
        self._context_tokens = context_tokens
        self._embedding = EmbeddingLoop(
            self._context,
            model,
            sequences=EMBEDDING_SEQUENCES,
            batch_tokens=batch_tokens,
            pacer=ChunkPacer(
                step_seconds=self._settings.prefill_step_seconds, most=batch_tokens, most_shared=batch_tokens
            ),
        )
        return ModelInfo(
            context_tokens=context_tokens,
            slots=self._slots,
            max_slots=self._max_slots,
            capabilities=Capabilities(
                tasks=frozenset({Task.EMBED}),
                features=frozenset({Feature.DIMENSIONS}),
                embed_in_flight=CAPABILITIES.embed_in_flight,
                cancel_seconds=CAPABILITIES.cancel_seconds,
            ),
            embedding_dimensions=model.embedding_width,
            parameter_count=model.parameter_count,
            details={"description": model.description, "threads": self._threads},
        )

    # --- requests ---------------------------------------------------------------------------------------------------

    def prepare(self, request: Request) -> Accepted:
        """Render, count and compile; keep the tokens for `add`, which usually comes soon."""
        if isinstance(request, EmbedRequest):
            return Accepted(prompt_tokens=sum(map(len, self._inputs(request))))
        prompt = self._prompt(self._chat(request))
        self._prepared[request.id] = prompt
        while len(self._prepared) > _PREPARED:
            self._prepared.popitem(last=False)
        return Accepted(prompt_tokens=len(prompt.tokens), starts_in_reasoning=prompt.starts_in_reasoning)

    def _chat(self, request: Request) -> ChatRequest:
        if self._embeds or not isinstance(request, ChatRequest):
            task = Task.EMBED if isinstance(request, EmbedRequest) else Task.RERANK
            raise UnsupportedError(Task.CHAT.value if isinstance(request, ChatRequest) else task.value)
        return request

    def _prompt(self, request: ChatRequest) -> Prompt:
        prompt = self._prompter.build(request)
        if len(prompt.tokens) >= self._context_tokens:
            raise ContextLengthExceededError(
                prompt_tokens=len(prompt.tokens),
                context_tokens=self._context_tokens,
                param="messages" if request.prompt is None else "prompt",
            )
        if prompt.grammar is not None:
            self._constraint(prompt.grammar).close()
        return prompt

    def _constraint(self, grammar: Form | str) -> Constraint:
        if isinstance(grammar, Form):
            return Matcher(self._guidance, grammar)
        return Grammar(self._model.vocabulary, grammar)

    def _inputs(self, request: EmbedRequest) -> list[list[int]]:
        if not self._embeds:
            raise UnsupportedError(Task.EMBED.value)
        vocabulary = self._model.vocabulary
        inputs: list[list[int]] = []
        for item in request.inputs:
            if isinstance(item, str):
                tokens = vocabulary.tokenize(item, add_special=True, parse_special=False)
            else:
                tokens = list(item)
                if not all(0 <= token < vocabulary.size for token in tokens):
                    raise InvalidRequestError("An input names a token that the model does not have", param="input")
            if not tokens:
                raise InvalidRequestError("An input is empty", param="input")
            if len(tokens) > self._context_tokens:
                if not request.truncate:
                    raise ContextLengthExceededError(
                        prompt_tokens=len(tokens), context_tokens=self._context_tokens, param="input"
                    )
                end = tokens[-1:] if vocabulary.adds_end and isinstance(item, str) else []
                tokens = tokens[: self._context_tokens - len(end)] + end
            inputs.append(tokens)
        return inputs

    def add(self, request: Request) -> None:
        """Take a request into the batch."""
        if isinstance(request, EmbedRequest):
            inputs = self._inputs(request)
            self._embedding.add(request, inputs)
            return
        chat = self._chat(request)
        prompt = self._prepared.pop(chat.id, None) or self._prompt(chat)
        sequences: list[Sequence] = []
        try:
            sequences.extend(self._sequence(chat, prompt, choice) for choice in range(chat.n))
        except Exception:
            for sequence in sequences:
                sequence.sampler.close()
            raise
        for sequence in sequences:
            self._generation.add(sequence)

    def _sequence(self, request: ChatRequest, prompt: Prompt, choice: int) -> Sequence:
        vocabulary = self._model.vocabulary
        grammar = None if prompt.grammar is None else self._constraint(prompt.grammar)
        try:
            sampler = Sampler(
                request.sampling,
                vocabulary,
                choice=choice,
                context_tokens=self._context_tokens,
                grammar=grammar,
            )
        except Exception:
            if grammar is not None:
                grammar.close()
            raise
        # While the model thinks, it may write what it likes; `reasoning_ended` lets the grammar take hold.
        sampler.grammar_active = grammar is not None and not prompt.starts_in_reasoning
        sampler.remember(prompt.tokens)
        tokens = np.zeros(self._context_tokens, dtype=np.int32)
        tokens[: len(prompt.tokens)] = prompt.tokens
        return Sequence(
            request_id=request.id,
            choice=choice,
            tokens=tokens,
            length=len(prompt.tokens),
            prompt_tokens=len(prompt.tokens),
            sampler=sampler,
            max_tokens=request.sampling.max_tokens,
            logprobs=request.logprobs,
            # What is computed in another batch shape differs in the last bits, which is enough for another token. A
            # client that gives a seed asks for the same text again, so its prompt is computed whole.
            reuse=request.reuse_prefix and request.sampling.seed is None,
        )

    def step(self) -> Many[tuple[str, BatchOutput]]:
        """Advance everything that runs."""
        self._pace()
        try:
            return self._embedding.step() if self._embeds else self._generation.step()
        finally:
            self._stepped_at = time.monotonic()

    def _pace(self) -> None:
        """Let the pacer look, but not at a time in which we did nothing."""
        if not self._settings.yield_cores:
            return
        if time.monotonic() - self._stepped_at > PAUSE_SECONDS:
            self._pacer.resume()
        elif self._pacer.look():
            self._context.set_threads(self._pacer.threads)

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Forget a request, or one choice of it."""
        if self._embeds:
            self._embedding.cancel(request_id)
        else:
            self._generation.cancel(request_id, choice)

    def reasoning_ended(self, request_id: str, choice: int) -> None:
        """Let the grammar of a structured answer take hold."""
        if not self._embeds and (sequence := self._generation.find(request_id, choice)):
            sequence.sampler.grammar_active = sequence.sampler.grammar is not None

    def resize(self, slots: int) -> int:
        """Slots share everything that was allocated at load, so their number is core's limit alone."""
        self._slots = max(1, min(slots, self._max_slots))
        return self._slots

    def set_cpu_threads(self, threads: int) -> None:
        """Take another share of the cores from the next step on."""
        self._threads = self._clamp(threads)
        self._context.set_threads(self._threads)
        self._pacer.limit(self._threads)

    def close(self) -> None:
        """Free samplers, context and weights, in this order: llama.cpp aborts otherwise."""
        if hasattr(self, "_generation"):
            self._generation.close()
        if hasattr(self, "_context"):
            self._context.close()
        if hasattr(self, "_model"):
            self._model.close()


def _find_weights(artifact: ModelArtifact) -> tuple[Path, GgufHeader]:
    files = weight_files(artifact)
    if not files:
        raise UnsupportedModelError(f"'{artifact.name}' has no GGUF file")
    try:
        return files[0], read_header(files[0])
    except GgufError as error:
        raise UnsupportedModelError(f"'{files[0].name}' is no usable GGUF file: {error}") from error


def _narrow(task: Task, missing: set[Feature]) -> Capabilities:
    return replace(CAPABILITIES, tasks=frozenset({task}), features=CAPABILITIES.features - missing)


def _check_memory(weights: int, cache: int) -> None:
    """Refuse what cannot fit: the kernel would promise it, and kill the worker when the promise is called in.

    Raises:
        OutOfMemoryError: Weights and cache are more than what is available.
    """
    available = read_memory(ROOT).available_bytes
    if available is not None and weights + cache > available:
        raise OutOfMemoryError(required_bytes=weights + cache, free_bytes=available)
