from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardcage_platform_onnx.pooling import bad_rows, cut, normalise, pool
from cardcage_platform_onnx.rerank import check_labels, scores_of
from cardcage_platform_onnx.selftest import check_scores, check_vectors
from cardcage_sdk.errors import UnsupportedModelError

MASK = np.array([[1, 1, 1], [1, 0, 0]], dtype=np.int64)
TOKENS = np.array([[[1, 0], [2, 1], [3, 2]], [[5, 5], [np.nan, np.inf], [7, 7]]], dtype=np.float32)


def test_each_way_of_pooling() -> None:
    clean = np.nan_to_num(TOKENS, nan=99.0, posinf=99.0)
    assert pool(clean, MASK, "mean").tolist() == [[2, 1], [5, 5]]
    assert pool(clean, MASK, "cls").tolist() == [[1, 0], [5, 5]]
    assert pool(clean, MASK, "last").tolist() == [[3, 2], [5, 5]]
    assert pool(clean[:, 0], MASK, "none").tolist() == [[1, 0], [5, 5]]


@given(length=st.integers(1, 40), padding=st.integers(0, 20), seed=st.integers(0, 1000))
def test_padding_does_not_change_a_vector(length, padding, seed) -> None:
    numbers = np.random.default_rng(seed)
    tokens = numbers.normal(size=(1, length, 6)).astype(np.float32)
    mask = np.ones((1, length), dtype=np.int64)
    wide = np.concatenate([tokens, numbers.normal(size=(1, padding, 6)).astype(np.float32)], axis=1)
    wide_mask = np.concatenate([mask, np.zeros((1, padding), dtype=np.int64)], axis=1)
    for pooling in ("mean", "cls", "last"):
        np.testing.assert_allclose(pool(wide, wide_mask, pooling), pool(tokens, mask, pooling), atol=1e-6)


def test_normalised_rows_have_length_one_even_where_squares_overflow() -> None:
    vectors = np.array([[3e30, 4e30], [3e-30, 4e-30], [0, 0]], dtype=np.float32)
    unit = normalise(vectors)
    np.testing.assert_allclose(unit[0], [0.6, 0.8], rtol=1e-6)
    assert np.isfinite(unit).all()
    assert unit[2].tolist() == [0, 0]
    assert unit.dtype == np.float32


def test_bad_rows_are_named_with_what_is_wrong() -> None:
    vectors = np.array([[1, 2], [np.nan, 1], [0, 0], [np.inf, 1], [1e-20, 0]], dtype=np.float32)
    found = bad_rows(vectors)
    assert sorted(found) == [1, 2, 3, 4]
    assert "NaN" in found[1]
    assert "zero" in found[2]
    assert "infinity" in found[3]


def test_cut() -> None:
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert cut(vectors, None) is vectors
    assert cut(vectors, 2).tolist() == [[0, 1], [3, 4]]


@pytest.mark.parametrize("logit", [-1e5, -20.0, -1.0, 0.0, 1.0, 20.0, 1e5])
def test_scores_are_probabilities_at_both_ends(logit) -> None:
    one = np.array([[logit]], dtype=np.float32)
    (score,) = scores_of(one, "sigmoid")
    assert 0.0 <= score <= 1.0
    assert score == pytest.approx(1 / (1 + np.exp(-np.clip(logit, -700, 700))), abs=1e-9)
    assert scores_of(one, "logit") == [pytest.approx(logit)]


def test_two_labels_mean_the_probability_of_the_second() -> None:
    logits = np.array([[0.0, 2.0], [2.0, 0.0]], dtype=np.float32)
    softmax = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert scores_of(logits, "sigmoid") == pytest.approx(softmax[:, 1].tolist(), abs=1e-6)


def test_a_classifier_of_three_labels_is_no_reranker() -> None:
    check_labels(1)
    check_labels(2)
    check_labels(None)
    with pytest.raises(UnsupportedModelError, match="3 labels"):
        check_labels(3)


def unit(*values: float) -> np.ndarray:
    return normalise(np.array([values], dtype=np.float32))[0]


def test_the_self_test_tells_a_good_model_from_bad_ones() -> None:
    good = [unit(1, 0), unit(0.2, 1)]
    verdict = check_vectors(good, np.stack(good))
    assert not verdict.depends_on_batch
    assert verdict.unlike_cosine == pytest.approx(0.196, abs=0.01)
    assert check_vectors(good, np.stack([unit(1, 0.05), good[1]])).depends_on_batch
    with pytest.raises(UnsupportedModelError, match="unlike sentences"):
        check_vectors([unit(1, 0), unit(1, 0.01)], np.stack([unit(1, 0), unit(1, 0.01)]))
    with pytest.raises(UnsupportedModelError, match="NaN"):
        check_vectors([np.array([np.nan, 1], np.float32), good[1]], np.stack(good))
    with pytest.raises(UnsupportedModelError, match="zeros"):
        check_vectors([np.zeros(2, np.float32), good[1]], np.stack(good))


def test_the_self_test_of_rerankers() -> None:
    assert check_scores([0.9, 0.1])
    assert not check_scores([0.1, 0.9])
    for bad in ([0.5, 0.5], [float("nan"), 0.1]):
        with pytest.raises(UnsupportedModelError):
            check_scores(bad)
