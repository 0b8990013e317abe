from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardcage_platform_llamacpp.slots import MIN_COPY_GAIN, MIN_WAIT_GAIN, Occupant, Placement, SlotTable, common_prefix


def tokens(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def run_of(start: int, count: int) -> np.ndarray:
    return np.arange(start, start + count, dtype=np.int32)


def put(table: SlotTable, prompt: np.ndarray, *, computed: int | None = None) -> Placement:
    """Place a prompt that must find a slot, and let it have computed so many tokens."""
    placement = table.place(prompt, reuse=True)
    assert placement is not None
    occupant = Occupant(prompt, len(prompt))
    table.occupy(placement, occupant)
    occupant.computed = len(prompt) if computed is None else computed
    return placement


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_prefix_is_what_a_plain_loop_finds(left: list[int], right: list[int]) -> None:
    expected = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        expected += 1
    assert common_prefix(tokens(*left), tokens(*right)) == expected


def test_a_conversation_goes_on_where_it_stopped() -> None:
    table = SlotTable(4, can_reuse=True)
    first = put(table, run_of(0, 50))
    table.release(first.slot)
    other = put(table, run_of(1000, 50))
    table.release(other.slot)
    placement = table.place(run_of(0, 60), reuse=True)
    assert placement is not None
    assert placement.slot is first.slot
    assert placement.keep == 50
    assert placement.source is None
    assert other.slot is not first.slot, "an unrelated prompt must not spoil a conversation while others are empty"


def test_the_last_token_is_never_kept() -> None:
    table = SlotTable(1, can_reuse=True)
    table.release(put(table, run_of(0, 50)).slot)
    placement = table.place(run_of(0, 50), reuse=True)
    assert placement is not None
    assert placement.keep == 49


def test_ids_in_use_stay_consecutive_with_holes_filled_first() -> None:
    table = SlotTable(8, can_reuse=True)
    placed = [put(table, run_of(1000 * index, 20)) for index in range(4)]
    low = min(placement.slot.index for placement in placed)
    assert sorted(placement.slot.index for placement in placed) == list(range(low, low + 4))
    hole = placed[1].slot if placed[1].slot.index not in {low, low + 3} else placed[2].slot
    table.release(hole)
    assert put(table, run_of(9000, 20)).slot is hole


def test_a_busy_slot_is_copied_from_when_that_saves_enough() -> None:
    table = SlotTable(4, can_reuse=True)
    busy = put(table, run_of(0, 200))
    prompt = np.concatenate([run_of(0, MIN_COPY_GAIN + 10), run_of(5000, 20)])
    placement = table.place(prompt, reuse=True)
    assert placement is not None
    assert placement.source is busy.slot
    assert placement.keep == MIN_COPY_GAIN + 10
    short = np.concatenate([run_of(0, MIN_COPY_GAIN - 1), run_of(5000, 20)])
    placement = table.place(short, reuse=True)
    assert placement is not None
    assert placement.source is None
    assert placement.keep == 0


def test_a_burst_with_one_beginning_waits_for_the_first_of_it() -> None:
    table = SlotTable(4, can_reuse=True)
    shared = MIN_WAIT_GAIN + 50
    first = put(table, np.concatenate([run_of(0, shared), tokens(7001)]), computed=0)
    second = np.concatenate([run_of(0, shared), tokens(7002)])
    assert table.place(second, reuse=True) is None
    assert first.slot.occupant is not None
    first.slot.occupant.computed = shared
    placement = table.place(second, reuse=True)
    assert placement is not None
    assert placement.source is first.slot
    assert placement.keep == shared


def test_a_burst_does_not_wait_for_one_that_left() -> None:
    table = SlotTable(4, can_reuse=True)
    first = put(table, run_of(0, 200), computed=0)
    assert table.place(run_of(0, 201), reuse=True) is None
    table.release(first.slot)
    placement = table.place(run_of(0, 201), reuse=True)
    assert placement is not None
    assert placement.keep == 0


@pytest.mark.parametrize("case", ["request says no", "model cannot"])
def test_nothing_is_reused_or_waited_for_where_it_must_not(case: str) -> None:
    table = SlotTable(2, can_reuse=case != "model cannot")
    put(table, run_of(0, 200), computed=0 if case == "request says no" else 200)
    placement = table.place(run_of(0, 200), reuse=case != "request says no")
    assert placement is not None
    assert placement.keep == 0
    assert placement.source is None


def test_no_free_slot_means_wait() -> None:
    table = SlotTable(1, can_reuse=True)
    put(table, run_of(0, 5))
    assert table.place(run_of(100, 5), reuse=True) is None


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(0, 3), st.integers(2, 80)), max_size=40))
def test_any_history_keeps_what_is_held_true(history: list[tuple[bool, int, int, int]]) -> None:
    """What a placement keeps is a beginning that some stream really holds, whatever came and went."""
    table = SlotTable(4, can_reuse=True)
    for arrives, index, family, length in history:
        if not arrives:
            table.release(table.slots[index % 4])
            continue
        prompt = run_of(1000 * family, length)
        placement = table.place(prompt, reuse=True)
        if placement is None:
            continue
        assert placement.slot.occupant is None
        source = placement.source or placement.slot
        assert placement.keep < length
        assert (source.held[: placement.keep] == prompt[: placement.keep]).all()
        assert len(source.held) >= placement.keep
        occupant = Occupant(prompt, length)
        table.occupy(placement, occupant)
        occupant.computed = length
        used = [slot.index for slot in table.occupied]
        assert placement.keep >= 0
        assert used == sorted(used)
