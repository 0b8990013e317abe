"""A request's way through the service, on real workers."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from cardcage_sdk.chat import ImagePart, Message, Sampling
from cardcage_sdk.embeddings import EmbedRequest, RerankRequest
from cardcage_sdk.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    QueueFullError,
    QueueTimeoutError,
    UnsupportedError,
    WrongModelTypeError,
)
from cardcage_sdk.events import Accepted, Finished, Progress, TextDelta


async def test_answer_begins_with_accepted_and_ends_with_finished(cage):
    await cage.load("one", "scripted", answer="A short answer.")
    events = await cage.events(cage.request("one"))
    assert isinstance(events[0], Accepted)
    assert events[0].prompt_tokens == 5
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "A short answer."
    assert [type(event) for event in events].count(Finished) == 1
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.timings is not None
    assert last.timings.queue_seconds is not None
    assert last.timings.load_seconds == 0.0


async def test_both_shapes_give_the_same_text(cage):
    answer = "Grüße aus 東京, with more than a few words in it."
    await cage.load("blocking", "scripted", answer=answer, piece_bytes=3)
    await cage.load("batch", "scripted-batch", answer=answer, piece_bytes=3)
    assert await cage.text("blocking") == await cage.text("batch") == answer


async def test_faults_of_the_client_come_before_accepted(cage):
    await cage.load("one", "scripted", tasks=["chat"], context_tokens=10)
    await cage.load("vectors", "scripted", tasks=["embed"])
    with pytest.raises(ModelNotFoundError):
        await cage.events(cage.request("two"))
    with pytest.raises(WrongModelTypeError):
        await cage.events(cage.request("vectors"))
    with pytest.raises(WrongModelTypeError):
        await cage.service.embed(EmbedRequest(id="e", model="one", inputs=("a",)))
    with pytest.raises(ContextLengthExceededError) as caught:
        await cage.events(cage.request("one", "word " * 20))
    assert caught.value.context_tokens == 10
    with pytest.raises(UnsupportedError):
        await cage.events(cage.request("one", suffix="end"))


async def test_defaults_fill_what_the_request_leaves_open(make_cage):
    from cardcage_sdk.service import GenerationDefaults, LoadRequest

    cage = make_cage(defaults=GenerationDefaults(sampling=Sampling(max_tokens=1)))
    path = cage.write("one.scripted.json", answer="One two three four.")
    await cage.service.load(
        LoadRequest(
            model_id="one",
            model_path=str(path),
            defaults=GenerationDefaults(sampling=Sampling(max_tokens=2), max_context_len=64),
        )
    )
    assert await cage.text("one") == "One two"
    assert await cage.text("one", sampling=Sampling(max_tokens=3)) == "One two three"
    assert cage.service.model("one").info.context_tokens == 64


async def test_vectors_and_scores(cage):
    await cage.load("vectors", "scripted", tasks=["embed", "rerank"], dimensions=8)
    result = await cage.service.embed(EmbedRequest(id="e", model="vectors", inputs=("a b", "c")))
    assert (result.dimensions, result.prompt_tokens, len(result.vectors)) == (8, (2, 1), 2 * 8 * 4)
    ranked = await cage.service.rerank(RerankRequest(id="k", model="vectors", query="a b", documents=("a b", "x", "b")))
    assert ranked.scores == (1.0, 0.0, 0.5)
    assert cage.service.model("vectors").kind == "embedding"


async def test_places_and_positions_in_the_queue(cage):
    await cage.load("one", "scripted-batch", places=2, delay_seconds=0.02, answer="word " * 50)
    first = cage.service.chat(cage.request("one"))
    async with aclosing(first):
        assert isinstance(await anext(first), Accepted)
        assert isinstance(await anext(first), TextDelta)
        second, third = (cage.service.chat(cage.request("one")) for _ in range(2))
        async with aclosing(second), aclosing(third):
            assert isinstance(await anext(second), Accepted)
            assert await anext(second) == Progress(queue_position=0)
            assert isinstance(await anext(third), Accepted)
            assert await anext(third) == Progress(queue_position=1)
            with pytest.raises(QueueFullError) as caught:
                await cage.events(cage.request("one"))
            assert caught.value.places == 2
            status = cage.service.model("one")
            assert (status.running, status.queued) == (1, 2)
            await first.aclose()
            assert isinstance(await anext(second), TextDelta)
            assert await anext(third) == Progress(queue_position=0)
            await second.aclose()
            assert isinstance(await anext(third), TextDelta)


async def test_waiting_has_an_end(make_cage):
    cage = make_cage(server={"queue_timeout_seconds": 0.2})
    await cage.load("one", "scripted-batch", delay_seconds=0.02, answer="word " * 500)
    async with aclosing(cage.service.chat(cage.request("one"))) as first:
        await anext(first)
        await anext(first)
        with pytest.raises(QueueTimeoutError):
            await cage.events(cage.request("one"))
    assert cage.service.counters.failed["busy"] == 1


async def test_no_places_still_serves_one_at_a_time(cage):
    await cage.load("one", "scripted-batch", places=0, answer="fine")
    assert await cage.text("one") == "fine"


async def test_eight_at_once_on_eight_slots_all_finish_whole(cage):
    await cage.load("one", "scripted-batch", instances=8, echo=True)
    texts = [f"client {number} says its own words" for number in range(8)]
    assert await asyncio.gather(*(cage.text("one", text) for text in texts)) == texts


async def test_a_request_id_is_used_once_at_a_time(cage):
    await cage.load("one", "scripted", delay_seconds=0.02, answer="word " * 100)
    request = cage.request("one")
    async with aclosing(cage.service.chat(request)) as events:
        await anext(events)
        with pytest.raises(InvalidRequestError):
            await cage.events(request)


async def test_choices_share_one_lease(cage):
    await cage.load("one", "scripted-batch", answer="two of me")
    events = await cage.events(cage.request("one", n=2))
    assert [event.choice for event in events if isinstance(event, Finished)] in ([0, 1], [1, 0])
    assert cage.service.model("one").running == 0


async def test_leaving_the_queue_moves_the_others_up(cage):
    await cage.load("one", "scripted-batch", delay_seconds=0.02, answer="word " * 200)
    async with aclosing(cage.service.chat(cage.request("one"))) as running:
        await anext(running)
        await anext(running)
        leaving = asyncio.create_task(cage.events(cage.request("one")))
        await cage.until(lambda: cage.service.model("one").queued == 1)
        async with aclosing(cage.service.chat(cage.request("one"))) as staying:
            await anext(staying)
            assert await anext(staying) == Progress(queue_position=1)
            leaving.cancel()
            assert await anext(staying) == Progress(queue_position=0)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert cage.service.counters.left == 3


async def test_image_paths_outside_the_roots_are_refused(make_cage, tmp_path):
    from cardcage_sdk.errors import PathNotAllowedError, UnsupportedContentPartError

    roots = {"allowed_roots": (tmp_path,)}
    cage = make_cage(security=roots)
    await cage.load("one", "scripted")
    message = Message(role="user", content=(ImagePart(path="/etc/passwd"),))
    request = cage.request("one")
    with pytest.raises(UnsupportedContentPartError):
        await cage.events(type(request)(id="i", model="one", messages=(message,)))
    from cardcage_sdk.service import LoadRequest

    with pytest.raises(PathNotAllowedError):
        await cage.service.load(LoadRequest(model_id="two", model_path="/etc"))
