"""A real model, through a worker process, a platform and a dialect that core found by entry point."""

import asyncio
import os
import signal
import threading
import time

import openai
import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(240)]

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
PROMPTS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write a short sentence about the sea.",
    "How many legs has a spider?",
    "Who wrote Romeo and Juliet?",
    "Say hello in Spanish.",
    "What do bees make?",
    "Name a planet of our solar system.",
]


@pytest.fixture
def client(smollm2):
    with openai.OpenAI(base_url=f"{smollm2.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        yield client


def test_the_official_client_chats(client):
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens > 10
    assert 0 < answer.usage.completion_tokens <= 40


def test_the_official_client_streams_the_same_text(client):
    plain = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=40)
    pieces, usage, reasons = [], None, []
    with client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        temperature=0,
        max_tokens=40,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                reasons += [choice.finish_reason] if choice.finish_reason else []
    assert len([piece for piece in pieces if piece]) > 3
    assert "".join(pieces) == plain.choices[0].message.content
    assert reasons == ["stop"]
    assert usage.completion_tokens == plain.usage.completion_tokens


def test_the_official_client_lists_models_and_knows_errors(client):
    assert [model.id for model in client.models.list()] == ["smollm2"]
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nobody", messages=QUESTION)
    assert caught.value.code == "model_not_found"


async def ask(client, prompt):
    pieces, finished = [], None
    stream = await client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": prompt}],
        temperature=0,
        max_tokens=24,
        stream=True,
    )
    async for chunk in stream:
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finished = choice.finish_reason or finished
    return "".join(pieces), finished


async def test_eight_clients_at_once_all_finish_whole(smollm2, record_property, capsys):
    async with openai.AsyncOpenAI(base_url=f"{smollm2.url}/v1", api_key="none", timeout=120, max_retries=0) as client:
        alone = [await ask(client, prompt) for prompt in PROMPTS]
        together = await asyncio.gather(*(ask(client, prompt) for prompt in PROMPTS))
    for text, finished in together:
        assert text.strip()
        assert finished in {"stop", "length"}
    # Shapes of a batch may round differently, so a differing text is reported and is no failure.
    differing = sum(one != other for one, other in zip(alone, together, strict=True))
    record_property("texts_that_differ_from_alone", differing)
    with capsys.disabled():
        print(f"\n8 clients at once: all whole, {differing} of 8 texts differ from the text that each gets alone")


def test_a_worker_killed_in_mid_stream_tells_its_client_and_is_replaced(smollm2, client):
    pid = [event["pid"] for event in smollm2.events("worker ready")][-1]
    texts = []
    with smollm2.http() as http:
        body = {
            "model": "smollm2",
            "messages": [{"role": "user", "content": "Tell me a very long story about a fox."}],
            "max_tokens": 2000,
            "stream": True,
        }
        killed_at = None
        with http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                texts.append(line)
                if killed_at is None and len(texts) > 20:
                    os.kill(pid, signal.SIGSEGV)
                    killed_at = time.monotonic()
            told_after = time.monotonic() - killed_at
    assert "event: error" in texts
    assert "SIGSEGV" in texts[-2] or "SIGSEGV" in texts[-1]
    assert "data: [DONE]" not in texts
    assert told_after < 1.0
    # The next request waits for the replacement and is served.
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=0, max_tokens=40)
    assert "Paris" in answer.choices[0].message.content
    assert [event["pid"] for event in smollm2.events("worker ready")][-1] != pid


def test_the_command_line_answers(smollm2):
    result = smollm2.command(
        "run", "smollm2", QUESTION[0]["content"], "--temperature", "0", "--max-tokens", "40", "--stats"
    )
    assert result.returncode == 0, result.stderr
    assert "Paris" in result.stdout
    stats = dict(line.split(": ") for line in result.stderr.splitlines())
    assert int(stats["prompt tokens"]) > 10
    assert 0 < int(stats["completion tokens"]) <= 40
    assert float(stats["first token"].removesuffix(" ms")) > 0
    assert float(stats["token/s"]) > 0
    # It was loaded by name, so it stays.
    assert smollm2.models() == ["smollm2"]


def test_ctrl_c_stops_the_engine(smollm2):
    """The client goes in mid-stream; the server's slot is free soon after."""
    process = smollm2.start_command(
        "run",
        "smollm2",
        "Tell me a very long story about a fox.",
        "--max-tokens",
        "2000",
        stdout=-1,
        stderr=-1,
        text=True,
    )
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    rest, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert first + rest
    assert "Traceback" not in complaint
    with smollm2.http() as http:

        def is_free():
            (model,) = http.get("/readyz").json()["models"]
            return model["running"] == 0

        while not is_free():
            assert time.monotonic() - started < 5
            threading.Event().wait(0.02)
