"""The official Python client against a real server, in both profiles."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import httpx2
import openai
import pydantic
import pytest
from serving import Server

WEATHER: openai.types.chat.ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class Client:
    """An `openai` client that counts the requests which it really sends."""

    def __init__(self, server: Server) -> None:
        self.sent = 0
        http = httpx2.Client(event_hooks={"request": [self._count]})
        self.api = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http, max_retries=2)

    def _count(self, request: httpx2.Request) -> None:
        self.sent += 1


@pytest.fixture(params=["llamapi", "openai"])
def anyone(request: pytest.FixtureRequest) -> Server:
    """A server of either profile."""
    name = "server" if request.param == "llamapi" else "openai_server"
    found = request.getfixturevalue(name)
    assert isinstance(found, Server)
    return found


@pytest.fixture
def client(anyone: Server) -> Iterator[Client]:
    made = Client(anyone)
    with made.api:
        yield made


@pytest.fixture
def model(anyone: Server) -> Iterator[str]:
    rules = {"weather": f"I will look. {CALL}", "emoji": "a👩‍🚀b", "two": f"{CALL}\n{CALL}"}
    with anyone.loaded(answer="Hello there, friend.", rules=rules, piece_bytes=3) as model_id:
        yield model_id


def ask(text: str = "hi") -> list[openai.types.chat.ChatCompletionMessageParam]:
    return [{"role": "user", "content": text}]


def test_models(client: Client, model: str) -> None:
    assert model in [entry.id for entry in client.api.models.list()]
    assert client.api.models.retrieve(model).id == model


def test_chat(client: Client, model: str) -> None:
    answer = client.api.chat.completions.create(model=model, messages=ask("emoji"), temperature=0, seed=-7)
    assert answer.choices[0].message.content == "a👩‍🚀b"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage
    assert answer.usage.total_tokens > 0
    assert answer.system_fingerprint
    assert client.sent == 1


def test_stream_with_usage(client: Client, model: str) -> None:
    stream = client.api.chat.completions.create(
        model=model, messages=ask("emoji"), stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "a👩‍🚀b"
    assert chunks[-1].choices == []
    assert chunks[-1].usage
    plain = client.api.chat.completions.create(model=model, messages=ask("emoji"))
    assert plain.usage
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_streaming_helper_takes_every_event(client: Client, model: str) -> None:
    with client.api.chat.completions.stream(model=model, messages=ask("weather"), tools=[WEATHER]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert "tool_calls.function.arguments.done" in kinds
    calls = final.choices[0].message.tool_calls
    assert calls
    assert calls[0].function.name == "weather"
    assert json.loads(calls[0].function.arguments) == {"city": "Paris"}
    assert final.choices[0].finish_reason == "tool_calls"


def test_choices(client: Client, model: str) -> None:
    answer = client.api.chat.completions.create(model=model, messages=ask(), n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    stream = client.api.chat.completions.create(model=model, messages=ask(), n=3, stream=True)
    texts = {0: "", 1: "", 2: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert set(texts.values()) == {"Hello there, friend."}


def test_tools(client: Client, model: str) -> None:
    answer = client.api.chat.completions.create(model=model, messages=ask("weather"), tools=[WEATHER])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content or "").strip() == "I will look."
    assert choice.message.tool_calls
    call = choice.message.tool_calls[0]
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Paris"})
    # What an agent does next: send it all back.
    follow_up = client.api.chat.completions.create(
        model=model,
        messages=[
            *ask("weather"),
            choice.message.to_dict(),  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": call.id, "content": "22 C"},
            *ask("thanks"),
        ],
        tools=[WEATHER],
    )
    assert follow_up.choices[0].message.content == "Hello there, friend."


def test_tool_choice(client: Client, model: str) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        answer = client.api.chat.completions.create(
            model=model,
            messages=ask(),
            tools=[WEATHER],
            tool_choice=choice,  # type: ignore[call-overload]
        )
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "weather"
        assert set(json.loads(call.function.arguments)) == {"city"}


def test_tool_choice_none_calls_nothing(client: Client, model: str) -> None:
    answer = client.api.chat.completions.create(
        model=model, messages=ask("weather"), tools=[WEATHER], tool_choice="none"
    )
    assert not answer.choices[0].message.tool_calls
    assert answer.choices[0].finish_reason == "stop"


def test_parallel_tool_calls(client: Client, model: str) -> None:
    counts = {}
    for allowed in (True, False):
        answer = client.api.chat.completions.create(
            model=model, messages=ask("two"), tools=[WEATHER], parallel_tool_calls=allowed
        )
        counts[allowed] = len(answer.choices[0].message.tool_calls or ())
    assert counts == {True: 2, False: 1}


class Place(pydantic.BaseModel):
    """A form for an answer."""

    city: str
    population: int


def test_json_schema(client: Client, model: str) -> None:
    answer = client.api.chat.completions.parse(model=model, messages=ask(), response_format=Place)
    assert isinstance(answer.choices[0].message.parsed, Place)


def test_logprobs(client: Client, model: str) -> None:
    answer = client.api.chat.completions.create(model=model, messages=ask(), logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs
    assert logprobs.content
    text = b"".join(bytes(entry.bytes or []) for entry in logprobs.content)
    assert text.decode() == "Hello there, friend."
    assert all(len(entry.top_logprobs) == 2 for entry in logprobs.content)


def test_reasoning(anyone: Server, client: Client) -> None:
    field = (
        "reasoning"
        if "reasoning" in anyone.log_file.parent.joinpath("config.toml").read_text()
        else "reasoning_content"
    )
    with anyone.loaded(answer="42", reasoning="let me think") as thinker:
        message = client.api.chat.completions.create(model=thinker, messages=ask()).choices[0].message
        assert (message.content or "").strip() == "42"
        assert message.model_extra
        assert message.model_extra[field].strip() == "let me think"
        assert not {"reasoning", "reasoning_content"} - {field} & set(message.model_extra)
        quiet = client.api.chat.completions.create(model=thinker, messages=ask(), reasoning_effort="none")
        assert field not in (quiet.choices[0].message.model_extra or {})
        stream = client.api.chat.completions.create(model=thinker, messages=ask(), stream=True)
        thought = "".join(
            (chunk.choices[0].delta.model_extra or {}).get(field, "") for chunk in stream if chunk.choices
        )
        assert thought.strip() == "let me think"


def test_completions(client: Client, model: str) -> None:
    answer = client.api.completions.create(model=model, prompt=["one", "three"], n=2, logprobs=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert {choice.text for choice in answer.choices} == {"Hello there, friend."}
    logprobs = answer.choices[0].logprobs
    assert logprobs
    assert logprobs.tokens
    assert logprobs.text_offset
    assert logprobs.text_offset[0] == 0
    assert len(logprobs.tokens) == len(logprobs.text_offset) == len(logprobs.token_logprobs or [])
    stream = client.api.completions.create(model=model, prompt=[1, 2, 3], stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello there, friend."


def test_embeddings_come_in_base64_unless_told_otherwise(client: Client, model: str) -> None:
    asked = client.api.embeddings.create(model=model, input=["a", "b"])
    raw = client.api.embeddings.with_raw_response.create(model=model, input=["a", "b"], encoding_format="base64")
    text = json.loads(raw.content)["data"][0]["embedding"]
    assert isinstance(text, str)
    plain = client.api.embeddings.create(model=model, input=["a", "b"], encoding_format="float")
    for entry, other in zip(asked.data, plain.data, strict=True):
        assert struct.pack("<16f", *entry.embedding) == struct.pack("<16f", *other.embedding)
        assert sum(value * value for value in entry.embedding) == pytest.approx(1, abs=1e-5)
    short = client.api.embeddings.create(model=model, input=[[1, 2], [3]], dimensions=4)
    assert [len(entry.embedding) for entry in short.data] == [4, 4]
    assert short.usage.prompt_tokens == 3


def test_errors_are_the_clients_own_classes_and_are_not_repeated(anyone: Server, client: Client, model: str) -> None:
    api = client.api
    create = api.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="nobody", messages=ask())
    assert (missing.value.code, missing.value.param, missing.value.type) == (
        "model_not_found",
        "model",
        "invalid_request_error",
    )
    assert missing.value.request_id
    with pytest.raises(openai.BadRequestError) as wrong:
        create(model=model, messages=[])
    assert wrong.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as unsupported:
        create(model=model, messages=ask(), extra_body={"grammar": 'root ::= "x"'})
    assert unsupported.value.code == "unsupported_parameter"
    with pytest.raises(openai.BadRequestError) as schema:
        create(
            model=model,
            messages=ask(),
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nonsense"}}},
        )
    assert schema.value.code == "invalid_schema"
    with pytest.raises(openai.NotFoundError):
        api.post("/nowhere", cast_to=object)
    body = {"model_id": model, "model_path": str(anyone.write_model())}
    with pytest.raises(openai.ConflictError) as conflict:
        api.post("/models/load", cast_to=object, body=body)
    assert conflict.value.code == "model_already_exists"
    body = {"model_id": "broken", "model_path": str(anyone.write_model("faulty", kind="exit", phase="load"))}
    with pytest.raises(openai.InternalServerError) as failed:
        api.post("/models/load", cast_to=object, body=body)
    assert failed.value.code is None
    assert client.sent == 7


def test_a_full_queue_is_repeated(anyone: Server, client: Client) -> None:
    endless = {"prefill_steps": 10**9, "delay_seconds": 0.01}
    with anyone.loaded("scripted-batch", **endless, load={"request_queue_size": 0}) as busy:
        body = {"model": busy, "messages": ask()}
        with anyone.held(body), pytest.raises(openai.RateLimitError) as caught:
            client.api.with_options(max_retries=1).chat.completions.create(model=busy, messages=ask())
        assert caught.value.code == "queue_full"
        assert client.sent == 2


def test_an_error_in_the_stream_raises(anyone: Server, client: Client) -> None:
    fault = {"kind": "sigkill", "phase": "decode", "after_tokens": 2}
    with anyone.loaded("faulty", **fault, delay_seconds=0.1) as broken:
        seen = []
        stream = client.api.chat.completions.create(model=broken, messages=ask(), stream=True)
        with pytest.raises(openai.APIError, match="died by SIGKILL"):
            seen.extend(chunk.choices[0].delta.content for chunk in stream)
        assert "".join(seen[-2:]) == "The quick"
        assert client.sent == 1
