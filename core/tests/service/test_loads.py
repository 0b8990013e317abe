"""Load, resize, unload, on real workers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cardcage.workers.memory import MemoryReader
from cardcage_sdk.errors import (
    DrainingError,
    InvalidInstanceCountError,
    InvalidModelError,
    InvalidOptionError,
    InvalidRequestError,
    LoadFailedError,
    ModelAlreadyExistsError,
    ModelInUseError,
    ModelNotFoundError,
    OutOfMemoryError,
    PlatformDetectionError,
    UnsupportedPlatformError,
)
from cardcage_sdk.events import TextDelta
from cardcage_sdk.platform import Device, ProbeReport, Recovery, Scaling
from cardcage_sdk.service import LoadRequest


async def test_loaded_model_is_listed_with_its_facts(cage):
    result = await cage.load("one", "scripted-batch", instances=3)
    assert (result.requested_instance_count, result.actual_instance_count) == (3, 3)
    status = cage.service.model("one")
    assert (status.platform, status.kind, status.state, status.pinned) == ("scripted-batch", "chat", "ready", True)
    assert (status.instance_count, status.requested_instance_count, status.request_queue_size) == (3, 3, 48)
    assert status.loaded_at > 0
    assert [one.id for one in cage.service.models()] == ["one"]


@pytest.mark.parametrize("model_id", ["", "two words", "a/b", "x" * 21])
async def test_ids_have_rules(cage, model_id):
    with pytest.raises(InvalidRequestError) as caught:
        await cage.service.load(LoadRequest(model_id=model_id, model_path="/"))
    assert caught.value.param == "model_id"


async def test_a_model_is_not_deleted_by_whatever_path_it_was_loaded(cage):
    cage.store_model("tiny", "1b")
    store = cage.directory / "store"
    (cage.directory / "link").symlink_to(store)
    for number, path in enumerate(
        [store / "scripted/cpu/tiny-1b/tiny.scripted.json", cage.directory / "link/scripted/cpu/tiny-1b"]
    ):
        await cage.service.load(LoadRequest(model_id=f"m{number}", model_path=str(path), instance_count=1))
        with pytest.raises(ModelInUseError):
            await cage.service.library.remove("tiny")
        await cage.service.unload(f"m{number}")
    assert await cage.service.library.remove("tiny")


async def test_an_id_is_taken_once(cage):
    await cage.load("one", "scripted")
    with pytest.raises(ModelAlreadyExistsError):
        await cage.load("one", "scripted")
    with pytest.raises(ModelAlreadyExistsError):
        await cage.load("one", "scripted-batch")


async def test_what_cannot_be_loaded_is_refused_before_any_process_starts(make_cage, narrow):
    cage = make_cage(plugins=(narrow(scaling=Scaling(maximum=1)).plugin,))
    for count in (0, -1, 1025, 10**6):
        with pytest.raises(InvalidInstanceCountError):
            await cage.load("one", "scripted", instances=count)
    with pytest.raises(InvalidInstanceCountError) as caught:
        await cage.load("one", "narrow", instances=2)
    assert caught.value.maximum == 1
    with pytest.raises(InvalidModelError):
        await cage.service.load(LoadRequest(model_id="one", model_path=str(cage.directory / "nothing")))
    with pytest.raises(ModelNotFoundError):
        await cage.service.load(LoadRequest(model_id="one"))
    with pytest.raises(InvalidOptionError):
        await cage.load("one", "scripted", options={"no_such_option": 1})
    (cage.directory / "plain.txt").write_text("x")
    with pytest.raises(PlatformDetectionError):
        await cage.service.load(LoadRequest(model_id="one", model_path=str(cage.directory / "plain.txt")))
    assert cage.supervisor.counters.started == 0
    assert cage.service.models() == []


async def test_the_platform_for_a_model(make_cage, narrow):
    first, second = narrow(name="first"), narrow(name="second")
    broken = narrow(name="broken", report=ProbeReport.unavailable("no board here"))
    cage = make_cage(plugins=(first.plugin, second.plugin, broken.plugin))
    path = str(cage.write("m.narrow.json"))
    with pytest.raises(PlatformDetectionError) as caught:
        await cage.service.load(LoadRequest(model_id="one", model_path=path))
    assert caught.value.candidates == ["first", "second"]
    with pytest.raises(UnsupportedPlatformError, match="no board here"):
        await cage.service.load(LoadRequest(model_id="one", model_path=path, platform="broken"))
    with pytest.raises(UnsupportedPlatformError, match="no installed package"):
        await cage.service.load(LoadRequest(model_id="one", model_path=path, platform="absent"))
    await cage.service.load(LoadRequest(model_id="one", model_path=path, platform="second"))
    assert cage.service.model("one").platform == "second"
    ordered = make_cage(plugins=(first.plugin, second.plugin), scheduling={"platform_order": ("second",)})
    await ordered.service.load(LoadRequest(model_id="one", model_path=path))
    assert ordered.service.model("one").platform == "second"


async def test_platforms_are_probed_and_remembered_for_a_moment(make_cage, narrow):
    class Failing(narrow):
        def probe(self):
            raise OSError("sysfs is upside down")

    good, bad = narrow(name="good"), Failing(name="bad")
    cage = make_cage(plugins=(good.plugin, bad.plugin))
    statuses = {status.id: status for status in await cage.service.platforms()}
    await cage.service.platforms()
    assert good.probes == 1
    assert statuses["good"].available
    assert not statuses["bad"].available
    assert "sysfs is upside down" in statuses["bad"].reason
    assert statuses["good"].distribution == "test 0"


async def test_one_load_is_shared_and_outlives_who_asked(make_cage, narrow, tmp_path):
    cage = make_cage(plugins=(narrow().plugin,))
    gate = tmp_path / "gate"
    request = LoadRequest(model_id="one", model_path=str(cage.write("m.narrow.json")), options={"gate_file": str(gate)})
    loads = [asyncio.create_task(cage.service.load(request)) for _ in range(3)]
    await cage.until(lambda: cage.pids("one"))
    assert cage.service.model("one").state == "loading"
    with pytest.raises(ModelAlreadyExistsError):
        await cage.load("one", "scripted")
    waiting = asyncio.create_task(cage.text("one", "was it worth the wait"))
    loads[0].cancel()
    gate.touch()
    results = await asyncio.gather(*loads, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert [result.actual_instance_count for result in results[1:]] == [1, 1]
    assert (await waiting).split() == ["was", "it", "worth", "the", "wait"]
    assert cage.supervisor.counters.started == 1


async def test_everyone_who_waits_for_a_load_hears_that_it_failed(make_cage, narrow, tmp_path):
    cage = make_cage(plugins=(narrow().plugin,))
    gate = tmp_path / "gate"
    request = LoadRequest(
        model_id="one",
        model_path=str(cage.write("m.narrow.json")),
        options={"gate_file": str(gate), "die_by": "SIGABRT"},
    )
    waiting = [asyncio.create_task(cage.service.load(request)) for _ in range(2)]
    await cage.until(lambda: cage.pids("one"))
    waiting.append(asyncio.create_task(cage.text("one")))
    await asyncio.sleep(0)
    gate.touch()
    for outcome in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(outcome, LoadFailedError)
        assert outcome.signal == "SIGABRT"
    assert cage.supervisor.counters.started == 1


async def test_an_unload_ends_a_load(make_cage, narrow, tmp_path):
    cage = make_cage(plugins=(narrow().plugin,))
    options = {"gate_file": str(tmp_path / "never")}
    load = asyncio.create_task(cage.load("one", "narrow", options=options))
    await cage.until(lambda: cage.pids("one"))
    await cage.service.unload("one")
    with pytest.raises(DrainingError):
        await load
    assert cage.supervisor.workers == ()


async def test_partial_success_has_both_counts(make_cage, narrow, tmp_path):
    cage = make_cage(plugins=(narrow().plugin,))
    options = {"count_file": str(tmp_path / "count"), "succeed": 2}
    result = await cage.load("one", "narrow", instances=4, options=options)
    assert (result.requested_instance_count, result.actual_instance_count) == (4, 2)
    status = cage.service.model("one")
    assert (status.instance_count, status.requested_instance_count) == (2, 4)
    assert cage.supervisor.counters.started == 3
    result = await cage.service.resize("one", 3)
    assert (result.requested_instance_count, result.actual_instance_count) == (3, 2)


async def test_no_instance_at_all_is_a_failure(make_cage, narrow, tmp_path):
    cage = make_cage(plugins=(narrow().plugin,))
    options = {"count_file": str(tmp_path / "count"), "succeed": 0}
    with pytest.raises(OutOfMemoryError) as caught:
        await cage.load("one", "narrow", instances=2, options=options)
    assert (caught.value.required_bytes, caught.value.free_bytes) == (2000, 1000)
    assert cage.supervisor.counters.started == 1


async def test_resize_of_processes_both_ways_with_requests_running(make_cage, narrow):
    cage = make_cage(plugins=(narrow().plugin,))
    await cage.load("one", "narrow", options={"delay_seconds": 0.01})
    result = await cage.service.resize("one", 3)
    assert result.actual_instance_count == 3
    assert len(cage.pids("one")) == 3
    words = " ".join(f"w{number}" for number in range(40))
    running = [asyncio.create_task(cage.text("one", words)) for _ in range(3)]
    await cage.until(lambda: cage.service.model("one").running == 3)
    result = await cage.service.resize("one", 1)
    assert result.actual_instance_count == 1
    assert cage.service.model("one").instance_count == 1
    assert [text.split() for text in await asyncio.gather(*running)] == [words.split()] * 3
    await cage.until(lambda: len(cage.pids("one")) == 1)
    assert (await cage.text("one", "still here")).split() == ["still", "here"]


async def test_resize_of_slots_both_ways_with_requests_running(cage):
    await cage.load("one", "scripted-batch", delay_seconds=0.01, answer="word " * 30)
    [pid] = cage.pids("one")
    assert (await cage.service.resize("one", 4)).actual_instance_count == 4
    running = [asyncio.create_task(cage.text("one")) for _ in range(4)]
    await cage.until(lambda: cage.service.model("one").running == 4)
    assert (await cage.service.resize("one", 2)).actual_instance_count == 2
    late = asyncio.create_task(cage.text("one"))
    await cage.until(lambda: cage.service.model("one").queued == 1)
    assert {len(text.split()) for text in await asyncio.gather(*running, late)} == {30}
    assert cage.pids("one") == [pid]
    # The platform suggests four slots, and a load makes room for no more than that.
    result = await cage.service.resize("one", 9)
    assert (result.requested_instance_count, result.actual_instance_count) == (9, 4)
    with pytest.raises(InvalidInstanceCountError):
        await cage.service.resize("one", 65)
    with pytest.raises(InvalidInstanceCountError):
        await cage.service.resize("one", 0)
    with pytest.raises(ModelNotFoundError):
        await cage.service.resize("two", 1)


async def test_unload_waits_for_running_requests_and_refuses_new_ones(cage):
    await cage.load("one", "scripted-batch", delay_seconds=0.01, answer="word " * 30)
    running = asyncio.create_task(cage.text("one"))
    await cage.until(lambda: cage.service.model("one").running == 1)
    queued = asyncio.create_task(cage.text("one"))
    await cage.until(lambda: cage.service.model("one").queued == 1)
    unload = asyncio.create_task(cage.service.unload("one"))
    leaving = asyncio.create_task(cage.service.unload("one"))
    await asyncio.sleep(0)
    leaving.cancel()
    assert cage.service.model("one").state == "draining"
    with pytest.raises(DrainingError):
        await queued
    with pytest.raises(DrainingError):
        await cage.text("one")
    assert len((await running).split()) == 30
    await unload
    with pytest.raises(ModelNotFoundError):
        await cage.text("one")


@pytest.mark.parametrize("shape", ["scripted", "scripted-batch"])
async def test_a_forced_unload_ends_running_requests_with_an_error(cage, shape):
    await cage.load("one", shape, delay_seconds=0.01, answer="word " * 500)
    async with aclosing(cage.service.chat(cage.request("one"))) as events:
        await anext(events)
        assert isinstance(await anext(events), TextDelta)
        waiting = asyncio.create_task(cage.text("one"))
        await cage.until(lambda: cage.service.active_requests == 2)
        await cage.service.unload("one", force=True)
        with pytest.raises(DrainingError):
            async for _ in events:
                pass
    with pytest.raises(DrainingError):
        await waiting


async def test_memory_that_is_not_there_is_known_before_a_process_starts(make_cage, narrow, tmp_path):
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal: 4000 kB\nMemAvailable:    2000 kB\n")
    reader = MemoryReader(root=tmp_path)
    cage = make_cage(plugins=(narrow(host_bytes=3_000_000).plugin,), memory=reader)
    with pytest.raises(OutOfMemoryError) as caught:
        await cage.load("one", "narrow")
    assert (caught.value.required_bytes, caught.value.free_bytes) == (3_000_000, 2_048_000)
    assert cage.supervisor.counters.started == 0


async def test_memory_of_devices_is_counted_by_what_their_models_take(make_cage, narrow):
    devices = (Device(chip="npu", kind="npu", memory_bytes=1000),)
    cage = make_cage(plugins=(narrow(host_bytes=0, device_bytes=400, devices=devices).plugin,))
    result = await cage.load("one", "narrow", instances=3)
    assert result.actual_instance_count == 2
    with pytest.raises(OutOfMemoryError) as caught:
        await cage.load("two", "narrow")
    assert (caught.value.required_bytes, caught.value.free_bytes) == (400, 200)
    await cage.service.unload("one")
    await cage.load("two", "narrow")


async def test_a_kill_by_the_kernel_is_out_of_memory(make_cage, narrow, tmp_path):
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text("MemAvailable:    2000 kB\n")
    (proc / "vmstat").write_text("oom_kill 4\n")
    gate = tmp_path / "gate"
    reader = MemoryReader(root=tmp_path)
    cage = make_cage(plugins=(narrow(host_bytes=1000).plugin,), memory=reader)
    load = asyncio.create_task(cage.load("one", "narrow", options={"gate_file": str(gate), "die_by": "SIGKILL"}))
    await cage.until(lambda: cage.pids("one"))
    (proc / "vmstat").write_text("oom_kill 5\n")
    gate.touch()
    with pytest.raises(OutOfMemoryError) as caught:
        await load
    assert (caught.value.required_bytes, caught.value.free_bytes) == (1000, 2_048_000)


async def test_a_recovery_is_tried_once_and_its_note_is_kept(make_cage, narrow):
    offer = Recovery(options={"delay_seconds": 0.0}, note="slower kernels are used")
    cage = make_cage(plugins=(narrow(recovery=offer).plugin,))
    await cage.load("one", "narrow", options={"die_by": "SIGILL"})
    assert cage.service.model("one").info.details["recovery"] == "slower kernels are used"
    assert cage.supervisor.counters.started == 2
    # What was learnt holds for every further worker of the model.
    await cage.service.resize("one", 2)
    assert cage.supervisor.counters.started == 3


async def test_a_recovery_that_fails_too_is_the_end(make_cage, narrow):
    offer = Recovery(options={"die_by": "SIGBUS"}, note="hope")
    cage = make_cage(plugins=(narrow(recovery=offer).plugin,))
    with pytest.raises(LoadFailedError) as caught:
        await cage.load("one", "narrow", options={"die_by": "SIGILL"})
    assert caught.value.signal == "SIGBUS"
    assert cage.supervisor.counters.started == 2


async def test_cores_are_shared_out_between_loaded_models(make_cage, narrow):
    cage = make_cage(plugins=(narrow().plugin,), cores=8)
    await cage.load("one", "narrow")
    assert (await cage.text("one", "threads")).strip() == "threads=8"
    await cage.load("two", "narrow")
    await cage.load("plain", "scripted")
    assert (await cage.text("one", "threads")).strip() == "threads=4"
    assert (await cage.text("two", "threads")).strip() == "threads=4"
    await cage.service.unload("one")
    assert (await cage.text("two", "threads")).strip() == "threads=8"


async def test_a_grandchild_goes_with_its_worker(make_cage, narrow, tmp_path):
    file = tmp_path / "pid"
    cage = make_cage(plugins=(narrow().plugin,))
    await cage.load("one", "narrow", options={"grandchild_file": str(file)})
    grandchild = int(file.read_text())
    assert cage.is_running(grandchild)
    await cage.service.unload("one")
    await cage.until(lambda: not cage.is_running(grandchild))


async def test_a_worker_that_cannot_be_replaced_leaves_the_model_failed(make_cage, narrow, tmp_path):
    import os
    import signal

    cage = make_cage(plugins=(narrow().plugin,))
    options = {"count_file": str(tmp_path / "count"), "succeed": 1}
    await cage.load("one", "narrow", options=options)
    os.kill(cage.pids("one")[0], signal.SIGKILL)
    await cage.until(lambda: cage.service.model("one").state == "failed")
    assert cage.supervisor.counters.started == 2
    with pytest.raises(OutOfMemoryError):
        await cage.text("one")
    await cage.service.unload("one")


async def test_an_idle_worker_that_dies_is_replaced(cage):
    import os
    import signal

    await cage.load("one", "scripted")
    [pid] = cage.pids("one")
    os.kill(pid, signal.SIGKILL)
    await cage.until(lambda: cage.pids("one") not in ([pid], []))
    assert await cage.text("one") == "The quick brown fox jumps over the lazy dog."


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "could not be started"),
        ("echo no sdk here; exit 4", "ended with exit status 4 before it was ready; its last words: no sdk here"),
        ("exec sleep 3600", "did not say hello"),
    ],
)
async def test_an_interpreter_that_is_no_worker_is_named(make_cage, narrow, tmp_path, script, message):
    program = tmp_path / "python"
    if script is not None:
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    class Foreign(narrow):
        def worker_python(self):
            return str(program)

    cage = make_cage(plugins=(Foreign().plugin,), supervision={"hello_timeout_seconds": 0.3})
    with pytest.raises(LoadFailedError, match=message):
        await cage.load("one", "narrow")
    assert cage.supervisor.workers == ()


@pytest.mark.parametrize("end", ["unload", "stop"])
async def test_an_end_in_the_middle_of_a_resize_leaves_no_worker(make_cage, narrow, tmp_path, end):
    cage = make_cage(plugins=(narrow().plugin,))
    gate = tmp_path / "gate"
    gate.touch()
    await cage.load("one", "narrow", options={"gate_file": str(gate)})
    gate.unlink()
    resize = asyncio.create_task(cage.service.resize("one", 3))
    await cage.until(lambda: len(cage.pids("one")) == 2)
    await (cage.service.unload("one") if end == "unload" else cage.service.stop())
    with pytest.raises(DrainingError):
        await resize
    assert cage.supervisor.workers == ()
