"""Every way a worker can die or hang, in every phase: who is told what, and what is left."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing

import pytest

from cardcage_sdk.errors import (
    CardcageError,
    EngineCrashedError,
    EngineHungError,
    LoadFailedError,
    LoadTimeoutError,
    ModelNotFoundError,
    OutOfMemoryError,
)
from cardcage_sdk.events import Accepted, TextDelta
from cardcage_sdk.service import LoadRequest

DEATHS = {"segfault": "SIGSEGV", "sigkill": "SIGKILL", "abort": "SIGABRT", "exit": None}
SHAPES = ["faulty", "faulty-batch"]
SECONDS_TO_TELL = 1.0


async def load_faulty(cage, shape, *, options=None, **members):
    path = cage.write(f"bad.{shape}.json", **members)
    return await cage.service.load(LoadRequest(model_id="bad", model_path=str(path), options=options or {}))


async def watch_to_the_end(cage, request):
    """The events of a request, the error that ended it, and the seconds from the last event to the error."""
    events = []
    began = time.monotonic()
    try:
        async with aclosing(cage.service.chat(request)) as stream:
            async for event in stream:
                events.append(event)
                began = time.monotonic()
    except CardcageError as error:
        return events, error, time.monotonic() - began
    return events, None, 0.0


@pytest.mark.parametrize("kind", DEATHS)
@pytest.mark.parametrize("phase", ["import", "load", "self_test"])
async def test_death_before_ready_is_told_and_not_repeated(cage, phase, kind):
    options = {"kind": kind, "phase": phase}
    with pytest.raises(LoadFailedError) as caught:
        await load_faulty(cage, "faulty", options=options)
    assert caught.value.signal == DEATHS[kind]
    assert caught.value.exit_code == (3 if kind == "exit" else None)
    if kind == "segfault":
        assert "Segmentation fault" in caught.value.log_tail
    assert cage.supervisor.counters.started == 1
    assert cage.supervisor.workers == ()
    with pytest.raises(ModelNotFoundError):
        cage.service.model("bad")


@pytest.mark.parametrize("phase", ["import", "load", "self_test"])
@pytest.mark.parametrize("kind", ["hang", "hang_gil"])
async def test_hang_before_ready_ends_at_the_load_deadline(make_cage, phase, kind):
    cage = make_cage(server={"load_timeout_seconds": 1.0})
    with pytest.raises(LoadTimeoutError) as caught:
        await load_faulty(cage, "faulty", options={"kind": kind, "phase": phase})
    assert caught.value.waited_seconds == 1.0
    assert cage.supervisor.workers == ()


async def test_an_exception_while_loading_has_the_runtimes_words(cage):
    with pytest.raises(LoadFailedError, match="told to raise"):
        await load_faulty(cage, "faulty", kind="exception", phase="load")


async def test_memory_that_runs_out_while_loading_is_named(cage):
    with pytest.raises(OutOfMemoryError, match="bytes are needed") as caught:
        await load_faulty(cage, "faulty", kind="memory", phase="load", amount_bytes=32 << 20)
    assert caught.value.required_bytes is not None
    assert caught.value.required_bytes > 24 << 20
    assert caught.value.free_bytes is not None


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", DEATHS)
@pytest.mark.parametrize("phase", ["prepare", "prefill", "decode"])
async def test_death_under_a_request_is_told_within_a_second_and_repaired(cage, shape, phase, kind):
    await load_faulty(cage, shape, kind=kind, phase=phase, trigger="die", answer="All is well here.")
    assert await cage.text("bad") == "All is well here."
    [before] = cage.pids("bad")
    events, error, seconds = await watch_to_the_end(cage, cage.request("bad", "die"))
    assert isinstance(error, EngineCrashedError)
    assert seconds < SECONDS_TO_TELL
    assert error.signal == DEATHS[kind]
    if phase == "decode":
        assert isinstance(events[0], Accepted)
        # What the worker had not sent yet went with it.
        said = "".join(event.text for event in events if isinstance(event, TextDelta))
        assert "All is well here.".startswith(said)
    assert await cage.text("bad") == "All is well here."
    assert before not in cage.pids("bad")
    assert cage.supervisor.counters.crashed == 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["segfault", "sigkill"])
async def test_death_in_cancel_frees_the_client_and_is_repaired(cage, shape, kind):
    await load_faulty(cage, shape, kind=kind, phase="cancel", answer="word " * 200, delay_seconds=0.01)
    [before] = cage.pids("bad")
    async with aclosing(cage.service.chat(cage.request("bad"))) as stream:
        await anext(stream)
        await anext(stream)
        began = time.monotonic()
    assert time.monotonic() - began < 0.5
    await cage.until(lambda: cage.pids("bad") not in ([before], []))
    assert (await cage.text("bad")).startswith("word word")
    assert cage.supervisor.counters.crashed == 1


@pytest.mark.parametrize("kind", [*DEATHS, "hang", "exception"])
async def test_trouble_in_close_is_no_trouble_for_an_unload(make_cage, kind):
    cage = make_cage(supervision={"stop_timeout_seconds": 0.5})
    await load_faulty(cage, "faulty", kind=kind, phase="close")
    await cage.service.unload("bad")
    assert cage.supervisor.workers == ()
    assert cage.supervisor.counters.crashed == 0


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["hang", "hang_gil"])
@pytest.mark.parametrize("phase", ["prepare", "prefill", "decode"])
async def test_a_hang_is_ended_by_the_watchdog(make_cage, shape, phase, kind):
    floor = 0.4
    cage = make_cage(supervision={"hang_floor_seconds": floor, "unmeasured_prefill_tokens_per_second": 1000.0})
    await load_faulty(cage, shape, kind=kind, phase=phase, trigger="hang", answer="All is well here.")
    [before] = cage.pids("bad")
    with pytest.raises(EngineHungError) as caught:
        await cage.events(cage.request("bad", "hang"))
    assert caught.value.seconds >= floor
    assert await cage.text("bad") == "All is well here."
    assert before not in cage.pids("bad")
    assert cage.supervisor.counters.hung == 1


async def test_a_cancel_that_is_not_heeded_costs_the_worker_not_the_client(make_cage):
    cage = make_cage()
    await load_faulty(cage, "faulty", kind="hang", phase="decode", trigger="hang", answer="one two three four")
    [before] = cage.pids("bad")
    async with aclosing(cage.service.chat(cage.request("bad", "hang"))) as stream:
        await anext(stream)
        await anext(stream)
        began = time.monotonic()
    assert time.monotonic() - began < 0.5
    assert cage.service.model("bad").running == 1
    await cage.until(lambda: cage.pids("bad") not in ([before], []))
    assert await cage.text("bad") == "one two three four"
    assert cage.supervisor.counters.cancel_overdue == 1


async def test_a_cancel_that_is_not_heeded_costs_no_other_client_its_answer(make_cage):
    cage = make_cage()
    answer = "word " * 200  # two seconds of it; the engine declares one for a cancel
    await load_faulty(cage, "faulty", kind="hang", phase="prefill", trigger="hang", answer=answer, delay_seconds=0.01)
    [before] = cage.pids("bad")
    other = asyncio.create_task(cage.text("bad"))
    await cage.until(lambda: cage.service.model("bad").running == 1)
    leaving = asyncio.create_task(cage.events(cage.request("bad", "hang")))
    await cage.until(lambda: cage.service.model("bad").running == 2)
    leaving.cancel()
    assert await other == answer
    # Alone with the request that nobody waits for, the worker is ended.
    await cage.until(lambda: cage.pids("bad") not in ([before], []))
    assert cage.supervisor.counters.cancel_overdue == 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("phase", ["import", "load", "self_test", "prepare", "prefill", "decode"])
async def test_noise_harms_nothing(cage, shape, phase):
    options = {"kind": "noise", "phase": phase} if phase == "import" else None
    await load_faulty(cage, shape, options=options, kind="noise", phase=phase, answer="All is well here.")
    assert await cage.text("bad") == "All is well here."
    [worker] = cage.supervisor.workers
    assert len(worker.log_tail) > 10_000
    assert "half a line" in worker.log_tail


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "kind", ["exception", "lie_frame", "lie_no_finished", "lie_after_finished", "lie_parsed", "lie_choice"]
)
async def test_an_engine_that_lies_or_raises_fails_its_request_and_serves_the_next(make_cage, shape, kind):
    cage = make_cage(supervision={"hang_floor_seconds": 0.4, "unmeasured_prefill_tokens_per_second": 1000.0})
    await load_faulty(cage, shape, kind=kind, phase="decode", trigger="lie", answer="All is well here.")
    if kind == "lie_after_finished":
        assert await cage.text("bad", "lie") == "All is well here."
    else:
        with pytest.raises(CardcageError) as caught:
            await cage.events(cage.request("bad", "lie"))
        assert caught.value.code in {"engine_failed", "worker_protocol", "engine_hung", "engine_crashed"}
    assert await cage.text("bad") == "All is well here."


@pytest.mark.parametrize("kind", ["segfault", "sigkill", "hang", "noise", "lie_frame"])
async def test_streams_of_other_models_are_undisturbed_byte_for_byte(make_cage, kind):
    cage = make_cage(supervision={"hang_floor_seconds": 0.4, "unmeasured_prefill_tokens_per_second": 1000.0})
    answer = " ".join(f"word{number}" for number in range(150))
    await cage.load("good", "scripted", answer=answer, delay_seconds=0.005)
    await cage.load("batch", "scripted-batch", instances=2, answer=answer, delay_seconds=0.005)
    await load_faulty(cage, "faulty", kind=kind, phase="decode", trigger="die")
    streams = [asyncio.create_task(cage.text(model)) for model in ("good", "batch", "batch")]
    for _ in range(2):
        try:
            await cage.events(cage.request("bad", "die"))
        except CardcageError:
            continue
    assert await asyncio.gather(*streams) == [answer] * 3


async def test_a_crash_takes_all_requests_of_its_worker_and_no_other(cage):
    path = cage.write("bad.faulty.json", kind="segfault", trigger="die", answer="word " * 100, delay_seconds=0.01)
    await cage.service.load(LoadRequest(model_id="bad", model_path=str(path), instance_count=2))
    # Requests go to the least loaded worker: two of the three share one with the one that dies.
    started = [cage.service.chat(cage.request("bad")) for _ in range(2)]
    for stream in started:
        await anext(stream)
        await anext(stream)
    with pytest.raises(EngineCrashedError):
        await cage.events(cage.request("bad", "die"))
    outcomes = []
    for stream in started:
        try:
            outcomes.append(sum(1 for event in [item async for item in stream] if isinstance(event, TextDelta)))
        except EngineCrashedError:
            outcomes.append("crashed")
    assert sorted(map(str, outcomes))[1] == "crashed"
    assert sum(1 for outcome in outcomes if outcome == "crashed") == 1


async def test_a_crash_loop_has_an_end_and_a_resize_mends_it(make_cage):
    from cardcage.scheduling.plan import RestartPolicy

    policy = RestartPolicy(max_crashes=3, window_seconds=60.0, first_delay_seconds=0.01)
    cage = make_cage(supervision={"restart": policy})
    await load_faulty(cage, "faulty", kind="segfault", phase="prefill", trigger="die", answer="fine")
    for _ in range(3):
        with pytest.raises(EngineCrashedError):
            await cage.events(cage.request("bad", "die"))
    await cage.until(lambda: cage.service.model("bad").state == "failed")
    assert cage.pids("bad") == []
    assert cage.supervisor.counters.started == 3
    with pytest.raises(LoadFailedError, match="died 3 times within 60 seconds, last by SIGSEGV"):
        await cage.events(cage.request("bad"))
    result = await cage.service.resize("bad", 1)
    assert result.actual_instance_count == 1
    assert await cage.text("bad") == "fine"


async def test_those_in_line_are_told_when_the_model_fails(make_cage):
    from cardcage.scheduling.plan import RestartPolicy

    cage = make_cage(supervision={"restart": RestartPolicy(max_crashes=1)})
    await load_faulty(cage, "faulty-batch", kind="segfault", trigger="die", answer="word " * 20, delay_seconds=0.01)
    dying = asyncio.create_task(cage.events(cage.request("bad", "die")))
    await cage.until(lambda: cage.service.model("bad").running == 1)
    with pytest.raises(LoadFailedError):
        await cage.events(cage.request("bad"))
    with pytest.raises(EngineCrashedError):
        await dying


async def test_silent_steps_are_progress_and_their_end_is_a_hang(make_cage, narrow):
    class Silent(narrow):
        engine = "narrow:SilentEngine"

    cage = make_cage(
        plugins=(Silent().plugin,),
        supervision={"hang_floor_seconds": 0.5, "unmeasured_prefill_tokens_per_second": 1000.0},
    )
    # Ten steps of 0.2 s without an event: four times the floor.
    await cage.load("one", "narrow", options={"delay_seconds": 0.2})
    assert await cage.text("one") == "at last"
    assert cage.supervisor.counters.hung == 0
    with pytest.raises(EngineHungError):
        await cage.text("one", "stuck")
    assert cage.supervisor.counters.hung == 1
