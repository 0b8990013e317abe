"""Chat with the real model in a real worker process; skipped where the model was not made (`make genai`)."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass, field

import pytest
import pytest_asyncio

from cardcage_sdk.chat import ChatRequest, Message, ResponseFormat, Sampling, TextPart, ToolChoice, ToolSpec
from cardcage_sdk.errors import ContextLengthExceededError, InvalidModelError, InvalidSchemaError, LoadFailedError
from cardcage_sdk.events import Finished, Progress, ReasoningDelta, TextDelta
from cardcage_sdk.models import LoadOptions

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.heavy, pytest.mark.timeout(300)]

_ids = itertools.count()
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@dataclass
class Answer:
    events: list = field(default_factory=list)

    def text(self, choice: int = 0) -> str:
        return "".join(e.text for e in self.events if isinstance(e, TextDelta) and e.choice == choice)

    def finished(self, choice: int = 0) -> Finished:
        return next(e for e in self.events if isinstance(e, Finished) and e.choice == choice)


def chat(text: str = "", **fields) -> ChatRequest:
    sampling = Sampling(**{"temperature": 0.0, "max_tokens": 24, **fields.pop("sampling", {})})
    if "prompt" not in fields:
        fields.setdefault("messages", (Message(role="user", content=(TextPart(text),)),))
    return ChatRequest(id=f"r{next(_ids)}", model="m", sampling=sampling, **fields)


async def run(worker, request: ChatRequest) -> Answer:
    answer = Answer()
    async for event in worker.connection.chat(request):
        answer.events.append(event)
    return answer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(smollm, kit):
    async with kit.launch(smollm, load_options=LoadOptions(slots=4, max_slots=4, cpu_threads=2)) as running:
        yield running


async def test_it_answers_and_stops_by_itself(worker) -> None:
    answer = await run(worker, chat("What is the capital of France?", sampling={"max_tokens": 60}))
    assert "Paris" in answer.text()
    usage = answer.finished().usage
    assert usage.prompt_tokens == 37
    assert usage.completion_tokens <= 60
    assert "<|im_end|>" not in answer.text()


async def test_what_it_says_of_the_model(worker) -> None:
    info = worker.info
    assert info.context_tokens == 8192
    assert info.has_chat_template
    assert info.details["family"] == "llama"
    assert info.details["batches"] is False


async def test_answers_at_once_are_those_alone_and_a_late_one_starts_at_once(worker) -> None:
    questions = ["Name a colour.", "What is the capital of Italy?", "Say hello.", "Count to five."]
    alone = [(await run(worker, chat(question))).text() for question in questions]
    together = await asyncio.gather(*(run(worker, chat(question)) for question in questions))
    assert [answer.text() for answer in together] == alone
    long = asyncio.ensure_future(run(worker, chat("Tell me a long story.", sampling={"max_tokens": 150})))
    late = await run(worker, chat("Say hello.", sampling={"max_tokens": 3}))
    assert late.text()
    assert not long.done()
    assert (await long).finished().reason == "length"


async def test_the_prompt_is_computed_in_chunks_and_shown(worker) -> None:
    answer = await run(worker, chat("word " * 500, sampling={"max_tokens": 2}))
    progress = [event for event in answer.events if isinstance(event, Progress)]
    assert len(progress) >= 4
    assert progress[-1].prefill_tokens == progress[-1].prompt_tokens == answer.finished().usage.prompt_tokens


async def test_cancelling_in_the_middle_of_a_prompt(worker) -> None:
    request = chat("word " * 3000)
    events = worker.connection.chat(request)
    first = await anext(events)
    assert isinstance(first, Progress)
    await events.aclose()
    async with asyncio.timeout(10):
        await worker.connection.released(request.id)
    assert (await worker.connection.ping()).running == 0


async def test_schemas_hold(worker) -> None:
    form = ResponseFormat(kind="json_schema", schema=PERSON)
    answer = await run(worker, chat("Invent a person.", response_format=form, sampling={"max_tokens": 60}))
    value = json.loads(answer.text())
    assert set(value) == {"name", "age"}
    assert answer.finished().reason == "stop"


async def test_schemas_that_cannot_be_followed_are_refused_first(worker) -> None:
    for schema in ({"type": "no such"}, {"not": {"type": "string"}}, {"$ref": "#/nowhere"}):
        with pytest.raises(InvalidSchemaError) as caught:
            await worker.connection.prepare(
                chat("x", response_format=ResponseFormat(kind="json_schema", schema=schema))
            )
        assert caught.value.param == "response_format"


async def test_schemas_with_references_of_two_tools(worker) -> None:
    parameters = {
        "type": "object",
        "properties": {"place": {"$ref": "#/$defs/word"}},
        "required": ["place"],
        "additionalProperties": False,
    }
    tools = (
        ToolSpec(name="go", parameters={**parameters, "$defs": {"word": {"enum": ["north", "south"]}}}),
        ToolSpec(name="look", parameters={**parameters, "$defs": {"word": {"enum": ["up", "down"]}}}),
    )
    for name, words in (("go", {"north", "south"}), ("look", {"up", "down"})):
        request = chat(
            "Do something.", tools=tools, tool_choice=ToolChoice(mode="named", name=name), sampling={"max_tokens": 80}
        )
        answer = await run(worker, request)
        arguments = "".join(getattr(event, "arguments", "") for event in answer.events)
        assert json.loads(arguments)["place"] in words
        assert answer.finished().reason == "tool_calls"


async def test_a_grammar_takes_hold_after_reasoning(kit, smollm) -> None:
    """The model does not reason by itself, so its template opens the tag and the end of a sentence closes it."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n<think>"
    )
    fields = {"chat_template": template, "reasoning_tags": ("<think>", ".")}
    async with kit.launch(smollm, fields=fields) as worker:
        form = ResponseFormat(kind="json_schema", schema=PERSON)
        answer = await run(
            worker, chat("What is the capital of France?", response_format=form, sampling={"max_tokens": 120})
        )
        assert any(isinstance(event, ReasoningDelta) for event in answer.events)
        assert set(json.loads(answer.text())) == {"name", "age"}
        assert answer.finished().reason == "stop"


async def test_choices_logprobs_and_seeds(worker) -> None:
    sampling = {"temperature": 1.0, "seed": 11, "max_tokens": 8}
    first = await run(worker, chat("Tell me something.", n=3, sampling=sampling, logprobs=2))
    again = await run(worker, chat("Tell me something.", n=3, sampling=sampling, logprobs=2))
    texts = [first.text(choice) for choice in range(3)]
    assert texts == [again.text(choice) for choice in range(3)]
    assert len(set(texts)) > 1
    logprobs = [item for e in first.events if isinstance(e, TextDelta) for item in e.logprobs]
    assert logprobs
    assert all(item.logprob <= 0 and len(item.top) == 2 for item in logprobs)


async def test_a_ban_holds(worker) -> None:
    plain = await run(worker, chat("What is the capital of France?", sampling={"max_tokens": 1}, logprobs=0))
    (first,) = [item for e in plain.events if isinstance(e, TextDelta) for item in e.logprobs]
    banned = await run(
        worker, chat("What is the capital of France?", sampling={"max_tokens": 1, "logit_bias": {first.token_id: -100}})
    )
    assert banned.text() != plain.text()


async def test_too_long_says_both_numbers(worker) -> None:
    with pytest.raises(ContextLengthExceededError) as caught:
        await worker.connection.prepare(chat("word " * 9000))
    assert caught.value.context_tokens == 8192
    assert caught.value.prompt_tokens > 9000


async def test_the_context_is_a_bound_of_prompt_and_answer(kit, smollm) -> None:
    async with kit.launch(smollm, load_options=LoadOptions(context_tokens=64)) as worker:
        assert worker.info.context_tokens == 64
        answer = await run(worker, chat("Tell me a long story.", sampling={"max_tokens": None}))
        usage = answer.finished().usage
        assert usage.prompt_tokens + usage.completion_tokens == 64
        assert answer.finished().reason == "length"


async def test_memory_is_given_back(worker) -> None:
    await run(worker, chat("word " * 200, sampling={"max_tokens": 2}))
    before = (await worker.connection.ping()).rss_bytes
    await asyncio.gather(*(run(worker, chat("word " * 600, sampling={"max_tokens": 2})) for _ in range(4)))
    after = (await worker.connection.ping()).rss_bytes
    assert after - before < 60 << 20


async def test_broken_directories_do_not_load(kit, smollm, tmp_path) -> None:
    for name in ("genai_config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((smollm / name).read_bytes())
    with pytest.raises(LoadFailedError, match="onnxruntime-genai cannot load"):
        async with kit.launch(tmp_path):
            pass
    (tmp_path / "genai_config.json").write_text("{}")
    with pytest.raises(InvalidModelError, match="lacks or has wrong"):
        async with kit.launch(tmp_path):
            pass
