from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cardcage_platform_llamacpp.chunks import FEWEST_ROWS, UNIT_ROWS, ChunkPacer


def pacer(step_seconds: float = 0.15) -> ChunkPacer:
    return ChunkPacer(step_seconds=step_seconds, most=512, most_shared=128)


def test_begins_carefully() -> None:
    assert pacer().rows(shared=False) == 128
    assert ChunkPacer(step_seconds=1, most=64, most_shared=32).rows(shared=True) == 32


def test_follows_the_machine() -> None:
    """At each speed the chunks settle at the wanted time, whatever the speed was before."""
    subject = pacer()
    for rows_per_second in (2000.0, 300.0, 1000.0, 100_000.0):
        for _ in range(8):
            rows = subject.rows(shared=False)
            subject.measured(rows, rows / rows_per_second)
        rows = subject.rows(shared=False)
        wanted = min(0.15 * rows_per_second, 512)
        assert wanted * 0.9 - UNIT_ROWS <= rows <= wanted * 1.1


def test_a_slow_model_computes_less_than_a_unit() -> None:
    subject = pacer()
    for rows_per_second, rows in ((100, 32), (20, 20), (1, 8), (20, 20), (1000, 128)):
        for _ in range(12):
            subject.measured(subject.rows(shared=False), subject.rows(shared=False) / rows_per_second)
        assert abs(subject.rows(shared=False) - rows) <= 1


def test_shared_steps_are_shorter() -> None:
    subject = pacer()
    subject.measured(512, 512 / 1000)
    assert subject.rows(shared=False) == 128
    assert subject.rows(shared=True) == 64
    subject.measured(512, 512 / 100_000)
    assert subject.rows(shared=False) == 512
    assert subject.rows(shared=True) == 128


def test_steps_of_single_tokens_say_nothing() -> None:
    subject = pacer()
    subject.measured(512, 0.5)
    before = subject.rows(shared=False)
    for _ in range(50):
        subject.measured(4, 0.1)
    assert subject.rows(shared=False) == before


@given(st.lists(st.tuples(st.integers(0, 8192), st.floats(0, 1e6)), max_size=20), st.booleans())
def test_always_gets_on_and_never_over_the_bound(steps: list[tuple[int, float]], shared: bool) -> None:
    subject = pacer()
    for rows, seconds in steps:
        subject.measured(rows, seconds)
    assert FEWEST_ROWS <= subject.rows(shared=shared) <= (128 if shared else 512)
