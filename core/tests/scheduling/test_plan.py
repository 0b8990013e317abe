"""Plans are pure: carried out on paper, they reach what is wanted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardcage.scheduling.plan import (
    GiveUp,
    ResizeWorker,
    RestartAfter,
    RestartPolicy,
    RetireWorker,
    StartWorker,
    WorkerView,
    next_restart,
    plan_pool,
)

WORKERS = st.lists(
    st.builds(
        WorkerView,
        id=st.integers(1, 1000),
        slots=st.integers(1, 8),
        max_slots=st.integers(8, 16),
        leases=st.integers(0, 8),
        is_retiring=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda worker: worker.id,
)


def carry_out(actions, workers):
    """What the pool looks like once every action has had its effect."""
    state = {worker.id: worker for worker in workers if not worker.is_retiring}
    number = 10_000
    for action in actions:
        match action:
            case StartWorker(slots=slots):
                number += 1
                state[number] = WorkerView(id=number, slots=slots, max_slots=max(slots, 8))
            case RetireWorker(worker_id=worker_id):
                del state[worker_id]
            case ResizeWorker(worker_id=worker_id, slots=slots):
                old = state[worker_id]
                state[worker_id] = WorkerView(id=worker_id, slots=slots, max_slots=old.max_slots, leases=old.leases)
    return list(state.values())


@given(instances=st.integers(0, 12), workers=WORKERS)
def test_processes_reach_what_is_wanted_and_then_rest(instances, workers):
    after = carry_out(plan_pool(unit="process", instances=instances, workers=workers), workers)
    assert len(after) == instances
    assert plan_pool(unit="process", instances=instances, workers=after) == ()


@given(instances=st.integers(0, 12), workers=WORKERS)
def test_slots_reach_what_is_wanted_or_possible_and_then_rest(instances, workers):
    after = carry_out(plan_pool(unit="slots", instances=instances, workers=workers), workers)
    assert len(after) == min(instances, 1)
    if after:
        assert after[0].slots == min(instances, after[0].max_slots)
    assert plan_pool(unit="slots", instances=instances, workers=after) == ()


def test_shrinking_takes_idle_workers_first_then_the_youngest():
    workers = [WorkerView(id=1, leases=2), WorkerView(id=2), WorkerView(id=3, leases=1), WorkerView(id=4)]
    actions = plan_pool(unit="process", instances=1, workers=workers)
    assert [action.worker_id for action in actions] == [4, 2, 3]


def test_retiring_workers_do_not_count():
    workers = [WorkerView(id=1, is_retiring=True), WorkerView(id=2)]
    assert plan_pool(unit="process", instances=2, workers=workers) == (StartWorker(),)


POLICY = RestartPolicy(max_crashes=4, window_seconds=60.0, first_delay_seconds=0.5, max_delay_seconds=1.5)


@pytest.mark.parametrize(
    ("crashed_at", "decision"),
    [
        ([100.0], RestartAfter(seconds=0.0)),
        ([90.0, 100.0], RestartAfter(seconds=0.5)),
        ([80.0, 90.0, 100.0], RestartAfter(seconds=1.0)),
        ([70.0, 80.0, 90.0, 100.0], GiveUp(crashes=4, window_seconds=60.0)),
        ([10.0, 20.0, 30.0, 100.0], RestartAfter(seconds=0.0)),
    ],
)
def test_restarts_wait_longer_and_end(crashed_at, decision):
    assert next_restart(crashed_at, now=100.0, policy=POLICY) == decision


def test_the_wait_is_bounded_however_many_crashes_a_policy_allows():
    policy = RestartPolicy(max_crashes=10**6, max_delay_seconds=30.0)
    assert next_restart([0.0] * 100_000, now=0.0, policy=policy) == RestartAfter(seconds=30.0)
