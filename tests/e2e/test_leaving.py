"""A client that leaves gives its slot of a real engine back, wherever its request is.

Each way of leaving is done several times and the times are printed. The promise is half a second; on a machine that
others keep busy a single try may miss it, so the best try of each way must keep it and no try may take longer than the
engine's declared limit.
"""

import asyncio
import time

import httpx
import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

TRIES = 3
PROMISED_SECONDS = 0.5
DECLARED_SECONDS = 2.0
STORY = "Tell me a very long story about a fox."
LONG = " ".join(f"Fact {number}: the fox ran over hill number {number * 7}." for number in range(330))


def body(content, *, stream, salt, max_tokens=2000):
    return {
        "model": "smollm2",
        "messages": [{"role": "user", "content": f"Try {salt}. {content}"}],
        "stream": stream,
        "max_tokens": max_tokens,
        "temperature": 0,
    }


async def state(client):
    (model,) = (await client.get("/readyz")).json()["models"]
    return model["running"], model["queued"]


async def wait_for_state(client, expected, seconds=60.0):
    """Return the seconds until the model has so many running and queued requests."""
    start = time.monotonic()
    while await state(client) != expected:
        assert time.monotonic() - start < seconds, f"{await state(client)} instead of {expected}"
        await asyncio.sleep(0.01)
    return time.monotonic() - start


async def leave_after_tokens(url, salt):
    """A stream of which some tokens were read."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
        client.stream("POST", "/v1/chat/completions", json=body(STORY, stream=True, salt=salt)) as response,
    ):
        lines = response.aiter_lines()
        for _ in range(12):
            await anext(lines)


async def leave_while_running(url, salt, *, content, stream):
    """A request that is known to run, left before its answer began to arrive."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as watcher,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client,
    ):
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=body(content, stream=stream, salt=salt)))
        await wait_for_state(watcher, (1, 0))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("way", ["stream", "plain", "prefill"])
async def test_the_slot_is_free_again(smollm2, way, capsys):
    times = []
    async with httpx.AsyncClient(base_url=smollm2.url, timeout=60, trust_env=False) as watcher:
        for number in range(TRIES):
            salt = f"{way} {number} {time.monotonic_ns()}"
            if way == "stream":
                await leave_after_tokens(smollm2.url, salt)
            elif way == "plain":
                await leave_while_running(smollm2.url, salt, content=STORY, stream=False)
            else:
                await leave_while_running(smollm2.url, salt, content=LONG, stream=True)
            times.append(await wait_for_state(watcher, (0, 0)))
        answer = await watcher.post("/v1/chat/completions", json=body("Hello", stream=False, salt=0, max_tokens=4))
    with capsys.disabled():
        print(f"\nleft in {way}: slot free after {', '.join(f'{seconds * 1000:.0f} ms' for seconds in times)}")
    assert answer.status_code == 200
    assert min(times) < PROMISED_SECONDS
    assert max(times) < DECLARED_SECONDS


async def test_a_place_in_the_queue_is_free_again(smollm2, capsys):
    times = []
    async with (
        httpx.AsyncClient(base_url=smollm2.url, timeout=120, trust_env=False) as client,
        httpx.AsyncClient(base_url=smollm2.url, timeout=60, trust_env=False) as watcher,
    ):
        salt = time.monotonic_ns()
        running = [
            asyncio.create_task(
                client.post("/v1/chat/completions", json=body(STORY, stream=False, salt=f"{salt} {number}"))
            )
            for number in range(4)
        ]
        await wait_for_state(watcher, (4, 0))
        for number in range(TRIES):
            async with httpx.AsyncClient(base_url=smollm2.url, timeout=60, trust_env=False) as leaver:
                waiting = asyncio.create_task(
                    leaver.post(
                        "/v1/chat/completions", json=body("Hello", stream=bool(number % 2), salt=f"{salt} q{number}")
                    )
                )
                await wait_for_state(watcher, (4, 1))
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            times.append(await wait_for_state(watcher, (4, 0)))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await wait_for_state(watcher, (0, 0))
    with capsys.disabled():
        print(f"\nleft in the queue: place free after {', '.join(f'{seconds * 1000:.0f} ms' for seconds in times)}")
    assert min(times) < PROMISED_SECONDS
