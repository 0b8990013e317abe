from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardcage_platform_onnx.batching import RUN_OVERHEAD_TOKENS, Batcher, Item, padded_length
from cardcage_platform_onnx.onnx_header import OnnxHeader, TensorShape
from cardcage_platform_onnx.shapes import fixed_dimensions, padded_lengths
from cardcage_sdk.errors import UnsupportedModelError


def item(request_id: str, index: int, length: int) -> Item:
    return Item(request_id=request_id, index=index, ids=np.zeros(length, dtype=np.int32))


def drain(batcher: Batcher) -> list[list[Item]]:
    batches = []
    while batch := batcher.take():
        batches.append(batch)
    return batches


REQUESTS = st.lists(st.lists(st.integers(1, 300), min_size=1, max_size=30), min_size=1, max_size=8)


@settings(deadline=None)
@given(requests=REQUESTS, budget=st.sampled_from([16, 128, 512, 4096]), lengths=st.sampled_from([(), (32, 128, 300)]))
def test_nothing_is_lost_and_the_budget_holds(requests, budget, lengths) -> None:
    batcher = Batcher(budget_tokens=budget, lengths=lengths)
    sent = [item(f"r{number}", index, n) for number, texts in enumerate(requests) for index, n in enumerate(texts)]
    for one in sent:
        batcher.put(one)
    batches = drain(batcher)
    assert sorted(id(one) for batch in batches for one in batch) == sorted(map(id, sent))
    assert len(batcher) == 0
    for batch in batches:
        width = max(padded_length(one.length, lengths) for one in batch)
        assert len(batch) == 1 or len(batch) * width <= budget


@settings(deadline=None)
@given(requests=REQUESTS)
def test_padding_never_costs_more_than_runs_of_their_own_would(requests) -> None:
    batcher = Batcher(budget_tokens=1 << 20)
    for number, texts in enumerate(requests):
        for index, length in enumerate(texts):
            batcher.put(item(f"r{number}", index, length))
    for batch in drain(batcher):
        real = sum(one.length for one in batch)
        padded = len(batch) * max(one.length for one in batch)
        assert padded <= 1.5 * real + RUN_OVERHEAD_TOKENS * len(batch) * 2


@given(requests=REQUESTS)
def test_every_request_gets_its_turn(requests) -> None:
    """While n requests wait, each gets at least one text into the next n batches."""
    batcher = Batcher(budget_tokens=64)
    for number, texts in enumerate(requests):
        for index, length in enumerate(texts):
            batcher.put(item(f"r{number}", index, length))
    served = {one.request_id for _ in range(len(requests)) for one in batcher.take()}
    assert served == {f"r{number}" for number in range(len(requests))}


def test_texts_of_like_length_go_together() -> None:
    batcher = Batcher(budget_tokens=512)
    for index, length in enumerate([10, 200, 12, 190, 11, 9]):
        batcher.put(item("r", index, length))
    assert [sorted(one.index for one in batch) for batch in drain(batcher)] == [[0, 2, 4, 5], [1, 3]]


def test_one_row_at_a_time() -> None:
    batcher = Batcher(budget_tokens=512, max_rows=1)
    for index in range(5):
        batcher.put(item("r", index, 7))
    assert [len(batch) for batch in drain(batcher)] == [1] * 5


def test_a_text_over_the_budget_runs_alone() -> None:
    batcher = Batcher(budget_tokens=100)
    for index, length in enumerate([300, 299, 40, 40]):
        batcher.put(item("r", index, length))
    assert sorted(sorted(one.index for one in batch) for batch in drain(batcher)) == [[0], [1], [2, 3]]


def test_what_is_dropped_is_gone() -> None:
    batcher = Batcher(budget_tokens=512)
    for index in range(4):
        batcher.put(item("a", index, 8))
        batcher.put(item("b", index, 8))
    batcher.take()
    batcher.put(item("a", 9, 5))
    batcher.drop("a")
    batcher.drop("unknown")
    assert {one.request_id for batch in drain(batcher) for one in batch} <= {"b"}
    assert batcher.waiting("a") == 0


@pytest.mark.parametrize(
    ("length", "allowed", "padded"), [(5, (), 5), (5, (8, 16), 8), (8, (8, 16), 8), (9, (8, 16), 16), (17, (8, 16), 17)]
)
def test_padded_length(length, allowed, padded) -> None:
    assert padded_length(length, allowed) == padded


@pytest.mark.parametrize(
    ("fields", "lengths"),
    [
        ({"fixed": 64, "wanted": (8,), "compiles_shapes": True}, (64,)),
        ({"fixed": None, "wanted": (), "compiles_shapes": False}, ()),
        ({"fixed": None, "wanted": (256, 32), "compiles_shapes": False}, (32, 256)),
        ({"fixed": None, "wanted": (), "compiles_shapes": True}, (16, 32, 64, 128, 200)),
    ],
)
def test_lengths_to_pad_to(fields, lengths) -> None:
    assert padded_lengths(200, **fields) == lengths


@given(max_tokens=st.integers(1, 10_000))
def test_every_text_fits_into_a_compiled_length(max_tokens) -> None:
    lengths = padded_lengths(max_tokens, fixed=None, wanted=(), compiles_shapes=True)
    assert list(lengths) == sorted(set(lengths))
    assert lengths[-1] >= max_tokens


def header(*inputs: TensorShape) -> OnnxHeader:
    return OnnxHeader(
        inputs=inputs, outputs=(), operators=frozenset(), parameter_count=0, weight_bytes=0, int8_elements=0
    )


def test_free_dimensions_are_fixed_by_their_names() -> None:
    ids = TensorShape(name="input_ids", dimensions=(None, None), symbols=("b", "s"))
    mask = TensorShape(name="attention_mask", dimensions=(None, 32), symbols=("b", None))
    past = TensorShape(name="past_key_values.0.key", dimensions=(None, 2, None, 4), symbols=("b", None, "p", None))
    assert fixed_dimensions(header(ids, mask), (4, 32)) == {"b": 4, "s": 32}
    assert fixed_dimensions(header(ids, mask), None) == {}
    with pytest.raises(UnsupportedModelError, match="past_key_values"):
        fixed_dimensions(header(ids, past), (4, 32))
