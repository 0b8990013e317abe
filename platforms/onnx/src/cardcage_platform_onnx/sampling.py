"""What is done to the logits before onnxruntime-genai chooses a token, and what is reported of them. Pure numpy.

Temperature, top-k, top-p and the seed are the runtime's own; it also applies a grammar, after what is done here. So whatever
is ruled out here is only made very unlikely: a grammar may leave nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cardcage_sdk.events import TokenLogprob, TopLogprob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardcage_platform_onnx.vocabulary import Vocabulary
    from cardcage_sdk.chat import Sampling

__all__ = ["LogitAdjuster", "Logits", "search_options", "token_logprob"]

Logits = npt.NDArray[np.float32]

RULED_OUT = np.float32(-1e9)
SMALLEST_LOGPROB = -9999.0
DEFAULT_LAST_N = 64
# The runtime takes a signed 32-bit seed, and a negative one means none.
_SEEDS = 2**31 - 1


def search_options(sampling: Sampling, defaults: Mapping[str, Any], *, choice: int) -> dict[str, Any]:
    """Search options of the runtime; what the request does not say stays as the model's own file has it.

    Args:
        sampling: Of the request.
        defaults: The table `search` of `genai_config.json`.
        choice: Each choice has a seed of its own, derived from the request's.
    """
    options: dict[str, Any] = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0}
    asks_for_chance = any(
        value is not None for value in (sampling.top_p, sampling.top_k, sampling.min_p, sampling.seed)
    )
    chance = bool(defaults.get("do_sample")) or asks_for_chance or choice > 0
    if sampling.temperature is not None:
        chance = sampling.temperature > 0
        if chance:
            options["temperature"] = sampling.temperature
    if sampling.top_p is not None:
        # Some clients send 0 and mean the likeliest token.
        chance = chance and sampling.top_p > 0
        options["top_p"] = sampling.top_p if sampling.top_p > 0 else 1.0
    if sampling.top_k is not None:
        options["top_k"] = max(0, sampling.top_k)
    if sampling.seed is not None:
        options["random_seed"] = (sampling.seed + choice) % _SEEDS
    options["do_sample"] = chance
    return options


@dataclass(slots=True, kw_only=True)
class LogitAdjuster:
    """Penalties, bias and min-p of one sequence, as llama.cpp defines them.

    Attributes:
        last_n: How many of the latest tokens are penalised, those of the prompt included; below 0 all are.
        bias: Token ids and what is added to their logits; None where there is none.
    """

    repeat_penalty: float = 1.0
    last_n: int = DEFAULT_LAST_N
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    min_p: float = 0.0
    bias: tuple[npt.NDArray[np.int64], Logits] | None = field(default=None)

    @classmethod
    def of(cls, sampling: Sampling, *, vocabulary_size: int) -> LogitAdjuster:
        """What a request asks for; a bias on an id outside the vocabulary has nothing to act on."""
        bias = None
        if sampling.logit_bias:
            kept = {token: value for token, value in sampling.logit_bias.items() if 0 <= token < vocabulary_size}
            bias = (np.fromiter(kept.keys(), np.int64), np.fromiter(kept.values(), np.float32))
        return cls(
            repeat_penalty=sampling.repeat_penalty or 1.0,
            last_n=DEFAULT_LAST_N if sampling.repeat_last_n is None else sampling.repeat_last_n,
            frequency_penalty=sampling.frequency_penalty or 0.0,
            presence_penalty=sampling.presence_penalty or 0.0,
            min_p=sampling.min_p or 0.0,
            bias=bias,
        )

    @property
    def is_needed(self) -> bool:
        """There is anything to do."""
        return self.bias is not None or self.min_p > 0 or self._penalises

    @property
    def _penalises(self) -> bool:
        return self.last_n != 0 and (
            self.repeat_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
        )

    def apply(self, logits: Logits, tokens: Sequence[int]) -> Logits:
        """Changed logits of the next token.

        Args:
            logits: float32, shape (vocabulary,); not changed.
            tokens: The sequence so far, prompt and answer.
        """
        changed = logits.copy()
        if self._penalises:
            recent = tokens if self.last_n < 0 else tokens[-self.last_n :]
            ids, counts = np.unique(np.asarray(recent, dtype=np.int64), return_counts=True)
            seen = changed[ids]
            seen = np.where(seen > 0, seen / self.repeat_penalty, seen * self.repeat_penalty)
            changed[ids] = seen - counts * self.frequency_penalty - self.presence_penalty
        if self.bias is not None:
            # -100 is how clients say "never".
            np.add.at(changed, self.bias[0], np.where(self.bias[1] <= -100, RULED_OUT, self.bias[1]))
        if self.min_p > 0:
            changed[changed < changed.max() + math.log(self.min_p)] = RULED_OUT
        return changed


def token_logprob(logits: Logits, token: int, top: int, vocabulary: Vocabulary) -> TokenLogprob:
    """The chosen token's log-probability before any adjustment, with the likeliest alternatives.

    Args:
        logits: float32, shape (vocabulary,).
        token: The one that was chosen.
        top: How many alternatives, 0 to 20.
        vocabulary: Spells the tokens.
    """
    wide = logits.astype(np.float64)
    highest = wide.max()
    total = highest + math.log(np.exp(wide - highest).sum())

    def value(number: int) -> float:
        return max(SMALLEST_LOGPROB, float(wide[number] - total))

    best: list[int] = []
    if top > 0:
        some = np.argpartition(wide, -top)[-top:]
        best = [int(number) for number in some[np.argsort(wide[some])[::-1]]]
    return TokenLogprob(
        token=vocabulary.spelling(token).decode("utf-8", "replace"),
        token_id=token,
        logprob=value(token),
        data=vocabulary.spelling(token),
        top=tuple(
            TopLogprob(
                token=vocabulary.spelling(number).decode("utf-8", "replace"),
                token_id=number,
                logprob=value(number),
                data=vocabulary.spelling(number),
            )
            for number in best
        ),
    )
