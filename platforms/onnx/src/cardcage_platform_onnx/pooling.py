"""From token vectors to one vector a text, and the guards on what leaves the engine. Pure numpy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from cardcage_platform_onnx.session import Matrix

__all__ = ["Pooling", "bad_rows", "cut", "normalise", "pool"]

Pooling: TypeAlias = Literal["mean", "cls", "last", "none"]

SMALLEST_NORM = 1e-12


def pool(tokens: Matrix, mask: npt.NDArray[np.int64], pooling: Pooling) -> Matrix:
    """One vector a row.

    Args:
        tokens: float32, shape (batch, length, width); (batch, width) with `none`.
        mask: int64, shape (batch, length); 1 for tokens, 0 for the padding on the right. Every row has a token.
        pooling: How.

    Returns:
        float32, shape (batch, width).
    """
    if pooling == "none":
        return tokens
    if pooling == "cls":
        return np.asarray(tokens[:, 0], dtype=np.float32)
    if pooling == "last":
        return np.asarray(tokens[np.arange(len(tokens)), mask.sum(axis=1) - 1], dtype=np.float32)
    # As a matrix product, which reads the tokens once; padding has weight 0, whatever stands there.
    weights = (mask / mask.sum(axis=1, keepdims=True)).astype(np.float32)
    return np.asarray(np.matmul(weights[:, None, :], tokens)[:, 0], dtype=np.float32)


def cut(vectors: Matrix, dimensions: int | None) -> Matrix:
    """The first so many components of each vector."""
    return vectors if dimensions is None else vectors[:, :dimensions]


def normalise(vectors: Matrix) -> Matrix:
    """Each row with length 1; a row of length 0 stays as it is, for `bad_rows` to find."""
    return np.asarray(vectors / np.maximum(_norms(vectors), SMALLEST_NORM)[:, None], dtype=np.float32)


def bad_rows(vectors: Matrix) -> dict[int, str]:
    """Rows that must not reach a client, with what is wrong: a number that is none, or a direction that is none."""
    found: dict[int, str] = {}
    for row, vector in enumerate(vectors):
        if not np.isfinite(vector).all():
            found[row] = "the model gave a vector with NaN or infinity"
        elif _norms(vector[None])[0] < SMALLEST_NORM:
            found[row] = "the model gave a zero vector"
    return found


def _norms(vectors: Matrix) -> npt.NDArray[np.float64]:
    """Lengths of the rows, summed in float64 so that no square overflows."""
    return np.asarray(np.sqrt(np.sum(vectors.astype(np.float64) ** 2, axis=1)), dtype=np.float64)
