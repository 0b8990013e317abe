"""Models that are held while they are used: contexts of their own, letting go, turns, and the model's own messages."""

from __future__ import annotations

import asyncio
import json
import math
import time

import pytest

from cardcage.service import room
from cardcage_sdk.chat import Message, TextPart
from cardcage_sdk.errors import InvalidRequestError, ModelNotFoundError
from cardcage_sdk.service import LoadRequest


def ids(cage):
    return [status.id for status in cage.service.models()]


async def use(cage, name, text="hello", **kwargs):
    async with cage.service.using(name, **kwargs) as status:
        return await cage.text(status.id, text)


async def test_a_model_that_is_held_is_not_evicted(make_cage):
    cage = make_cage(scheduling={"max_loaded_models": 1})
    for name in ("a", "b"):
        cage.store_model(name, "1b", answer=name)
    async with cage.service.using("a", keep_alive_seconds=0) as status:
        other = asyncio.create_task(use(cage, "b"))
        await cage.until(lambda: "b:1b@scripted-cpu" in {one.id for one in cage.service._residency.residents})
        assert await cage.text(status.id) == "a"
        assert status.id in ids(cage)
    assert await other == "b"
    assert ids(cage) == ["b:1b@scripted-cpu"]


async def test_a_model_that_is_being_unloaded_is_waited_for_and_loaded_anew(cage):
    cage.store_model("slow", "1b", answer="word " * 30, delay_seconds=0.005)
    first = asyncio.create_task(use(cage, "slow"))
    await cage.until(lambda: any(status.running for status in cage.service.models()))
    unload = asyncio.create_task(cage.service.unload("slow:1b@scripted-cpu"))
    await cage.until(lambda: cage.service.model("slow:1b@scripted-cpu").state == "draining")
    assert (await use(cage, "slow")).startswith("word")
    await asyncio.gather(first, unload)
    assert cage.supervisor.counters.started == 2


async def test_many_that_alternate_between_two_models_with_room_for_one(make_cage):
    cage = make_cage(scheduling={"max_loaded_models": 1})
    for name in ("a", "b"):
        cage.store_model(name, "1b", answer=name)

    async def alternate(number):
        return [await use(cage, "ab"[(number + turn) % 2]) for turn in range(4)]

    answers = await asyncio.gather(*(alternate(number) for number in range(20)))
    assert answers == [["ab"[(number + turn) % 2] for turn in range(4)] for number in range(20)]
    # In each turn half of them want the other model; all of one kind are served before it goes.
    assert cage.supervisor.counters.started <= 5
    assert cage.service.counters.failed == {}


async def test_more_context_is_a_load_of_its_own_and_less_is_not(cage):
    cage.store_model("fox", "1b", answer="hi")
    async with cage.service.using("fox", context_tokens=1000) as status:
        assert (status.id, status.info.context_tokens) == ("fox:1b@scripted-cpu+1000", 1000)
    async with cage.service.using("fox", context_tokens=500) as status:
        assert status.info.context_tokens == 1000
    async with cage.service.using("fox") as status:
        assert status.info.context_tokens == 1000
    async with cage.service.using("fox", context_tokens=2000) as status:
        assert status.info.context_tokens == 2000
    assert sorted(ids(cage)) == ["fox:1b@scripted-cpu+1000", "fox:1b@scripted-cpu+2000"]
    async with cage.service.using("fox", context_tokens=500, is_exact_context=True) as status:
        assert status.info.context_tokens == 500
    assert cage.supervisor.counters.started == 3


async def test_the_context_that_a_model_has_by_itself_may_do(cage):
    cage.store_model("fox", "1b", answer="hi")  # 4096 by itself
    first = asyncio.create_task(use(cage, "fox", context_tokens=None))
    await cage.until(lambda: ids(cage))  # names are looked up in threads, so who comes first must be seen to
    tasks = [first, *(asyncio.create_task(use(cage, "fox", context_tokens=tokens)) for tokens in (4096, 2048))]
    assert await asyncio.gather(*tasks) == ["hi"] * 3
    assert ids(cage) == ["fox:1b@scripted-cpu"]
    async with cage.service.using("FOX:1b@scripted-cpu", context_tokens=8192) as status:
        assert status.info.context_tokens == 8192


async def test_a_model_loaded_from_elsewhere_has_one_context(cage):
    await cage.load("mine", "scripted")
    assert await use(cage, "MINE:latest", context_tokens=100)
    with pytest.raises(InvalidRequestError):
        await use(cage, "mine", context_tokens=100_000)
    with pytest.raises(ModelNotFoundError):
        await use(cage, "nobody")


async def test_letting_go_ends_what_is_idle_and_what_is_not_when_it_is(cage):
    cage.store_model("fox", "1b", answer="word " * 30, delay_seconds=0.005)
    assert not await cage.service.let_go("fox")
    await use(cage, "fox")
    await use(cage, "fox", context_tokens=9000)
    assert await cage.service.let_go("FOX")
    assert ids(cage) == []
    running = asyncio.create_task(use(cage, "fox"))
    await cage.until(lambda: any(status.running for status in cage.service.models()))
    assert await cage.service.let_go("fox")
    assert (await running).startswith("word")
    await cage.until(lambda: ids(cage) == [])
    await cage.service.load(LoadRequest(model_id="fox:1b@scripted-cpu"))
    assert not await cage.service.let_go("fox")
    assert ids(cage) == ["fox:1b@scripted-cpu"]


async def test_when_a_model_goes(cage):
    cage.store_model("fox", "1b")
    async with cage.service.using("fox", keep_alive_seconds=100) as status:
        assert status.expires_at == pytest.approx(time.time() + 100, abs=5)
    assert cage.service.model(status.id).expires_at == pytest.approx(time.time() + 100, abs=5)
    await use(cage, "fox", keep_alive_seconds=math.inf)
    assert cage.service.model(status.id).expires_at is None
    assert cage.service.model(status.id).host_bytes > 24 << 20


async def test_a_model_that_waits_long_gets_its_turn(make_cage, monkeypatch):
    monkeypatch.setattr(room, "TURN_SECONDS", 0.1)
    cage = make_cage(scheduling={"max_loaded_models": 1})
    cage.store_model("busy", "1b", answer="word " * 20, delay_seconds=0.005)
    cage.store_model("next", "1b", answer="at last")
    served = asyncio.Event()

    async def keep_busy():
        while not served.is_set():
            await use(cage, "busy")

    crowd = [asyncio.create_task(keep_busy()) for _ in range(3)]
    await cage.until(lambda: any(status.running for status in cage.service.models()))
    assert await use(cage, "next") == "at last"
    served.set()
    await asyncio.gather(*crowd)


async def test_a_model_brings_its_system_text_and_sample_turns(cage):
    cage.store_model("fox", "1b", echo=True)
    file = cage.directory / "store" / "scripted" / "cpu" / "fox-1b" / "model.toml"
    body = file.read_text().replace("[[files]]", 'system = "Be brief."\n[[files]]')
    file.write_text(
        f'{body}\n[[messages]]\nrole = "user"\ncontent = "one"\n[[messages]]\nrole = "assistant"\ncontent = "two"\n'
    )
    async with cage.service.using("fox") as status:
        plan = cage.service._residency.get(status.id).plan
        assert plan.defaults.system == "Be brief."
        # 4 tokens a message, and one for each word or stretch of blanks
        events = await cage.events(cage.request(status.id, "hi"))
        assert events[0].prompt_tokens == (4 + 2) + (4 + 1) * 3
        own = Message(role="system", content=(TextPart("Own."),))
        said = Message(role="user", content=(TextPart("hi"),))
        request = cage.request(status.id)
        import dataclasses

        events = await cage.events(dataclasses.replace(request, messages=(own, said)))
        assert events[0].prompt_tokens == (4 + 1) * 4
    assert json.dumps(ids(cage))


async def test_a_model_on_demand_takes_as_many_requests_at_once_as_its_platform_suggests(cage):
    cage.store_model("batch", "1b", platform="scripted-batch", answer="hi")
    cage.store_model("single", "1b", answer="hi")
    async with cage.service.using("batch") as status:
        assert (status.instance_count, status.requested_instance_count) == (4, 4)
    async with cage.service.using("single") as status:
        assert status.instance_count == 1
    assert cage.supervisor.counters.started == 2
