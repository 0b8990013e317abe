"""Preload, draining and the end of the server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cardcage.config import ModelEntry
from cardcage_sdk.errors import DrainingError
from cardcage_sdk.events import Finished, TextDelta
from cardcage_sdk.service import LoadRequest


async def test_models_of_the_configuration_are_loaded_in_order_and_a_failure_stops_nothing(make_cage, tmp_path):
    (tmp_path / "first.scripted.json").write_text('{"answer": "first"}')
    (tmp_path / "last.scripted.json").write_text('{"answer": "last"}')
    entries = (
        ModelEntry(model_id="first", model_path=str(tmp_path / "first.scripted.json")),
        ModelEntry(model_id="absent", model_path=str(tmp_path / "absent.scripted.json")),
        ModelEntry(model_id="last", model_path=str(tmp_path / "last.scripted.json"), instance_count=2),
    )
    cage = make_cage(models=entries)
    await cage.service.start()
    assert cage.service.is_preloading
    await cage.until(lambda: not cage.service.is_preloading)
    assert [(one.id, one.instance_count, one.pinned) for one in cage.service.models()] == [
        ("first", 1, True),
        ("last", 2, True),
    ]
    assert list(cage.service.preload_failures) == ["absent"]
    assert await cage.text("last") == "last"


async def test_draining_refuses_what_is_new_and_lets_the_rest_finish(cage):
    await cage.load("one", "scripted-batch", delay_seconds=0.01, answer="word " * 20)
    running = [asyncio.create_task(cage.events(cage.request("one"))) for _ in range(2)]
    await cage.until(lambda: cage.service.model("one").queued == 1)
    cage.service.begin_draining()
    with pytest.raises(DrainingError):
        await cage.text("one")
    with pytest.raises(DrainingError):
        await cage.service.load(LoadRequest(model_id="two", model_path="/"))
    await cage.service.drain(30.0)
    for events in await asyncio.gather(*running):
        assert isinstance(events[-1], Finished)


async def test_what_does_not_finish_in_time_ends_with_an_error(make_cage, narrow, tmp_path):
    cage = make_cage(plugins=(narrow().plugin,))
    await cage.load("one", "scripted-batch", delay_seconds=0.01, answer="word " * 5000)
    load = asyncio.create_task(cage.load("two", "narrow", options={"gate_file": str(tmp_path / "never")}))
    await cage.until(lambda: cage.pids("two"))
    async with aclosing(cage.service.chat(cage.request("one"))) as events:
        await anext(events)
        assert isinstance(await anext(events), TextDelta)
        others = [asyncio.create_task(cage.text(model)) for model in ("one", "two")]
        await cage.until(lambda: cage.service.active_requests == 3)
        drain = asyncio.create_task(cage.service.drain(0.05))
        with pytest.raises(DrainingError):
            async for _ in events:
                pass
        for outcome in await asyncio.gather(*others, load, return_exceptions=True):
            assert isinstance(outcome, DrainingError)
    await drain
    await cage.service.stop()
    assert cage.supervisor.workers == ()


async def test_stop_without_drain_leaves_nothing(make_cage, narrow, tmp_path):
    cage = make_cage(plugins=(narrow().plugin,))
    await cage.load("one", "scripted", instances=2, delay_seconds=0.01, answer="word " * 5000)
    load = asyncio.create_task(cage.load("two", "narrow", options={"gate_file": str(tmp_path / "never")}))
    text = asyncio.create_task(cage.text("one"))
    await cage.until(lambda: cage.pids("two") and cage.service.model("one").running == 1)
    await cage.service.stop()
    for outcome in await asyncio.gather(load, text, return_exceptions=True):
        assert isinstance(outcome, DrainingError)
