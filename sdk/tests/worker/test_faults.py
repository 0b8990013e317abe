"""Every way in which a worker can go wrong, in every phase, as the server's end of the pipe sees it."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cardcage_sdk.chat import ChatRequest, Message, TextPart
from cardcage_sdk.errors import (
    EngineFailedError,
    InvalidOptionError,
    LoadFailedError,
    OutOfMemoryError,
    WorkerProtocolError,
)
from cardcage_sdk.events import ChatEvent, Finished, TextDelta
from cardcage_sdk.ipc.client import WorkerLostError
from cardcage_sdk.models import LoadOptions
from cardcage_sdk.testing.launch import LaunchedWorker, launch
from cardcage_sdk.testing.platforms import FaultyBatchPlatform, FaultyPlatform

SCRIPT = {"answer": "one two three four five six seven eight", "amount_bytes": 32 << 20}
SLOTS = LoadOptions(slots=4, max_slots=4)

DEATHS = {
    "segfault": -signal.SIGSEGV,
    "sigkill": -signal.SIGKILL,
    "abort": -signal.SIGABRT,
    "exit": 3,
}


@pytest.fixture(params=[FaultyPlatform(), FaultyBatchPlatform()], ids=lambda platform: platform.name)
def platform(request: pytest.FixtureRequest) -> FaultyPlatform:
    return request.param


@pytest.fixture
def model(tmp_path: Path, platform: FaultyPlatform) -> Path:
    path = tmp_path / f"bad{platform.suffix}"
    path.write_text(json.dumps(SCRIPT), encoding="utf-8")
    return path


def chat(text: str = "hello", request_id: str = "r1") -> ChatRequest:
    return ChatRequest(id=request_id, model="m", messages=(Message(role="user", content=(TextPart(text),)),))


async def collect(worker: LaunchedWorker, request: ChatRequest, into: list[ChatEvent] | None = None) -> str:
    events: list[ChatEvent] = [] if into is None else into
    async for event in worker.connection.chat(request):
        events.append(event)  # noqa: PERF401 - what came before an error has to be in the caller's list
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, TextDelta))


@pytest.mark.parametrize(("kind", "status"), DEATHS.items())
@pytest.mark.parametrize("phase", ["import", "load", "self_test"])
async def test_death_before_ready(platform: FaultyPlatform, model: Path, kind: str, status: int, phase: str) -> None:
    with pytest.raises(LoadFailedError) as caught:
        async with launch(platform, model, options={"kind": kind, "phase": phase}, load_options=SLOTS):
            pass
    if status < 0:
        assert caught.value.signal == signal.Signals(-status).name
    else:
        assert caught.value.exit_code == status
    if kind == "segfault":
        assert "Segmentation fault" in caught.value.log_tail


@pytest.mark.parametrize(("kind", "status"), DEATHS.items())
@pytest.mark.parametrize("phase", ["prepare", "prefill", "decode"])
async def test_death_under_a_request(platform: FaultyPlatform, model: Path, kind: str, status: int, phase: str) -> None:
    options = {"kind": kind, "phase": phase, "trigger": "die", "delay_seconds": 0.005}
    events: list[ChatEvent] = []
    async with launch(platform, model, options=options, load_options=SLOTS) as worker:
        if phase == "prepare":
            with pytest.raises(WorkerLostError):
                await worker.connection.prepare(chat("please die"))
        else:
            other = asyncio.ensure_future(collect(worker, chat("live", "r2")))
            with pytest.raises(WorkerLostError):
                await collect(worker, chat("please die"), events)
            with pytest.raises(WorkerLostError):
                await other
        await worker.lost.wait()
        assert await worker.exit_status() == status
        with pytest.raises(WorkerLostError):
            await worker.connection.prepare(chat())
    # Which of the pieces already sent arrive is the kernel's business; none may come after them.
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) in {"", "one", "one two"}


@pytest.mark.parametrize("phase", ["load", "self_test", "prepare", "prefill", "decode", "cancel", "close"])
async def test_noise_disturbs_nothing(platform: FaultyPlatform, model: Path, phase: str) -> None:
    options = {"kind": "noise", "phase": phase, "delay_seconds": 0.005}
    async with launch(platform, model, options=options, load_options=SLOTS) as worker:
        assert (await worker.connection.prepare(chat())).prompt_tokens == 5
        assert await collect(worker, chat()) == SCRIPT["answer"]
        stream = worker.connection.chat(chat(request_id="r2"))
        await anext(stream)
        await stream.aclose()
        await worker.connection.released("r2")
        assert await collect(worker, chat(request_id="r3")) == SCRIPT["answer"]
        assert await worker.end() == 0
        assert "vendor library speaking" in worker.log or len(worker.log.splitlines()) >= 100


@pytest.mark.parametrize("phase", ["prepare", "prefill", "decode"])
async def test_an_exception_fails_its_request_only(platform: FaultyPlatform, model: Path, phase: str) -> None:
    options = {"kind": "exception", "phase": phase, "trigger": "raise"}
    async with launch(platform, model, options=options, load_options=SLOTS) as worker:
        call = worker.connection.prepare(chat("raise")) if phase == "prepare" else collect(worker, chat("raise"))
        with pytest.raises(EngineFailedError, match="RuntimeError: this engine was told to raise"):
            await call
        await worker.connection.released("r1")
        assert await collect(worker, chat(request_id="r2")) == SCRIPT["answer"]
        assert (await worker.connection.ping()).running == 0
        assert await worker.end() == 0
        assert "Traceback" in worker.log


async def test_an_exception_at_load(platform: FaultyPlatform, model: Path) -> None:
    with pytest.raises(LoadFailedError, match="Loading failed: RuntimeError: this engine was told to raise"):
        async with launch(platform, model, options={"kind": "exception", "phase": "load"}):
            pass


async def test_an_exception_at_the_self_test(platform: FaultyPlatform, model: Path) -> None:
    with pytest.raises(LoadFailedError, match=r"The self-test failed: .*RuntimeError"):
        async with launch(platform, model, options={"kind": "exception", "phase": "self_test"}):
            pass


async def test_a_context_that_holds_no_prompt_is_the_clients_fault(platform: FaultyPlatform, model: Path) -> None:
    with pytest.raises(
        InvalidOptionError, match=r"A context of 3 tokens is too small .* the self-test takes"
    ) as caught:
        async with launch(platform, model, load_options=LoadOptions(context_tokens=3)):
            pass
    assert caught.value.param == "max_context_len"


async def test_an_exception_at_close(platform: FaultyPlatform, model: Path) -> None:
    async with launch(platform, model, options={"kind": "exception", "phase": "close"}) as worker:
        assert await worker.end() == 1
        assert "close failed" in worker.log


async def test_an_exception_at_cancel_withholds_the_release_of_a_step_loop(
    model: Path, platform: FaultyPlatform
) -> None:
    options = {"kind": "exception", "phase": "cancel", "delay_seconds": 0.005}
    async with launch(platform, model, options=options, load_options=SLOTS) as worker:
        stream = worker.connection.chat(chat())
        await anext(stream)
        await stream.aclose()
        if isinstance(platform, FaultyBatchPlatform):
            # Nobody knows whether the engine forgot the request, so the worker must not say that it has.
            await worker.connection.ping()
            assert not asyncio.ensure_future(worker.connection.released("r1")).done()
        else:
            await worker.connection.released("r1")
        assert await collect(worker, chat(request_id="r2")) == SCRIPT["answer"]


async def test_memory_that_runs_out_while_loading(platform: FaultyPlatform, model: Path) -> None:
    with pytest.raises(OutOfMemoryError, match="ran out of memory"):
        async with launch(platform, model, options={"kind": "memory", "phase": "load"}):
            pass


async def test_memory_that_runs_out_under_a_request(platform: FaultyPlatform, model: Path) -> None:
    options = {"kind": "memory", "phase": "prefill", "trigger": "much"}
    async with launch(platform, model, options=options) as worker:
        with pytest.raises(EngineFailedError, match="MemoryError"):
            await collect(worker, chat("too much"))
        assert await collect(worker, chat(request_id="r2")) == SCRIPT["answer"]


async def test_a_leak_shows_in_the_worker_s_figures(platform: FaultyPlatform, model: Path) -> None:
    async with launch(platform, model, options={"kind": "leak", "phase": "prefill", "trigger": "leak"}) as worker:
        before = (await worker.connection.ping()).rss_bytes
        await collect(worker, chat("leak"))
        assert (await worker.connection.ping()).rss_bytes - before > 24 << 20


@pytest.mark.parametrize("phase", ["prefill", "decode", "cancel"])
async def test_a_hang_leaves_pings_answered_and_ends_with_the_pipe(
    platform: FaultyPlatform, model: Path, phase: str
) -> None:
    options = {"kind": "hang", "phase": phase, "delay_seconds": 0.005}
    async with launch(platform, model, options=options, load_options=SLOTS) as worker:
        stream = worker.connection.chat(chat())
        pending = asyncio.ensure_future(anext(stream))
        if phase == "cancel":
            await pending
            await stream.aclose()
        while (await worker.connection.ping()).running != 1:
            assert not worker.lost.is_set()
        worker.connection.abort()
        with pytest.raises(WorkerLostError):
            await (worker.connection.ping() if phase == "cancel" else _drain(pending, stream))
        assert await worker.exit_status() in {0, 1}


async def _drain(pending: "asyncio.Future[ChatEvent]", stream: Any) -> None:
    await pending
    async for _ in stream:
        pass


async def test_a_hang_while_loading_leaves_pings_answered(platform: FaultyPlatform, model: Path) -> None:
    loading = asyncio.ensure_future(_hang_loading(platform, model))
    done, _ = await asyncio.wait([loading], timeout=45)
    assert done
    await loading


async def _hang_loading(platform: FaultyPlatform, model: Path) -> None:
    from cardcage_sdk.testing.launch import engine_target, model_artifact, start_worker

    worker = start_worker()
    try:
        await worker.connection.open(timeout_seconds=30)
        options = LoadOptions(options={"kind": "hang", "phase": "load"})
        load = asyncio.ensure_future(
            worker.connection.load(engine_target(platform), model_artifact(model), options, platform.capabilities)
        )
        await asyncio.sleep(0)
        assert (await worker.connection.ping()).running == 0
        worker.connection.abort()
        with pytest.raises(WorkerLostError):
            await load
        assert await worker.exit_status() in {0, 1}
    finally:
        worker.kill()


async def test_garbage_on_the_pipe_is_named(platform: FaultyPlatform, model: Path) -> None:
    options = {"kind": "lie_frame", "phase": "prefill", "trigger": "garbage"}
    async with launch(platform, model, options=options) as worker:
        with pytest.raises(WorkerProtocolError, match="over the limit"):
            await collect(worker, chat("garbage"))
        await worker.lost.wait()
        with pytest.raises(WorkerProtocolError):
            await worker.connection.ping()


async def test_an_answer_without_end(model: Path, platform: FaultyPlatform) -> None:
    options = {"kind": "lie_no_finished", "phase": "decode", "trigger": "endless"}
    async with launch(platform, model, options=options, load_options=SLOTS) as worker:
        if isinstance(platform, FaultyBatchPlatform):
            # A step loop that never says the end looks like one that thinks; leaving it must be possible.
            stream = worker.connection.chat(chat("endless"))
            for _ in range(8):
                await anext(stream)
            await stream.aclose()
            await worker.connection.released("r1")
        else:
            with pytest.raises(EngineFailedError, match="ended its answer without Finished"):
                await collect(worker, chat("endless"))
        assert await collect(worker, chat(request_id="r2")) == SCRIPT["answer"]


def test_a_worker_that_holds_the_gil_dies_with_its_server(tmp_path: Path) -> None:
    model = tmp_path / "bad.faulty.json"
    model.write_text(json.dumps({**SCRIPT, "kind": "hang_gil", "phase": "prefill"}))
    server = subprocess.Popen([sys.executable, "-c", _SERVER, str(model)], stdout=subprocess.PIPE, text=True)
    with server:
        assert server.stdout is not None
        worker = os.pidfd_open(int(server.stdout.readline()))
        try:
            assert server.stdout.readline() == "hangs\n"
            assert not _has_ended(worker, timeout_seconds=0), "the worker must be there while its server is"
            server.kill()
            assert _has_ended(worker, timeout_seconds=20), "the worker outlived its server"
        finally:
            os.close(worker)


def _has_ended(pidfd: int, *, timeout_seconds: float) -> bool:
    return bool(select.select([pidfd], [], [], timeout_seconds)[0])


_SERVER = """
import asyncio, sys
from cardcage_sdk.chat import ChatRequest, Message, TextPart
from cardcage_sdk.testing import FaultyPlatform
from cardcage_sdk.testing.launch import launch

async def main():
    async with launch(FaultyPlatform(), sys.argv[1]) as worker:
        print(worker.process.pid, flush=True)
        request = ChatRequest(id="r", model="m", messages=(Message(role="user", content=(TextPart("x"),)),))
        answer = asyncio.ensure_future(anext(worker.connection.chat(request)))
        while not answer.done():
            ping = asyncio.ensure_future(worker.connection.ping())
            if not (await asyncio.wait([ping], timeout=1.0))[0]:
                print("hangs", flush=True)
                await asyncio.Event().wait()

asyncio.run(main())
"""
