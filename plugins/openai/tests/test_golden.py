"""Whole exchanges as files: what a client sends, what it becomes, what the service answers, what the client reads.

Each file in `golden/` holds `route`, `settings`, `request` and (for a request of the service) `neutral`; then `events` with the
`answer` and, where the route streams, the `stream` that are made from the same events, or a `result` with its `answer`.
`CARDCAGE_WRITE_GOLDEN=1` writes what is produced into the files, for reading the difference in the diff.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cardcage_dialect_openai import decode, encode
from cardcage_dialect_openai.body import parse_value
from cardcage_dialect_openai.completions import CompletionAnswer, CompletionChunks
from cardcage_dialect_openai.settings import read_settings
from cardcage_dialect_openai.sse import DONE
from cardcage_dialect_openai.wire.chat import ChatCompletionRequest
from cardcage_dialect_openai.wire.completions import CompletionRequest
from cardcage_dialect_openai.wire.management import LoadModelRequest, ResizeModelRequest, UnloadModelRequest
from cardcage_dialect_openai.wire.vectors import EmbeddingRequest, RerankRequestBody
from cardcage_sdk import events
from cardcage_sdk.capabilities import Capabilities
from cardcage_sdk.embeddings import EmbedResult, RerankResult
from cardcage_sdk.models import ModelInfo
from cardcage_sdk.platform import Device
from cardcage_sdk.service import GenerationDefaults, LoadResult, ModelStatus, PlatformStatus
from cardcage_sdk.stream.sse import encode_json_event

FOLDER = Path(__file__).parent / "golden"
FILES = sorted(FOLDER.glob("*.json"))
HEAD = encode.AnswerHead(id="id-1", created=1710000000, model="Qwen3", fingerprint="fp_1")
ROUTES = {"chat", "completions", "embeddings", "rerank", "models", "load", "resize", "unload", "platforms"}


def plain(value: Any) -> Any:
    """A neutral value as JSON; fields that have their default are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {}
        for field in dataclasses.fields(value):
            content = getattr(value, field.name)
            default = field.default_factory() if callable(field.default_factory) else field.default
            if content != default:
                fields[field.name] = plain(content)
        return {type(value).__name__: fields}
    if isinstance(value, tuple | list | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value


def event(entry: dict[str, Any]) -> Any:
    """An event from its JSON form; `prompt` says whose it is where there are several."""
    ((name, fields),) = ((key, item) for key, item in entry.items() if key != "prompt")
    fields = dict(fields)
    if usage := fields.get("usage"):
        fields["usage"] = events.Usage(**usage)
    if logprobs := fields.get("logprobs"):
        fields["logprobs"] = tuple(token(item) for item in logprobs)
    return getattr(events, name)(**fields)


def token(entry: dict[str, Any]) -> events.TokenLogprob:
    top = tuple(
        events.TopLogprob(token=text, token_id=number, logprob=value, data=text.encode())
        for number, (text, value) in enumerate(entry.get("top", {}).items())
    )
    data = bytes(entry["data"]) if "data" in entry else entry["token"].encode()
    return events.TokenLogprob(token=entry["token"], token_id=0, logprob=entry["logprob"], data=data, top=top)


def status(fields: dict[str, Any]) -> ModelStatus:
    usual = {"name": "qwen3:4b", "state": "ready", "request_queue_size": 48, "running": 0, "queued": 0, "pinned": True}
    return ModelStatus(
        **{**usual, **fields, "tasks": frozenset(fields["tasks"])},
        size_bytes=1,
        capabilities=Capabilities(tasks=frozenset(fields["tasks"])),
        info=ModelInfo(context_tokens=4096),
        defaults=GenerationDefaults(),
    )


def run_chat(exchange: dict[str, Any]) -> dict[str, Any]:
    settings = read_settings(exchange["settings"])
    body = parse_value(ChatCompletionRequest, exchange["request"])
    neutral = decode.decode_chat(body, request_id="id-1", settings=settings)
    common: dict[str, Any] = {
        "head": HEAD,
        "settings": settings,
        "choices": neutral.n,
        "logprobs": neutral.logprobs is not None,
    }
    answer = encode.ChatAnswer(**common)
    include_usage = body.stream_options.include_usage if body.stream_options else None
    chunks = encode.ChatChunks(**common, include_usage=include_usage)
    stream = b""
    for entry in exchange["events"]:
        answer.feed(event(entry))
        stream += b"".join(encode_json_event(chunk) for chunk in chunks.feed(event(entry)))
    stream += b"".join(encode_json_event(chunk) for chunk in chunks.end()) + DONE
    return {"neutral": plain(neutral), "answer": answer.encode(), "stream": stream.decode().splitlines()}


def run_completions(exchange: dict[str, Any]) -> dict[str, Any]:
    body = parse_value(CompletionRequest, exchange["request"])
    requests = decode.decode_completion(body, request_id="id-1")
    answer = CompletionAnswer(head=HEAD, requests=requests, echo=bool(body.echo))
    include_usage = body.stream_options.include_usage if body.stream_options else None
    chunks = CompletionChunks(head=HEAD, requests=requests, echo=bool(body.echo), include_usage=include_usage)
    stream = b""
    for entry in exchange["events"]:
        number = entry.get("prompt", 0)
        answer.feed(number, event(entry))
        stream += b"".join(encode_json_event(chunk) for chunk in chunks.feed(number, event(entry)))
    stream += b"".join(encode_json_event(chunk) for chunk in chunks.end()) + DONE
    return {"neutral": plain(requests), "answer": answer.encode(), "stream": stream.decode().splitlines()}


def run_embeddings(exchange: dict[str, Any]) -> dict[str, Any]:
    body = parse_value(EmbeddingRequest, exchange["request"])
    neutral = decode.decode_embeddings(body, request_id="id-1")
    fields = exchange["result"]
    result = EmbedResult(
        vectors=bytes.fromhex(fields["vectors"]), dimensions=fields["dimensions"], prompt_tokens=tuple(fields["tokens"])
    )
    encoding = body.encoding_format or "float"
    data = [json.loads(encode.encode_embedding(result, index, encoding)) for index in range(len(neutral.inputs))]
    return {"neutral": plain(neutral), "answer": data}


def run_rerank(exchange: dict[str, Any]) -> dict[str, Any]:
    body = parse_value(RerankRequestBody, exchange["request"])
    neutral = decode.decode_rerank(body, request_id="id-1")
    result = RerankResult(scores=tuple(exchange["result"]["scores"]), prompt_tokens=exchange["result"]["tokens"])
    answer = encode.encode_rerank(
        result,
        request_id="id-1",
        model=body.model,
        documents=neutral.documents,
        top_n=body.top_n,
        return_documents=bool(body.return_documents),
    )
    return {"neutral": plain(neutral), "answer": answer}


def run_models(exchange: dict[str, Any]) -> dict[str, Any]:
    statuses = [status(fields) for fields in exchange["result"]]
    return {"answer": encode.encode_models(statuses, read_settings(exchange["settings"]))}


def run_load(exchange: dict[str, Any]) -> dict[str, Any]:
    neutral = decode.decode_load(parse_value(LoadModelRequest, exchange["request"]))
    return {"neutral": plain(neutral), "answer": encode.encode_load(LoadResult(**exchange["result"]))}


def run_resize(exchange: dict[str, Any]) -> dict[str, Any]:
    parse_value(ResizeModelRequest, exchange["request"])
    return {"answer": encode.encode_resize(LoadResult(**exchange["result"]))}


def run_unload(exchange: dict[str, Any]) -> dict[str, Any]:
    return {"answer": encode.encode_unload(parse_value(UnloadModelRequest, exchange["request"]).model_id)}


def run_platforms(exchange: dict[str, Any]) -> dict[str, Any]:
    platforms = [
        PlatformStatus(
            **{**fields, "devices": tuple(Device(**device) for device in fields["devices"])},
            capabilities=Capabilities(tasks=frozenset()),
            versions={},
            distribution="d 1",
        )
        for fields in exchange["result"]
    ]
    return {"answer": encode.encode_platforms(platforms)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_exchange(file: Path) -> None:
    exchange = json.loads(file.read_text())
    produced = globals()[f"run_{exchange['route']}"](exchange)
    if os.environ.get("CARDCAGE_WRITE_GOLDEN"):
        file.write_text(json.dumps({**exchange, **produced}, indent=1, ensure_ascii=False) + "\n")
    assert produced == {key: exchange.get(key) for key in produced}


def test_every_route_has_a_golden_exchange() -> None:
    assert {json.loads(file.read_text())["route"] for file in FILES} == ROUTES


@pytest.mark.parametrize("file", [file for file in FILES if file.stem.startswith("chat")], ids=lambda file: file.stem)
def test_stream_and_plain_say_the_same(file: Path) -> None:
    """What a client puts together from the chunks is the whole answer."""
    exchange = json.loads(file.read_text())
    field = exchange["settings"].get("reasoning_field", "reasoning_content")
    choices: dict[int, dict[str, Any]] = {}
    chunks = [json.loads(line[6:]) for line in exchange["stream"] if line.startswith("data: {")]
    for chunk in chunks:
        for part in chunk["choices"]:
            choice = choices.setdefault(part["index"], {"text": "", field: "", "calls": {}, "roles": 0, "finish": []})
            delta = part["delta"]
            assert not choice["finish"], "a chunk after the last one of its choice"
            choice["roles"] += "role" in delta
            choice["text"] += delta.get("content") or ""
            choice[field] += delta.get(field, "")
            for call in delta.get("tool_calls", ()):
                whole = choice["calls"].setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
                whole["id"] += call.get("id", "")
                whole["name"] += call["function"].get("name", "")
                whole["arguments"] += call["function"]["arguments"]
            if part["finish_reason"]:
                assert delta == {}
                choice["finish"].append(part["finish_reason"])
    assert sorted(choices) == list(range(len(exchange["answer"]["choices"])))
    for entry in exchange["answer"]["choices"]:
        choice, message = choices[entry["index"]], entry["message"]
        assert choice["roles"] == 1
        assert choice["text"] == (message["content"] or "")
        assert choice[field] == message.get(field, "")
        assert choice["finish"] == [entry["finish_reason"]]
        assert [choice["calls"][index] for index in sorted(choice["calls"])] == [
            {"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())
        ]
    for chunk in chunks:
        assert {chunk["id"], chunk["model"], chunk["created"]} == {"id-1", "Qwen3", 1710000000}
        if not chunk["choices"]:
            assert chunk["usage"] == exchange["answer"]["usage"]
