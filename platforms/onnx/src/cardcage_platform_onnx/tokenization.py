"""From texts to token ids, with the model's own tokenizer. Worker only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from tokenizers import Tokenizer

from cardcage_sdk.errors import ContextLengthExceededError, InvalidModelError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

__all__ = ["Encoded", "TextTokenizer", "Truncation", "input_param"]

Truncation = Literal["error", "end", "start"]

MAX_CHARACTERS = 1 << 20
"""A longer text is refused, or cut to this before it is tokenised, so that one text cannot hold up a step for seconds."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One text, or one pair of texts, as the model reads it.

    Attributes:
        ids: int32, shape (length,).
        types: uint8, the same shape, or None where all are 0.
    """

    ids: npt.NDArray[np.int32]
    types: npt.NDArray[np.uint8] | None = None


class TextTokenizer:
    """The tokenizer of one model. Used by one thread.

    Whatever padding and truncation `tokenizer.json` has baked in is switched off: MiniLM's pads everything to 128 tokens and
    cuts at 128 though the model takes 256. Special tokens written out in a text are text here, not control.
    """

    def __init__(self, path: Path, *, max_tokens: int) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # tokenizers raises plain Exception for every malformed file
            raise InvalidModelError(f"'{path}' is no tokenizer: {error}", param="model_path") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        self.max_tokens = max_tokens
        self.vocabulary_size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        padding = self._tokenizer.token_to_id("[PAD]")
        self.padding_id: int = padding if padding is not None else (self._tokenizer.token_to_id("<pad>") or 0)

    def texts(self, texts: Sequence[str], *, truncation: Truncation, first: int, of: int) -> list[Encoded]:
        """Tokenise some inputs of a request.

        Args:
            texts: The texts, prefix included.
            truncation: What happens to one that is too long.
            first: Place of the first of them among the request's inputs, for messages.
            of: How many inputs the request has in all.

        Raises:
            ContextLengthExceededError: A text is too long and must not be cut; `param` says which.
            InvalidRequestError: A text gives no token at all.
        """
        pieces = [self.bounded(text, truncation, input_param(first + i, of)) for i, text in enumerate(texts)]
        encodings = self._tokenizer.encode_batch_fast(pieces)
        too_long = [i for i, encoding in enumerate(encodings) if len(encoding.ids) > self.max_tokens]
        if too_long:
            if truncation == "error":
                raise ContextLengthExceededError(
                    prompt_tokens=len(encodings[too_long[0]].ids),
                    context_tokens=self.max_tokens,
                    param=input_param(first + too_long[0], of),
                )
            direction = "right" if truncation == "end" else "left"
            self._tokenizer.enable_truncation(self.max_tokens, direction=direction)
            try:
                for place, encoding in zip(
                    too_long, self._tokenizer.encode_batch_fast([pieces[i] for i in too_long]), strict=True
                ):
                    encodings[place] = encoding
            finally:
                self._tokenizer.no_truncation()
        for i, encoding in enumerate(encodings):
            if not encoding.ids:
                raise InvalidRequestError(
                    "An input is empty and this model has no vector for nothing", param=input_param(first + i, of)
                )
        return [_encoded(encoding) for encoding in encodings]

    def token_ids(self, ids: Sequence[int], *, truncation: Truncation, index: int, of: int) -> Encoded:
        """Take token ids as they are: they must be of this model's own tokenizer, special tokens included.

        Raises:
            ContextLengthExceededError: Too many, and they must not be cut.
            InvalidRequestError: None at all, or one that the vocabulary does not have.
        """
        param = input_param(index, of)
        if not ids:
            raise InvalidRequestError("An input has no tokens", param=param)
        for token in ids:
            if not 0 <= token < self.vocabulary_size:
                raise InvalidRequestError(
                    f"Token id {token} is outside this model's vocabulary of {self.vocabulary_size}; ids of another "
                    "model's tokenizer mean something else here, so send the text",
                    param=param,
                )
        if len(ids) > self.max_tokens:
            if truncation == "error":
                raise ContextLengthExceededError(prompt_tokens=len(ids), context_tokens=self.max_tokens, param=param)
            ids = ids[: self.max_tokens] if truncation == "end" else ids[-self.max_tokens :]
        return Encoded(np.asarray(ids, dtype=np.int32))

    def pairs(self, query: str, documents: Sequence[str], *, truncate: bool, first: int) -> list[Encoded]:
        """Tokenise a query with each of some documents; only documents are cut.

        Raises:
            ContextLengthExceededError: A pair is too long and must not be cut, or the query alone fills the model.
        """
        query = self.bounded(query, "error", "query")
        rule: Truncation = "end" if truncate else "error"
        pieces = [self.bounded(text, rule, f"documents[{first + i}]") for i, text in enumerate(documents)]
        encodings = self._tokenizer.encode_batch_fast([(query, text) for text in pieces])
        too_long = [i for i, encoding in enumerate(encodings) if len(encoding.ids) > self.max_tokens]
        if too_long:
            if not truncate:
                raise ContextLengthExceededError(
                    prompt_tokens=len(encodings[too_long[0]].ids),
                    context_tokens=self.max_tokens,
                    param=f"documents[{first + too_long[0]}]",
                )
            query_tokens = len(self._tokenizer.encode(query).ids)
            if query_tokens >= self.max_tokens:
                raise ContextLengthExceededError(
                    prompt_tokens=query_tokens, context_tokens=self.max_tokens, param="query"
                )
            self._tokenizer.enable_truncation(self.max_tokens, strategy="only_second")
            try:
                cut = self._tokenizer.encode_batch_fast([(query, pieces[i]) for i in too_long])
            finally:
                self._tokenizer.no_truncation()
            for place, encoding in zip(too_long, cut, strict=True):
                encodings[place] = encoding
        return [_encoded(encoding) for encoding in encodings]

    def bounded(self, text: str, truncation: Truncation, param: str) -> str:
        """A text of at most `MAX_CHARACTERS`, cut where that is allowed.

        Raises:
            InvalidRequestError: It is longer and must not be cut.
        """
        if len(text) <= MAX_CHARACTERS:
            return text
        if truncation == "error":
            raise InvalidRequestError(
                f"A text has {len(text)} characters, more than the {MAX_CHARACTERS} that are taken", param=param
            )
        return text[:MAX_CHARACTERS] if truncation == "end" else text[-MAX_CHARACTERS:]


def input_param(index: int, of: int) -> str:
    """How messages name one of a request's inputs."""
    return "input" if of == 1 else f"input[{index}]"


def _encoded(encoding: object) -> Encoded:
    ids = np.asarray(encoding.ids, dtype=np.int32)  # type: ignore[attr-defined]  # tokenizers' Encoding has no type
    types = np.asarray(encoding.type_ids, dtype=np.uint8)  # type: ignore[attr-defined]
    return Encoded(ids, types if types.any() else None)
