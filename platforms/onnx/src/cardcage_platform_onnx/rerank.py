"""From a cross-encoder's output to one score a document. Pure numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from cardcage_sdk.errors import UnsupportedModelError

if TYPE_CHECKING:
    from cardcage_platform_onnx.session import Matrix

__all__ = ["Score", "check_labels", "scores_of"]

Score = Literal["sigmoid", "logit"]


def check_labels(width: int | None) -> None:
    """Refuse a classifier that is no reranker.

    Raises:
        UnsupportedModelError: It has more labels than "relevant" or "not relevant, relevant".
    """
    if width is not None and width > 2:
        raise UnsupportedModelError(
            f"The model is a classifier with {width} labels; a reranker has one, or two", param="model_path"
        )


def scores_of(logits: Matrix, score: Score) -> list[float]:
    """One score a row; higher is more relevant.

    Args:
        logits: float32, shape (batch,), (batch, 1) or (batch, 2); of two labels the second means relevant.
        score: `sigmoid` for 0 to 1 (the probability of relevance), `logit` for the model's own number. The order is the
            same.
    """
    values = logits.reshape(len(logits), -1).astype(np.float64)
    logit = values[:, 1] - values[:, 0] if values.shape[1] == 2 else values[:, 0]
    if score == "logit":
        return [float(value) for value in logit]
    # Written so that neither end overflows.
    positive = 1.0 / (1.0 + np.exp(-np.abs(logit)))
    return [float(value) for value in np.where(logit >= 0, positive, 1.0 - positive)]
