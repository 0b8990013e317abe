"""Room, evictions and shares of the cores."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cardcage.scheduling.placement import (
    MemoryNeed,
    MemoryRoom,
    ResidentView,
    choose_evictions,
    memory_need,
    thread_shares,
)
from cardcage_sdk.platform import Device, MemoryEstimate

BYTES = st.integers(0, 100)
NEEDS = st.builds(MemoryNeed, host_bytes=BYTES, device_bytes=BYTES)
ROOMS = st.builds(
    MemoryRoom,
    host_bytes=st.none() | BYTES,
    device_bytes=st.none() | BYTES,
    budget_bytes=st.none() | st.integers(-50, 100),
    models=st.none() | st.integers(-1, 3),
)
RESIDENTS = st.lists(
    st.builds(
        ResidentView,
        id=st.text("abcdefgh", min_size=1, max_size=4),
        need=NEEDS,
        is_pinned=st.booleans(),
        is_busy=st.booleans(),
        last_used_at=st.floats(0, 1000),
        shares_devices=st.booleans(),
    ),
    max_size=6,
    unique_by=lambda resident: resident.id,
)


def resident(name, host_bytes=10, *, used=0.0, **fields):
    return ResidentView(
        id=name,
        need=MemoryNeed(host_bytes=host_bytes),
        is_pinned=fields.pop("is_pinned", False),
        is_busy=fields.pop("is_busy", False),
        last_used_at=used,
        **fields,
    )


def fits(need, room, gone):
    """Whether a load fits once these are gone, by the definition."""
    host = room.host_bytes is None or need.host_bytes <= room.host_bytes + sum(one.need.host_bytes for one in gone)
    shared = sum(one.need.device_bytes for one in gone if one.shares_devices)
    device = room.device_bytes is None or need.device_bytes <= max(0, room.device_bytes) + shared
    total = sum(one.need.total_bytes for one in gone)
    budget = room.budget_bytes is None or need.total_bytes <= room.budget_bytes + total
    models = room.models is None or room.models + len(gone) >= 1
    return host and device and budget and models


@given(need=NEEDS, room=ROOMS, residents=RESIDENTS)
def test_evictions_are_enough_and_touch_neither_pinned_nor_busy(need, room, residents):
    eviction = choose_evictions(need, room, residents)
    by_id = {one.id: one for one in residents}
    gone = [by_id[name] for name in eviction.ids]
    assert not any(one.is_pinned or one.is_busy for one in gone)
    if eviction.fits:
        assert fits(need, room, gone)
        assert [one.last_used_at for one in gone] == sorted(one.last_used_at for one in gone)
    else:
        assert eviction.ids == ()
        assert not fits(need, room, [one for one in residents if not (one.is_pinned or one.is_busy)])
        assert eviction.may_wait == fits(need, room, [one for one in residents if not one.is_pinned])


def test_nothing_goes_where_there_is_room():
    assert choose_evictions(MemoryNeed(host_bytes=5), MemoryRoom(host_bytes=5), [resident("a")]).ids == ()


def test_the_least_recently_used_goes_first_and_no_more_than_needed():
    residents = [resident("new", used=3.0), resident("old", used=1.0), resident("middle", used=2.0)]
    room = MemoryRoom(host_bytes=0)
    assert choose_evictions(MemoryNeed(host_bytes=20), room, residents).ids == ("old", "middle")


def test_a_model_whose_going_does_not_help_stays():
    residents = [resident("elsewhere", 0, used=1.0), resident("here", 10, used=2.0)]
    assert choose_evictions(MemoryNeed(host_bytes=5), MemoryRoom(host_bytes=0), residents).ids == ("here",)


def test_what_is_missing_is_told():
    eviction = choose_evictions(
        MemoryNeed(host_bytes=50), MemoryRoom(host_bytes=20, models=0), [resident("a", is_pinned=True)]
    )
    assert (eviction.missing_bytes, eviction.missing_models, eviction.may_wait) == (30, 1, False)


def test_memory_of_devices_without_any_of_their_own_is_the_hosts():
    estimate = MemoryEstimate(device_bytes=30, host_bytes=12)
    own = Device(chip="x", kind="coprocessor", memory_bytes=1000)
    shared = Device(chip="y", kind="npu")
    assert memory_need(estimate, [own]) == MemoryNeed(host_bytes=12, device_bytes=30)
    assert memory_need(estimate, [shared]) == MemoryNeed(host_bytes=42)
    assert memory_need(estimate, []).times(2) == MemoryNeed(host_bytes=84)


@given(cores=st.integers(1, 256), workers=st.lists(st.integers(), unique=True, max_size=40))
def test_every_core_is_given_once_and_every_worker_has_one(cores, workers):
    shares = thread_shares(cores, workers)
    assert list(shares) == workers
    assert all(share >= 1 for share in shares.values())
    if 0 < len(workers) <= cores:
        assert sum(shares.values()) == cores
        assert max(shares.values()) - min(shares.values()) <= 1
