"""What is checked of an encoder at load: that unlike texts come out unlike, and whether texts affect each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cardcage_sdk.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardcage_platform_onnx.session import Matrix

__all__ = ["DOCUMENTS", "QUERY", "SENTENCES", "EmbedVerdict", "check_scores", "check_vectors"]

SENTENCES = (
    "The harbour was closed for two days because of the storm, and no ship could leave.",
    "She multiplied both sides of the equation by seven.",
)
QUERY = "When do ships sail again?"
DOCUMENTS = ("The harbour opens again on Monday morning.", "Seven times eight is fifty-six.")

SAME_COSINE = 0.99
"""Unlike sentences with a larger cosine mean the wrong pooling or a broken file. Even raw BERT stays below 0.95."""

BATCH_TOLERANCE = 1e-4
"""1 - cosine between a text's vector alone and in company; float32 gives 1e-7, half precision 1e-6, 8-bit activations 1e-2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedVerdict:
    """What the self-test found.

    Attributes:
        unlike_cosine: Cosine of two unlike sentences.
        depends_on_batch: A text's vector changes with what is computed beside it.
    """

    unlike_cosine: float
    depends_on_batch: bool


def check_vectors(alone: Sequence[Matrix], together: Matrix) -> EmbedVerdict:
    """Compare the vectors of `SENTENCES`.

    Args:
        alone: Each sentence's vector from a run of its own, normalised, shape (width,).
        together: Their vectors from one run, normalised, shape (2, width).

    Raises:
        UnsupportedModelError: The model tells unlike sentences not apart, or gives no vectors at all.
    """
    for vector in (*alone, *together):
        if not np.isfinite(vector).all() or not np.any(vector):
            raise UnsupportedModelError("The model gives a vector of zeros, NaN or infinity for a plain sentence")
    cosine = float(np.dot(alone[0], alone[1]))
    if cosine > SAME_COSINE:
        raise UnsupportedModelError(
            f"The model gives nearly one vector for two unlike sentences (cosine {cosine:.4f}): the pooling is wrong for it, "
            "or the file is broken",
            param="model_path",
        )
    change = max(1.0 - float(np.dot(single, row)) for single, row in zip(alone, together, strict=True))
    return EmbedVerdict(unlike_cosine=cosine, depends_on_batch=change > BATCH_TOLERANCE)


def check_scores(scores: Sequence[float]) -> bool:
    """Compare the scores of `DOCUMENTS` for `QUERY`.

    Returns:
        The document that answers has the higher score.

    Raises:
        UnsupportedModelError: A score is no number, or both are one.
    """
    if not np.isfinite(scores).all() or scores[0] == scores[1]:
        raise UnsupportedModelError(
            f"The model does not tell two unlike documents apart: scores {scores[0]} and {scores[1]}"
        )
    return scores[0] > scores[1]
