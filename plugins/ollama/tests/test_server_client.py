"""The official `ollama` Python client, unmodified, against a real server."""

from __future__ import annotations

import asyncio
import hashlib
import math
from datetime import UTC, datetime, timedelta

import ollama
import pytest
from ollama_serving import Server

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>'


def weather(city: str, days: int = 1) -> str:
    """Tell the weather.

    Args:
        city: Where.
        days: How many.
    """
    return f"{city} {days}"


@pytest.fixture(scope="module")
def fox(server: Server) -> str:
    return server.add(name="fox:1b", answer="Hello there, friend.", rules={"weather": CALL}, reasoning="Let me think.")


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_chat(server: Server, fox: str) -> None:
    answer = server.ollama.chat(fox, said("hi"), think=False)
    assert answer.message.content == "Hello there, friend."
    assert answer.message.thinking is None
    assert (answer.done, answer.done_reason, answer.eval_count) == (True, "stop", 3)
    assert answer["message"]["role"] == "assistant"
    assert answer.created_at is not None
    assert datetime.now(UTC) - datetime.fromisoformat(answer.created_at) < timedelta(minutes=1)


def test_stream_and_thinking(server: Server, fox: str) -> None:
    chunks = list(server.ollama.chat(fox, said("hi"), stream=True, think=True))
    assert "".join(chunk.message.content or "" for chunk in chunks) == "Hello there, friend."
    assert "".join(chunk.message.thinking or "" for chunk in chunks) == "Let me think."
    assert [chunk.done for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].total_duration >= chunks[-1].eval_duration > 0


def test_tools(server: Server, fox: str) -> None:
    answer = server.ollama.chat(fox, said("weather?"), tools=[weather], think=False)
    (call,) = answer.message.tool_calls or ()
    assert call.function.name == "weather"
    assert call.function.arguments == {"city": "Paris", "days": 2}
    again = [*said("weather?"), answer.message, {"role": "tool", "content": weather("Paris"), "tool_name": "weather"}]
    assert server.ollama.chat(fox, [*again, *said("so?")], tools=[weather], think=False).message.content


def test_structured_output(server: Server, fox: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    assert server.ollama.chat(fox, said("hi"), format=schema, think=False).message.content == '{"n": 0}'
    assert (
        server.ollama.generate(fox, "hi", format="json", think=False).response == '{"answer": "Hello there, friend."}'
    )


def test_generate_with_context(server: Server) -> None:
    echo = server.add(echo=True)
    first = server.ollama.generate(echo, "one two")
    assert first.response == "one two"
    second = server.ollama.generate(echo, "three", context=first.context)
    assert second.response == "three"
    # 4 tokens a message; one for each word or stretch of blanks.
    assert (first.prompt_eval_count, second.prompt_eval_count) == (4 + 2, 4 + 2 + 4 + 2 + 4 + 1)
    chunks = list(server.ollama.generate(echo, "three", context=first.context, stream=True))
    assert chunks[-1].context == second.context


def test_embeddings(server: Server) -> None:
    model = server.add(tasks=["embed"], dimensions=8)
    answer = server.ollama.embed(model, ["one", "two"])
    assert [len(vector) for vector in answer.embeddings] == [8, 8]
    assert math.fsum(value * value for value in answer.embeddings[0]) == pytest.approx(1.0)
    assert server.ollama.embed(model, "one").embeddings[0] == answer.embeddings[0]
    shorter = server.ollama.embed(model, "one", dimensions=3).embeddings[0]
    assert math.fsum(value * value for value in shorter) == pytest.approx(1.0)
    old = server.ollama.embeddings(model, "one").embedding
    assert math.fsum(value * value for value in old) != pytest.approx(1.0)
    assert old[0] / old[1] == pytest.approx(answer.embeddings[0][0] / answer.embeddings[0][1])
    assert server.ollama.embed(model, []).embeddings == []


def test_list_show_and_ps(server: Server, fox: str) -> None:
    listed = {model.model: model for model in server.ollama.list().models}
    assert listed[fox].details is not None
    assert (listed[fox].details.family, listed[fox].details.parameter_size) == ("llama", "134.52M")
    assert len(listed[fox].digest or "") == 64
    shown = server.ollama.show("FOX")
    assert shown.capabilities == ["completion", "tools", "thinking", "embedding"]
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "llama"
    server.ollama.generate(fox, keep_alive=100)
    loaded = {model.model: model for model in server.ollama.ps().models}
    assert loaded[fox].digest == listed[fox].digest
    assert loaded[fox].context_length == 4096
    assert loaded[fox].expires_at is not None
    assert timedelta(seconds=80) < loaded[fox].expires_at - datetime.now(UTC) < timedelta(seconds=101)


def test_create_copy_and_delete(server: Server, fox: str) -> None:
    client = server.ollama
    statuses = [step.status for step in client.create("mario", from_=fox, system="Be Mario.", stream=True)]
    assert statuses[-2:] == ["writing manifest", "success"]
    assert client.create("mario", from_=fox, system="Be Luigi.", parameters={"temperature": 0.5}).status == "success"
    assert client.show("mario").parameters == f"{'temperature':<30} 0.5"
    assert client.chat("mario", said("hi"), think=False).message.content == "Hello there, friend."
    assert client.copy("mario", "me/plumber:v1").status == "success"
    names = [model.model for model in client.list().models]
    assert {"mario:latest", "me/plumber:v1"} <= set(names)
    digests = {model.model: model.digest for model in client.list().models}
    assert digests["mario:latest"] == digests["me/plumber:v1"] != digests[fox]
    for name in ("mario", "me/plumber:v1"):
        assert client.delete(name).status == "success"
    assert not {"mario:latest", "me/plumber:v1"} & {model.model for model in client.list().models}
    with pytest.raises(ollama.ResponseError, match="not found") as caught:
        client.show("mario")
    assert caught.value.status_code == 404


def test_a_model_from_an_upload(server: Server, tmp_path) -> None:
    file = tmp_path / "up.scripted.json"
    file.write_text('{"answer": "from a file"}')
    digest = server.ollama.create_blob(file)
    assert digest == "sha256:" + hashlib.sha256(file.read_bytes()).hexdigest()
    server.ollama.create("uploaded", files={file.name: digest})
    assert server.ollama.generate("uploaded", "x").response == "from a file"


def test_a_system_text_reaches_the_prompt_unless_the_client_has_its_own(server: Server) -> None:
    echo = server.add(echo=True)
    server.ollama.create("wordy", from_=echo, system="one two three")
    count = server.ollama.chat("wordy", said("hi")).prompt_eval_count
    own = server.ollama.chat("wordy", [{"role": "system", "content": "one"}, *said("hi")]).prompt_eval_count
    # 4 tokens a message; one for each word with the blanks before it.
    assert (count, own) == (4 + 3 + 4 + 1, 4 + 1 + 4 + 1)


def test_errors(server: Server, fox: str) -> None:
    with pytest.raises(ollama.ResponseError, match="model 'nobody' not found") as caught:
        server.ollama.chat("nobody", said("hi"))
    assert caught.value.status_code == 404
    broken = server.add("faulty", kind="sigkill", phase="decode", after_tokens=2, delay_seconds=0.1)
    with pytest.raises(ollama.ResponseError, match="died by SIGKILL") as caught:
        for _ in server.ollama.generate(broken, "x", stream=True):
            pass
    # The status was sent with the first line, so the error is the last one.
    assert caught.value.status_code == -1


def test_the_asynchronous_client(server: Server, fox: str) -> None:
    async def run() -> tuple[str, str]:
        client = ollama.AsyncClient(host=server.url, timeout=30, trust_env=False)
        whole = await client.chat(fox, said("hi"), think=False)
        pieces = [piece.message.content or "" async for piece in await client.chat(fox, said("hi"), stream=True)]
        await client.close()
        return whole.message.content or "", "".join(pieces)

    assert asyncio.run(run()) == ("Hello there, friend.",) * 2
