"""Models loaded on demand: keep-alive, eviction, pinning."""

from __future__ import annotations

import asyncio
import math
from contextlib import aclosing

import pytest

from cardcage.scheduling.plan import RestartPolicy
from cardcage_sdk.errors import (
    BusyError,
    EngineCrashedError,
    LoadFailedError,
    ModelAlreadyExistsError,
    ModelNotFoundError,
    OutOfMemoryError,
)
from cardcage_sdk.service import LoadRequest


def ids(cage):
    return [status.id for status in cage.service.models()]


async def use(cage, name, **kwargs):
    status = await cage.service.ensure_loaded(name, **kwargs)
    return await cage.text(status.id)


async def test_a_model_of_the_store_is_loaded_for_a_request_and_shared(cage):
    cage.store_model("fox", "1b", answer="From the store.")
    texts = await asyncio.gather(*(use(cage, name) for name in ("fox", "fox:1b", "FOX:1B@scripted-cpu", "fox")))
    assert texts == ["From the store."] * 4
    status = cage.service.model("fox:1b@scripted-cpu")
    assert not status.pinned
    assert cage.supervisor.counters.started == 1
    with pytest.raises(ModelNotFoundError):
        await cage.service.ensure_loaded("cat")


async def test_keep_alive_of_nothing_unloads_after_the_request(cage):
    cage.store_model("fox", "1b", answer="brief")
    assert await use(cage, "fox", keep_alive_seconds=0) == "brief"
    await cage.until(lambda: ids(cage) == [])
    assert cage.supervisor.workers == ()


async def test_keep_alive_counts_from_the_last_request(cage):
    cage.store_model("fox", "1b", answer="brief")
    assert await use(cage, "fox", keep_alive_seconds=0.3) == "brief"
    assert await use(cage, "fox", keep_alive_seconds=math.inf) == "brief"
    assert cage.service._residency.get("fox:1b@scripted-cpu").expiry is None
    await use(cage, "fox", keep_alive_seconds=0.05)
    await cage.until(lambda: ids(cage) == [])


async def test_nobodys_keep_alive_unloads_a_pinned_model(cage):
    cage.store_model("fox", "1b", answer="pinned")
    await cage.service.load(LoadRequest(model_id="fox:1b@scripted-cpu"))
    assert await use(cage, "fox", keep_alive_seconds=0) == "pinned"
    await cage.service.resize("fox:1b@scripted-cpu", 2)
    assert cage.service.model("fox:1b@scripted-cpu").pinned


async def test_a_load_by_name_pins_what_was_loaded_on_demand(cage):
    cage.store_model("fox", "1b", answer="stay")
    await use(cage, "fox", keep_alive_seconds=0.2)
    result = await cage.service.load(LoadRequest(model_id="fox:1b@scripted-cpu", instance_count=2))
    assert result.actual_instance_count == 2
    assert cage.service._residency.get("fox:1b@scripted-cpu").expiry is None
    assert cage.service.model("fox:1b@scripted-cpu").pinned
    with pytest.raises(ModelAlreadyExistsError):
        await cage.service.load(LoadRequest(model_id="fox:1b@scripted-cpu"))


async def test_other_options_under_a_taken_id_are_refused(cage):
    cage.store_model("fox", "1b")
    await use(cage, "fox")
    with pytest.raises(ModelAlreadyExistsError):
        await cage.service.load(LoadRequest(model_id="fox:1b@scripted-cpu", options={"answer": "other"}))
    assert not cage.service.model("fox:1b@scripted-cpu").pinned


async def test_the_least_recently_used_goes_first(make_cage):
    cage = make_cage(scheduling={"max_loaded_models": 2})
    for name in ("a", "b", "c"):
        cage.store_model(name, "1b")
    await use(cage, "a")
    await use(cage, "b")
    await use(cage, "a")
    await use(cage, "c")
    assert ids(cage) == ["a:1b@scripted-cpu", "c:1b@scripted-cpu"]


async def test_a_leased_model_never_goes_and_the_next_one_waits_for_it(make_cage):
    cage = make_cage(scheduling={"max_loaded_models": 1})
    cage.store_model("slow", "1b", delay_seconds=0.01, answer="word " * 50)
    cage.store_model("next", "1b", answer="at last")
    status = await cage.service.ensure_loaded("slow")
    async with aclosing(cage.service.chat(cage.request(status.id))) as events:
        await anext(events)
        loading = asyncio.create_task(use(cage, "next"))
        seen = [event async for event in events]
        assert ids(cage)[0] == status.id
    assert len(seen) > 50
    assert await loading == "at last"
    assert ids(cage) == ["next:1b@scripted-cpu"]


async def test_a_wait_for_room_has_an_end(make_cage):
    cage = make_cage(scheduling={"max_loaded_models": 1}, server={"queue_timeout_seconds": 0.2})
    cage.store_model("slow", "1b", delay_seconds=0.01, answer="word " * 500)
    cage.store_model("next", "1b")
    status = await cage.service.ensure_loaded("slow")
    async with aclosing(cage.service.chat(cage.request(status.id))) as events:
        await anext(events)
        with pytest.raises(BusyError):
            await use(cage, "next")


async def test_pinned_models_do_not_count_and_do_not_go(make_cage):
    cage = make_cage(scheduling={"max_loaded_models": 1})
    for name in ("a", "b"):
        cage.store_model(name, "1b")
    await cage.load("mine", "scripted")
    await use(cage, "a")
    await use(cage, "b")
    assert ids(cage) == ["mine", "b:1b@scripted-cpu"]


async def test_the_budget_is_for_models_on_demand(make_cage):
    cage = make_cage(scheduling={"memory_budget_bytes": 30 << 20})  # a scripted model takes 24 MiB
    for name in ("a", "b"):
        cage.store_model(name, "1b")
    await cage.load("mine", "scripted")
    await use(cage, "a")
    await use(cage, "b")
    assert ids(cage) == ["mine", "b:1b@scripted-cpu"]
    tight = make_cage(scheduling={"memory_budget_bytes": 1 << 20})
    with pytest.raises(OutOfMemoryError) as caught:
        await use(tight, "a")
    assert caught.value.free_bytes == 1 << 20


async def test_a_load_by_name_takes_the_room_of_idle_models_on_demand(make_cage, narrow, tmp_path):
    from cardcage_sdk.platform import Device

    devices = (Device(chip="npu", kind="npu", memory_bytes=1000),)
    platform = narrow(name="narrow", host_bytes=0, device_bytes=600, devices=devices)
    cage = make_cage(plugins=(platform.plugin,))
    cage.store_model("a", "1b", platform="narrow")
    await use(cage, "a")
    await cage.load("mine", "narrow")
    assert ids(cage) == ["mine"]
    with pytest.raises(OutOfMemoryError):
        await use(cage, "a")


async def test_a_failed_model_on_demand_is_loaded_anew_but_not_at_every_request(make_cage):
    policy = RestartPolicy(max_crashes=1, window_seconds=0.3)
    cage = make_cage(supervision={"restart": policy})
    cage.store_model("frail", "1b", platform="faulty", kind="segfault", phase="prefill", trigger="die")
    status = await cage.service.ensure_loaded("frail")
    with pytest.raises(EngineCrashedError):
        await cage.text(status.id, "die")
    await cage.until(lambda: cage.service.model(status.id).state == "failed")
    with pytest.raises(LoadFailedError):
        await use(cage, "frail")
    assert cage.supervisor.counters.started == 1
    failed_at = cage.service._residency.get(status.id).pool.failed_at
    await cage.until(lambda: asyncio.get_running_loop().time() > failed_at + policy.window_seconds)
    assert await use(cage, "frail")
    assert cage.supervisor.counters.started == 2
