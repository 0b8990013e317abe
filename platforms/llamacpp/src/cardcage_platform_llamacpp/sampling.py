"""Choosing the next token of one sequence. Worker process only.

Top-k comes first, because everything after it then works on 40 candidates instead of the whole vocabulary; temperature 0 is
an argmax in numpy; penalties and bias join the chain only when asked. A grammar is asked about the one sampled candidate,
and only when it refuses that is it applied to all: of one token that costs microseconds, of all of them up to 3 ms with
llguidance and 5 ms with llama.cpp.
"""

from __future__ import annotations

import ctypes
import re
import secrets
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cardcage_platform_llamacpp.binding import lib
from cardcage_sdk.errors import InvalidRequestError, InvalidSchemaError
from cardcage_sdk.events import TokenLogprob, TopLogprob

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import numpy.typing as npt

    from cardcage_platform_llamacpp.binding import Context, Floats, Vocabulary
    from cardcage_sdk.chat import Sampling

__all__ = ["Candidates", "Constraint", "Grammar", "Sampler", "token_logprob"]

TEMPERATURE, TOP_K, TOP_P, MIN_P, REPEAT_LAST_N = 0.8, 40, 0.95, 0.05, 64
"""llama.cpp's own defaults, for what neither request nor configuration says."""

_LOGPROB_FLOOR = -9999.0

MAX_GRAMMAR_CHARS = 256_000
MAX_GRAMMAR_NESTING = 64
"""llama.cpp's grammar parser recurses once for each parenthesis, on the C stack."""

MAX_GRAMMAR_REPETITIONS = 2000
"""Each repetition of `{n,m}` becomes rules of its own, and so does each of those inside it."""

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]')
_REPETITION = re.compile(r"\{\s*(\d+)?\s*(?:,\s*(\d+)?\s*)?\}")

_TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """The array of candidates that llama.cpp's samplers work on; one for the engine, filled anew for each use."""

    def __init__(self, vocabulary_size: int) -> None:
        self._ids = np.arange(vocabulary_size, dtype=np.int32)
        self._data = np.zeros(vocabulary_size, dtype=_TOKEN_DATA)
        self.struct = lib.llama_token_data_array()
        self._pointer = self._data.ctypes.data_as(lib.llama_token_data_p)

    def fill(self, logits: Floats) -> None:
        """Take all tokens."""
        self._data["id"] = self._ids
        self._data["logit"] = logits
        self._reset(len(logits))

    def fill_one(self, token: int) -> None:
        """Take one token, of logit 0."""
        self._data[0] = (token, 0.0, 0.0)
        self._reset(1)

    def rule_out(self, forbidden: npt.NDArray[np.bool_]) -> None:
        """Give tokens a logit of minus infinity; shape (vocabulary,), and only after `fill`."""
        self._data["logit"][forbidden] = -np.inf

    def _reset(self, size: int) -> None:
        self.struct.data = self._pointer
        self.struct.size = size
        self.struct.selected = -1
        self.struct.sorted = False

    @property
    def first_is_possible(self) -> bool:
        """Whether the first candidate was not ruled out."""
        return bool(self._data["logit"][0] > -np.inf)

    @property
    def best(self) -> int | None:
        """The most likely candidate, or None where all were ruled out."""
        size = int(self.struct.size)
        index = int(self._data["logit"][:size].argmax())
        return int(self._data["id"][index]) if self._data["logit"][index] > -np.inf else None

    @property
    def selected(self) -> int | None:
        """The candidate that the chain selected, or None where all were ruled out."""
        index = int(self.struct.selected)
        if not 0 <= index < int(self.struct.size) or not self._data["logit"][index] > -np.inf:
            return None
        return int(self._data["id"][index])


class Constraint(Protocol):
    """What binds one answer: llama.cpp's grammar for a client's GBNF, llguidance's parser for everything else."""

    @property
    def is_complete(self) -> bool:
        """Nothing can follow but the end."""

    def allows(self, token: int, candidates: Candidates) -> bool:
        """Whether this token may come next; an end token where the answer may end."""

    def rule_out(self, candidates: Candidates) -> None:
        """Give every token that may not come next a logit of minus infinity."""

    def accept(self, token: int) -> None:
        """Go on by a token that may come next."""

    def close(self) -> None:
        """Free it."""


class Grammar:
    """A client's GBNF, compiled, and how far one answer has come in it."""

    is_complete = False
    """llama.cpp does not tell; the end token is then the only candidate."""

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        """Compile.

        Raises:
            InvalidSchemaError: Not a grammar, without `root`, left-recursive or out of bounds.
        """
        if len(text) > MAX_GRAMMAR_CHARS:
            raise InvalidSchemaError(
                f"The grammar is longer than {MAX_GRAMMAR_CHARS} characters", param="response_format"
            )
        if not text.strip():
            raise InvalidSchemaError("The grammar is empty", param="response_format")
        if "\0" in text:
            raise InvalidSchemaError("The grammar contains a NUL character", param="response_format")
        if _nesting(text) > MAX_GRAMMAR_NESTING:
            raise InvalidSchemaError(
                f"The grammar nests parentheses more than {MAX_GRAMMAR_NESTING} deep", param="response_format"
            )
        if _most_repetitions(text) > MAX_GRAMMAR_REPETITIONS:
            raise InvalidSchemaError(
                f"The grammar repeats something more than {MAX_GRAMMAR_REPETITIONS} times", param="response_format"
            )
        self._handle = lib.llama_sampler_init_grammar(vocabulary.handle, text.encode("utf-8", "replace"), b"root")
        # NULL here is llama.cpp's only sign of a bad grammar, and NULL in a chain ends the process.
        if not self._handle:
            raise InvalidSchemaError("llama.cpp cannot compile the grammar", param="response_format")

    def allows(self, token: int, candidates: Candidates) -> bool:
        """Whether this token may come next."""
        candidates.fill_one(token)
        lib.llama_sampler_apply(self._handle, ctypes.byref(candidates.struct))
        return candidates.first_is_possible

    def rule_out(self, candidates: Candidates) -> None:
        """Give every token that may not come next a logit of minus infinity."""
        lib.llama_sampler_apply(self._handle, ctypes.byref(candidates.struct))

    def accept(self, token: int) -> None:
        """Go on by a token that `allows` or `rule_out` left possible; any other ends the process."""
        lib.llama_sampler_accept(self._handle, token)

    def close(self) -> None:
        """Free it."""
        if self._handle:
            lib.llama_sampler_free(self._handle)
            self._handle = None


def _most_repetitions(text: str) -> int:
    counts = (
        int(count[:9]) for match in _REPETITION.finditer(_QUOTED.sub("", text)) for count in match.groups() if count
    )
    return max(counts, default=0)


def _nesting(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif character == ")":
            depth -= 1
    return deepest


class Sampler:
    """How one sequence chooses, with its own random numbers and its own memory for penalties."""

    def __init__(
        self,
        sampling: Sampling,
        vocabulary: Vocabulary,
        *,
        choice: int,
        context_tokens: int,
        grammar: Constraint | None = None,
    ) -> None:
        """Build the chain.

        Raises:
            InvalidRequestError: A bias for a token that does not exist, or a penalty out of range.
        """
        self._greedy = sampling.temperature is not None and sampling.temperature <= 0
        self.grammar = grammar
        self.grammar_active = grammar is not None
        self._chain: Any = None
        early = self._early_stages(sampling, vocabulary, context_tokens)
        # With nothing that changes their order, the best of the logits is the best of the candidates.
        self._argmax = self._greedy and not early
        if self._argmax:
            return
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for stage in early:
            lib.llama_sampler_chain_add(self._chain, stage)
        if self._greedy:
            lib.llama_sampler_chain_add(self._chain, lib.llama_sampler_init_greedy())
        else:
            for stage in _late_stages(sampling, choice):
                lib.llama_sampler_chain_add(self._chain, stage)

    def _early_stages(self, sampling: Sampling, vocabulary: Vocabulary, context_tokens: int) -> list[Any]:
        stages: list[Any] = []
        self._penalised_tokens = 0
        if sampling.logit_bias:
            stages.append(_bias(sampling.logit_bias, vocabulary))
        repeat = 1.0 if sampling.repeat_penalty is None else sampling.repeat_penalty
        frequency = sampling.frequency_penalty or 0.0
        presence = sampling.presence_penalty or 0.0
        if not repeat > 0:
            raise InvalidRequestError("repeat_penalty must be greater than 0", param="repeat_penalty")
        last = REPEAT_LAST_N if sampling.repeat_last_n is None else sampling.repeat_last_n
        last = context_tokens if last < 0 else min(last, context_tokens)
        if last and (repeat != 1.0 or frequency or presence):
            self._penalised_tokens = last
            stages.append(lib.llama_sampler_init_penalties(vocabulary.size, last, repeat, frequency, presence))
        return stages

    def remember(self, prompt: list[int]) -> None:
        """Let penalties see the end of the prompt."""
        if self._penalised_tokens:
            for token in prompt[-self._penalised_tokens :]:
                lib.llama_sampler_accept(self._chain, token)

    def next(self, context: Context, row: int, candidates: Candidates) -> int | None:
        """Choose from a row's logits; None where the grammar leaves nothing to say."""
        grammar = self.grammar if self.grammar_active else None
        logits = context.logits(row)
        if grammar is None:
            if self._argmax:
                return int(logits.argmax())
            return int(lib.llama_sampler_sample(self._chain, context.handle, row))
        token = self._choose(logits, candidates)
        if token is None or not grammar.allows(token, candidates):
            candidates.fill(logits)
            grammar.rule_out(candidates)
            token = self._select(candidates)
            if token is None:
                return None
        return token

    def accept(self, token: int) -> None:
        """Tell grammar and penalties what was chosen; not for end tokens."""
        if self.grammar is not None and self.grammar_active:
            self.grammar.accept(token)
            # llama_sampler_sample has told the chain already, but it is not what ran under a grammar.
            if self._penalised_tokens:
                lib.llama_sampler_accept(self._chain, token)

    @property
    def is_complete(self) -> bool:
        """The answer's form lets nothing follow."""
        return self.grammar is not None and self.grammar_active and self.grammar.is_complete

    def _choose(self, logits: Floats, candidates: Candidates) -> int | None:
        if self._argmax:
            return int(logits.argmax())
        candidates.fill(logits)
        return self._select(candidates)

    def _select(self, candidates: Candidates) -> int | None:
        if self._argmax:
            return candidates.best
        if candidates.best is None:
            return None
        lib.llama_sampler_apply(self._chain, ctypes.byref(candidates.struct))
        return candidates.selected

    def close(self) -> None:
        """Free chain and grammar."""
        if self._chain:
            lib.llama_sampler_free(self._chain)
            self._chain = None
        if self.grammar is not None:
            self.grammar.close()
            self.grammar = None


def _late_stages(sampling: Sampling, choice: int) -> list[Any]:
    top_k = TOP_K if sampling.top_k is None else sampling.top_k
    top_p = TOP_P if sampling.top_p is None else sampling.top_p
    min_p = MIN_P if sampling.min_p is None else sampling.min_p
    temperature = TEMPERATURE if sampling.temperature is None else sampling.temperature
    stages: list[Any] = []
    if top_k > 0:
        stages.append(lib.llama_sampler_init_top_k(min(top_k, 2**31 - 1)))
    if top_p < 1:
        stages.append(lib.llama_sampler_init_top_p(max(top_p, 0.0), 1))
    if min_p > 0:
        stages.append(lib.llama_sampler_init_min_p(min_p, 1))
    stages.append(lib.llama_sampler_init_temp(temperature))
    # 0xFFFFFFFF would mean a random seed to llama.cpp.
    seed = secrets.randbelow(0xFFFFFFFF) if sampling.seed is None else (sampling.seed + choice) % 0xFFFFFFFF
    stages.append(lib.llama_sampler_init_dist(seed))
    return stages


def _bias(bias: Mapping[int, float], vocabulary: Vocabulary) -> Any:
    array = (lib.llama_logit_bias * len(bias))()
    for entry, (token, value) in zip(array, bias.items(), strict=True):
        if not 0 <= token < vocabulary.size:
            raise InvalidRequestError(
                f"logit_bias names token {token}, but the model has {vocabulary.size} tokens", param="logit_bias"
            )
        entry.token = token
        # -100 and 100 mean "never" and "always" to the clients that send them.
        entry.bias = -np.inf if value <= -100 else value
    return lib.llama_sampler_init_logit_bias(vocabulary.size, len(bias), array)


def token_logprob(logits: Floats, token: int, count: int, vocabulary: Vocabulary) -> TokenLogprob:
    """Log-probabilities of the model itself, before temperature and truncation."""
    top = float(logits.max())
    normaliser = top + float(np.log(np.exp(logits - top).sum()))

    def one(index: int) -> tuple[str, int, float, bytes]:
        data = vocabulary.pieces[index] or vocabulary.text(index).encode()
        logprob = float(logits[index]) - normaliser
        return data.decode("utf-8", "replace"), index, max(logprob, _LOGPROB_FLOOR), data

    alternatives: list[int] = []
    if count:
        best = np.argpartition(logits, -count)[-count:]
        alternatives = [int(index) for index in best[np.argsort(-logits[best], kind="stable")]]
    text, token_id, logprob, data = one(token)
    return TokenLogprob(
        token=text,
        token_id=token_id,
        logprob=logprob,
        data=data,
        top=tuple(
            TopLogprob(token=text, token_id=token_id, logprob=logprob, data=data)
            for text, token_id, logprob, data in map(one, alternatives)
        ),
    )
