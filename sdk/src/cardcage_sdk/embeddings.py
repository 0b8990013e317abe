"""Embedding and rerank requests and results in neutral form."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EmbedRequest", "EmbedResult", "RerankRequest", "RerankResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts to turn into vectors.

    Attributes:
        inputs: One entry a vector, each a text or a list of token ids.
        dimensions: Cut each vector to its first so many components and normalise again; None keeps all.
        normalize: L2-normalise the vectors.
        truncate: Cut an input that is too long instead of refusing it.
    """

    id: str
    model: str
    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    normalize: bool = True
    truncate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedResult:
    """Vectors in the order of the inputs.

    Attributes:
        vectors: float32, little-endian, C order, shape (len(inputs), dimensions). Every component is finite.
        prompt_tokens: Tokens of each input.
    """

    vectors: bytes
    dimensions: int
    prompt_tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankRequest:
    """Documents to score against a query."""

    id: str
    model: str
    query: str
    documents: tuple[str, ...]
    truncate: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankResult:
    """Scores in the order of the documents; higher is more relevant. Every score is finite."""

    scores: tuple[float, ...]
    prompt_tokens: int
