"""Chat on onnxruntime-genai. Worker only.

On a CPU its own engine batches statically: four requests at a time, and a late one waits for all of them. So each request
has a generator of its own here, and each step takes every one of them one token further: a late request starts at once and
a cancelled one ends at once. What that does not give is batched speed: the requests share one speed between them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cardcage_platform_onnx.declared import CAPABILITIES
from cardcage_platform_onnx.genai_config import context_tokens_for, read_genai_config
from cardcage_platform_onnx.genai_model import GenaiModel, Generator, GrammarError
from cardcage_platform_onnx.guidance import Guidance, guidance_for
from cardcage_platform_onnx.memory import give_back
from cardcage_platform_onnx.prompting import Prompter
from cardcage_platform_onnx.sampling import LogitAdjuster, search_options, token_logprob
from cardcage_platform_onnx.threads import choose_threads
from cardcage_platform_onnx.vocabulary import Vocabulary
from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.engine import BatchEngine
from cardcage_sdk.errors import (
    CardcageError,
    ContextLengthExceededError,
    InvalidSchemaError,
    UnsupportedError,
    UnsupportedModelError,
)
from cardcage_sdk.events import Accepted, Failed, Finished, Progress, Text, TokenLogprob, Usage
from cardcage_sdk.models import ModelInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardcage_platform_onnx.model_files import ModelFiles
    from cardcage_platform_onnx.settings import Settings
    from cardcage_sdk.engine import BatchOutput, Request
    from cardcage_sdk.models import LoadOptions, ModelArtifact

__all__ = ["GenaiEngine"]

# Prepared requests whose tokens are kept for `add`.
PREPARED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A request as the model reads it."""

    tokens: list[int]
    guidance: Guidance | None
    starts_in_reasoning: bool


@dataclass(slots=True, kw_only=True, eq=False)
class Strand:
    """One choice of one request on its way.

    Attributes:
        tokens: Prompt and answer so far.
        prompt_tokens: How many of them are the prompt.
        computed: How many of them the generator has seen while its prompt is computed.
        limit: Length at which the answer is cut.
    """

    request: ChatRequest
    choice: int
    generator: Generator
    adjuster: LogitAdjuster
    tokens: list[int]
    prompt_tokens: int
    limit: int
    guidance: Guidance | None
    computed: int = 0
    waits_for_reasoning: bool = field(default=False)

    @property
    def answer_tokens(self) -> int:
        """Tokens generated."""
        return len(self.tokens) - self.prompt_tokens


class GenaiEngine(BatchEngine):
    """One chat model. See `BatchEngine` for who calls what, when."""

    def __init__(self, files: ModelFiles, settings: Settings) -> None:
        self._files = files
        self._settings = settings
        self._prepared: OrderedDict[str, Prompt] = OrderedDict()
        self._running: list[Strand] = []
        self._prefilling: deque[Strand] = deque()

    # --- loading ------------------------------------------------------------------------------------------------------

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Load weights, tokenizer and template."""
        directory = self._files.directory
        self._config = read_genai_config(directory)
        self._threads = self._wanted_threads = choose_threads(wanted=self._settings.threads, share=options.cpu_threads)
        if self._files.tokenizer is None or not self._files.tokenizer.is_file():
            raise UnsupportedModelError(f"'{directory}' has no tokenizer.json", param="model_path")
        self._vocabulary = Vocabulary(self._files.tokenizer)
        self._prompter = Prompter(self._vocabulary, directory, artifact)
        self._context_tokens = context_tokens_for(self._config, artifact, options.context_tokens)
        self._open()
        self._slots, self._max_slots = options.slots, options.max_slots
        missing = set() if self._prompter.can_switch_thinking else {Feature.THINKING}
        return ModelInfo(
            context_tokens=self._context_tokens,
            slots=self._slots,
            max_slots=self._max_slots,
            capabilities=_chat_only(missing),
            has_chat_template=self._prompter.has_template,
            tool_format=self._prompter.tool_format,
            reasoning_tags=self._prompter.reasoning_tags,
            details={
                "provider": self._model.device,
                "threads": self._threads,
                "family": self._config.type,
                # Said for people who wonder why four streams together are no faster than one.
                "batches": False,
            },
        )

    def _open(self) -> None:
        self._model = GenaiModel(
            self._files.directory,
            threads=self._threads,
            provider=self._settings.provider,
            provider_options=self._settings.provider_options,
            cache_bytes=self._config.cache_bytes_per_token,
        )

    # --- requests -----------------------------------------------------------------------------------------------------

    def prepare(self, request: Request) -> Accepted:
        """Render, count, and compile the grammar; keep the tokens for `add`, which usually comes soon."""
        chat = self._chat(request)
        prompt = self._prompt(chat)
        if prompt.guidance is not None:
            self._generator(chat, 0, prompt.guidance, limit=1).is_done  # noqa: B018 - compiles it, or says why not
        self._prepared[chat.id] = prompt
        while len(self._prepared) > PREPARED:
            self._prepared.popitem(last=False)
        return Accepted(prompt_tokens=len(prompt.tokens), starts_in_reasoning=prompt.starts_in_reasoning)

    def _chat(self, request: Request) -> ChatRequest:
        if not isinstance(request, ChatRequest):
            raise UnsupportedError(Task.EMBED.value if hasattr(request, "inputs") else Task.RERANK.value, param="model")
        return request

    def _prompt(self, request: ChatRequest) -> Prompt:
        rendered = self._prompter.build(request)
        if len(rendered.tokens) >= self._context_tokens:
            raise ContextLengthExceededError(
                prompt_tokens=len(rendered.tokens),
                context_tokens=self._context_tokens,
                param="messages" if request.prompt is None else "prompt",
            )
        guidance = guidance_for(request, tool_format=self._prompter.tool_format)
        return Prompt(tokens=rendered.tokens, guidance=guidance, starts_in_reasoning=rendered.starts_in_reasoning)

    def _generator(self, request: ChatRequest, choice: int, guidance: Guidance | None, *, limit: int) -> Generator:
        try:
            return self._model.generator(
                max_length=limit,
                options=search_options(request.sampling, self._config.search, choice=choice),
                guidance=guidance,
                has_bound=request.sampling.max_tokens is not None,
            )
        except GrammarError as error:
            param = guidance.param if guidance is not None else None
            raise InvalidSchemaError(f"The schema cannot be followed: {error}", param=param) from error

    def add(self, request: Request) -> None:
        """Take a request; its prompt is computed in the steps to come."""
        chat = self._chat(request)
        if self._wanted_threads != self._threads and not self._running:
            self._threads = self._wanted_threads
            del self._model  # first, so that the weights are never in memory twice
            self._open()
        prompt = self._prepared.pop(chat.id, None) or self._prompt(chat)
        room = self._context_tokens - len(prompt.tokens)
        wanted = chat.sampling.max_tokens
        limit = len(prompt.tokens) + (room if wanted is None else max(1, min(wanted, room)))
        # While the model thinks it may write what it likes; `reasoning_ended` lets the grammar take hold.
        waits = prompt.guidance is not None and prompt.starts_in_reasoning
        sequences = [
            Strand(
                request=chat,
                choice=choice,
                generator=self._generator(chat, choice, None if waits else prompt.guidance, limit=limit),
                adjuster=LogitAdjuster.of(chat.sampling, vocabulary_size=self._vocabulary.size),
                tokens=list(prompt.tokens),
                prompt_tokens=len(prompt.tokens),
                limit=limit,
                guidance=prompt.guidance,
                waits_for_reasoning=waits,
            )
            for choice in range(chat.n)
        ]
        self._running += sequences
        self._prefilling += sequences

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> Sequence[tuple[str, BatchOutput]]:
        """One chunk of the oldest prompt, and one token of every answer."""
        outputs = self._advance()
        if not self._running:
            give_back()
        return outputs

    def _advance(self) -> list[tuple[str, BatchOutput]]:
        outputs: list[tuple[str, BatchOutput]] = []
        turn = self._prefilling[0] if self._prefilling else None
        for sequence in list(self._running):
            if sequence not in self._running:
                continue  # another choice of its request failed a moment ago
            try:
                if sequence is turn:
                    outputs += self._prefill(sequence)
                elif sequence not in self._prefilling:
                    outputs += self._generate(sequence)
            except CardcageError as error:
                outputs = [pair for pair in outputs if pair[0] != sequence.request.id]
                outputs.append((sequence.request.id, Failed(error=error)))
                self.cancel(sequence.request.id)
        return outputs

    def _prefill(self, sequence: Strand) -> list[tuple[str, BatchOutput]]:
        end = min(sequence.computed + self._settings.prefill_chunk_tokens, len(sequence.tokens))
        sequence.generator.append(sequence.tokens[sequence.computed : end])
        sequence.computed = end
        if end == len(sequence.tokens):
            self._prefilling.popleft()
        else:
            # Prompts take turns, so that a short one does not wait for a long one.
            self._prefilling.rotate(-1)
        if sequence.answer_tokens or sequence.choice:
            return []
        progress = Progress(prefill_tokens=end, prompt_tokens=sequence.prompt_tokens)
        return [(sequence.request.id, progress)]

    def _generate(self, sequence: Strand) -> list[tuple[str, BatchOutput]]:
        request, generator = sequence.request, sequence.generator
        logits = None
        if sequence.adjuster.is_needed or request.logprobs is not None:
            logits = generator.logits()
            if sequence.adjuster.is_needed:
                generator.change(sequence.adjuster.apply(logits, sequence.tokens))
        token = generator.next()
        sequence.tokens.append(token)
        outputs: list[tuple[str, BatchOutput]] = []
        if token in self._config.end_tokens:
            return [self._finish(sequence, "stop")]
        logprobs: tuple[TokenLogprob, ...] = ()
        if request.logprobs is not None and logits is not None:
            logprobs = (token_logprob(logits, token, request.logprobs, self._vocabulary),)
        text = Text(self._vocabulary.text(token), (token,), logprobs, sequence.choice)
        outputs.append((request.id, text))
        if len(sequence.tokens) >= sequence.limit:
            outputs.append(self._finish(sequence, "length"))
        elif generator.is_done:
            outputs.append(self._finish(sequence, "stop"))
        return outputs

    def _finish(self, sequence: Strand, reason: str) -> tuple[str, BatchOutput]:
        self._running.remove(sequence)
        usage = Usage(prompt_tokens=sequence.prompt_tokens, completion_tokens=sequence.answer_tokens, cached_tokens=0)
        return sequence.request.id, Finished(reason=reason, usage=usage, choice=sequence.choice)

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Forget a request, or one choice of it; its generator and cache go with it."""
        self._prepared.pop(request_id, None)

        def is_meant(sequence: Strand) -> bool:
            return sequence.request.id == request_id and choice in {None, sequence.choice}

        self._running = [sequence for sequence in self._running if not is_meant(sequence)]
        self._prefilling = deque(sequence for sequence in self._prefilling if not is_meant(sequence))
        if not self._running:
            give_back()

    def reasoning_ended(self, request_id: str, choice: int) -> None:
        """Let the grammar take hold: the runtime fixes it at a sequence's start, so the sequence is computed anew."""
        for sequence in self._running:
            if (
                sequence.request.id == request_id
                and sequence.choice == choice
                and sequence.guidance is not None
                and sequence.waits_for_reasoning
            ):
                sequence.waits_for_reasoning = False
                sequence.generator = self._generator(sequence.request, choice, sequence.guidance, limit=sequence.limit)
                sequence.computed = 0
                self._prefilling.append(sequence)

    def resize(self, slots: int) -> int:
        """Generators are made for each request, so slots cost nothing until they are used."""
        self._slots = max(1, min(slots, self._max_slots))
        return self._slots

    def set_cpu_threads(self, threads: int) -> None:
        """Take another share of the cores when no answer runs: the runtime fixes its threads at load."""
        self._wanted_threads = choose_threads(wanted=self._settings.threads, share=threads)

    def close(self) -> None:
        """Free generators first, then the weights."""
        self._running.clear()
        self._prefilling.clear()
        if hasattr(self, "_model"):
            del self._model


def _chat_only(missing: set[Feature]) -> Capabilities:
    features = CAPABILITIES.features - missing - {Feature.DIMENSIONS}
    return replace(CAPABILITIES, tasks=frozenset({Task.CHAT}), features=features)
