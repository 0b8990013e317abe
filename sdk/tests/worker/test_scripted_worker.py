"""Both shapes of engine in a real worker process, through the server's end of the pipe."""

import asyncio
import json
from pathlib import Path

import pytest

from cardcage_sdk.chat import ChatRequest, Message, Sampling, TextPart, ToolChoice, ToolSpec
from cardcage_sdk.embeddings import EmbedRequest, RerankRequest
from cardcage_sdk.errors import ContextLengthExceededError, LoadFailedError, UnsupportedError
from cardcage_sdk.events import ChatEvent, Finished, ReasoningDelta, TextDelta, ToolCallDelta
from cardcage_sdk.ipc.client import WorkerConnection, WorkerLostError
from cardcage_sdk.models import LoadOptions
from cardcage_sdk.platform import Platform
from cardcage_sdk.testing.launch import launch
from cardcage_sdk.testing.platforms import ScriptedBatchPlatform, ScriptedPlatform

PLATFORMS = [ScriptedPlatform(), ScriptedBatchPlatform()]
SLOTS = LoadOptions(slots=4, max_slots=8)


@pytest.fixture(params=PLATFORMS, ids=lambda platform: platform.name)
def platform(request: pytest.FixtureRequest) -> Platform:
    return request.param


@pytest.fixture
def model(tmp_path: Path, platform: ScriptedPlatform) -> Path:
    path = tmp_path / f"hello{platform.suffix}"
    path.write_text(json.dumps({"answer": "Grüße aus der 🛠️ Werkstatt, alles ist gut.", "context_tokens": 200}))
    return path


def chat(text: str = "hello", *, request_id: str = "r1", **fields: object) -> ChatRequest:
    sampling = {name: fields.pop(name) for name in list(fields) if name in Sampling.__dataclass_fields__}
    return ChatRequest(
        id=request_id,
        model="m",
        messages=(Message(role="user", content=(TextPart(text),)),),
        sampling=Sampling(**sampling),  # type: ignore[arg-type]
        **fields,  # type: ignore[arg-type]
    )


async def collect(connection: WorkerConnection, request: ChatRequest) -> list[ChatEvent]:
    return [event async for event in connection.chat(request)]


def text_of(events: list[ChatEvent], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta) and event.choice == choice)


def finish(events: list[ChatEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]


async def test_answer_usage_and_times(platform: Platform, model: Path) -> None:
    async with launch(platform, model, load_options=SLOTS) as worker:
        accepted = await worker.connection.prepare(chat())
        events = await collect(worker.connection, chat())
        stats = await worker.connection.ping()
    assert accepted.prompt_tokens == 5
    assert text_of(events) == "Grüße aus der 🛠️ Werkstatt, alles ist gut."
    done = finish(events)
    assert done.reason == "stop"
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (5, 8)
    assert done.timings is not None
    assert done.timings.prefill_seconds is not None
    assert done.timings.decode_seconds is not None
    assert stats.running == 0
    assert stats.steps > 0
    assert stats.rss_bytes > 5_000_000
    assert stats.prefill_tokens_per_second is not None


@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 5])
async def test_only_whole_characters_cross(platform: Platform, model: Path, piece_bytes: int) -> None:
    async with launch(platform, model, options={"piece_bytes": piece_bytes}) as worker:
        events = await collect(worker.connection, chat())
    assert text_of(events) == "Grüße aus der 🛠️ Werkstatt, alles ist gut."
    assert all("\ufffd" not in event.text for event in events if isinstance(event, TextDelta))


async def test_stop_string_ends_answer_and_frees_engine(platform: Platform, model: Path) -> None:
    async with launch(platform, model, options={"piece_bytes": 3, "delay_seconds": 0.001}) as worker:
        events = await collect(worker.connection, chat(stop=("Werkstatt,",)))
        await worker.connection.released("r1")
        assert (await worker.connection.ping()).running == 0
        steps = (await worker.connection.ping()).steps
        again = await collect(worker.connection, chat(request_id="r2", stop=("Werkstatt,",)))
        assert (await worker.connection.ping()).steps > steps
    assert text_of(events) == text_of(again) == "Grüße aus der 🛠️ "
    assert finish(events).reason == "stop"
    assert finish(events).stop_sequence == "Werkstatt,"


async def test_several_choices_are_told_apart(platform: Platform, model: Path) -> None:
    options = {"answers": ["one two three", "four five six", "seven eight nine"]}
    async with launch(platform, model, options=options, load_options=SLOTS) as worker:
        events = await collect(worker.connection, chat(n=3, temperature=1.0, seed=7, stop=("five",)))
        await worker.connection.released("r1")
    texts = sorted(text_of(events, choice) for choice in range(3))
    assert texts == ["four ", "one two three", "seven eight nine"]
    assert sorted(event.choice for event in events if isinstance(event, Finished)) == [0, 1, 2]


async def test_reasoning_and_tool_calls(platform: Platform, model: Path) -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
    options = {"reasoning": "They want the weather.", "answer": call, "piece_bytes": 4}
    tools = (ToolSpec(name="weather", parameters={"type": "object"}),)
    async with launch(platform, model, options=options, load_options=SLOTS) as worker:
        events = await collect(worker.connection, chat(tools=tools))
        plain = await collect(worker.connection, chat(request_id="r2", enable_thinking=False))
        none = await collect(worker.connection, chat(request_id="r3", tools=tools, tool_choice=ToolChoice(mode="none")))
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "They want the weather."
    calls = [event for event in events if isinstance(event, ToolCallDelta)]
    assert calls[0].name == "weather"
    assert calls[0].id is not None
    assert json.loads("".join(event.arguments for event in calls)) == {"city": "Köln"}
    assert text_of(events) == ""
    assert finish(events).reason == "tool_calls"
    usage = finish(events).usage
    assert usage is not None
    assert usage.reasoning_tokens
    assert text_of(plain) == call
    assert not [event for event in plain if isinstance(event, ReasoningDelta)]
    assert text_of(none) == call
    assert finish(none).reason == "stop"


async def test_prompt_that_opened_the_reasoning(platform: Platform, model: Path) -> None:
    options = {"reasoning": "Hm.", "answer": "Yes.", "opens_reasoning": True}
    async with launch(platform, model, options=options) as worker:
        events = await collect(worker.connection, chat())
        assert (await worker.connection.prepare(chat(request_id="r2"))).starts_in_reasoning
    assert [type(event) for event in events] == [ReasoningDelta, TextDelta, Finished]
    assert text_of(events) == "Yes."


async def test_many_at_once(platform: Platform, model: Path) -> None:
    options = {"echo": True, "delay_seconds": 0.001}
    async with launch(platform, model, options=options, load_options=SLOTS) as worker:
        asked = [f"number {number} of many questions" for number in range(8)]
        answers = await asyncio.gather(*(collect(worker.connection, chat(text, request_id=text)) for text in asked))
        assert (await worker.connection.ping()).running == 0
    assert [text_of(events) for events in answers] == asked


async def test_context_overflow_is_refused_before_and_at_the_start(platform: Platform, model: Path) -> None:
    long = chat(" ".join(["word"] * 300))
    async with launch(platform, model) as worker:
        with pytest.raises(ContextLengthExceededError) as caught:
            await worker.connection.prepare(long)
        with pytest.raises(ContextLengthExceededError):
            await collect(worker.connection, long)
        assert text_of(await collect(worker.connection, chat(request_id="r2"))).startswith("Grüße")
    assert caught.value.fields == {"prompt_tokens": 304, "context_tokens": 200}
    assert caught.value.param == "messages"


async def test_leaving_cancels_and_releases(platform: Platform, model: Path) -> None:
    async with launch(platform, model, options={"echo": True, "delay_seconds": 0.01}, load_options=SLOTS) as worker:
        stream = worker.connection.chat(chat("word " * 100))
        first = await anext(stream)
        assert isinstance(first, TextDelta)
        assert (await worker.connection.ping()).running == 1
        await stream.aclose()
        await worker.connection.released("r1")
        assert (await worker.connection.ping()).running == 0


async def test_cancelled_task_in_prefill(platform: Platform, model: Path) -> None:
    options = {"prefill_steps": 1_000_000, "delay_seconds": 0.001, "prefill_seconds": 600.0}
    async with launch(platform, model, options=options) as worker:
        task = asyncio.create_task(collect(worker.connection, chat()))
        while not (await worker.connection.ping()).running:
            pass
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await worker.connection.released("r1")
        assert (await worker.connection.ping()).running == 0


async def test_embed_and_rerank(platform: Platform, model: Path) -> None:
    async with launch(platform, model, load_options=SLOTS) as worker:
        result = await worker.connection.embed(EmbedRequest(id="e1", model="m", inputs=("a b", "c")))
        scores = await worker.connection.rerank(
            RerankRequest(id="e2", model="m", query="red fox", documents=("a red fox", "a dog"))
        )
        await worker.connection.released("e1")
    assert result.dimensions == 16
    assert len(result.vectors) == 2 * 16 * 4
    assert result.prompt_tokens == (2, 1)
    assert scores.scores == (1.0, 0.0)


async def test_resize(platform: Platform, model: Path) -> None:
    async with launch(platform, model, load_options=SLOTS) as worker:
        if platform.scaling.unit == "slots":
            assert await worker.connection.resize(8) == 8
        else:
            with pytest.raises(UnsupportedError):
                await worker.connection.resize(8)
        await worker.connection.set_cpu_threads(2)
        assert text_of(await collect(worker.connection, chat())).startswith("Grüße")


async def test_shutdown_in_mid_answer_ends_the_stream_and_the_process(platform: Platform, model: Path) -> None:
    async with launch(platform, model, options={"echo": True, "delay_seconds": 0.01}, load_options=SLOTS) as worker:
        stream = worker.connection.chat(chat("word " * 100))
        await anext(stream)
        assert await worker.end() == 0
        with pytest.raises(WorkerLostError):
            async for _ in stream:
                pass
        with pytest.raises(WorkerLostError):
            await worker.connection.ping()


async def test_worker_ends_when_the_pipe_does(platform: Platform, model: Path) -> None:
    async with launch(platform, model, options={"echo": True, "delay_seconds": 0.01}) as worker:
        await anext(worker.connection.chat(chat("word " * 100)))
        worker.connection.abort()
        assert await worker.exit_status() == 0


async def test_a_model_that_is_none(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "broken.scripted.json"
    path.write_text("{")
    with pytest.raises(Exception, match="is no script") as caught:
        async with launch(platform, path):
            pass
    assert caught.value.code == "invalid_model"  # type: ignore[attr-defined]


async def test_an_engine_that_does_not_exist(model: Path) -> None:
    class Missing(ScriptedPlatform):
        engine = "cardcage_sdk.testing.nowhere:Engine"

    with pytest.raises(LoadFailedError, match=r"cannot be imported: ModuleNotFoundError"):
        async with launch(Missing(), model):
            pass


async def test_a_class_that_is_no_engine(model: Path) -> None:
    class Wrong(ScriptedPlatform):
        engine = "cardcage_sdk.testing.script:Script"

    with pytest.raises(LoadFailedError, match="neither an Engine nor a BatchEngine"):
        async with launch(Wrong(), model):
            pass
