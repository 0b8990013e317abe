"""Fields of the other routes: what they become, and how they are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cardcage_dialect_openai.body import parse_body, parse_value
from cardcage_dialect_openai.decode import (
    check_instance_count,
    decode_completion,
    decode_embeddings,
    decode_load,
    decode_rerank,
)
from cardcage_dialect_openai.wire.completions import CompletionRequest
from cardcage_dialect_openai.wire.management import LoadModelRequest, ResizeModelRequest, UnloadModelRequest
from cardcage_dialect_openai.wire.vectors import EmbeddingRequest, RerankRequestBody
from cardcage_sdk.chat import ChatRequest, ResponseFormat
from cardcage_sdk.embeddings import EmbedRequest, RerankRequest
from cardcage_sdk.errors import InvalidInstanceCountError, InvalidRequestError, RequestError, UnsupportedError
from cardcage_sdk.service import GenerationDefaults, LoadRequest

LONG_ID = "smollm2:135m@llamacpp-cpu"


def completions(fields: dict[str, Any]) -> tuple[ChatRequest, ...]:
    body = parse_body(CompletionRequest, json.dumps({"model": "m", "prompt": "x", **fields}).encode())
    return decode_completion(body, request_id="r")


def embeddings(fields: dict[str, Any]) -> EmbedRequest:
    return decode_embeddings(parse_value(EmbeddingRequest, {"model": "m", "input": "x", **fields}), request_id="r")


def rerank(fields: dict[str, Any]) -> RerankRequest:
    body = {"model": "m", "query": "q", "documents": ["d"], **fields}
    return decode_rerank(parse_value(RerankRequestBody, body), request_id="r")


def load(fields: dict[str, Any]) -> LoadRequest:
    return decode_load(parse_value(LoadModelRequest, {"model_id": "m", "model_path": "/m", **fields}))


# --- legacy completions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("x", ["x"]),
        ("", [""]),
        (["x", "y"], ["x", "y"]),
        ([1, 2], [(1, 2)]),
        ([[1, 2], [3]], [(1, 2), (3,)]),
        (["x", [3]], ["x", (3,)]),
    ],
)
def test_prompts(prompt: Any, prompts: list[object]) -> None:
    requests = completions({"prompt": prompt})
    assert [request.prompt for request in requests] == prompts
    assert len({request.id for request in requests}) == len(prompts)
    assert all(request.messages == () for request in requests)


def test_a_prompt_has_no_limit_of_its_own() -> None:
    """OpenAI stops after 16 tokens; here only defaults and context do."""
    assert completions({})[0].sampling.max_tokens is None
    assert completions({"max_tokens": 16})[0].sampling.max_tokens == 16


def test_fields_of_completions() -> None:
    (request,) = completions(
        {"n": 2, "best_of": 2, "suffix": "s", "logprobs": 5, "seed": 3, "grammar": "g", "top_k": 1}
    )
    assert (request.n, request.suffix, request.logprobs) == (2, "s", 5)
    assert request.sampling.seed == 3
    assert request.response_format == ResponseFormat(kind="grammar", grammar="g")


def test_completion_nulls_are_absent() -> None:
    optional = set(CompletionRequest.model_fields) - {"model", "prompt"}
    assert completions(dict.fromkeys(optional)) == completions({})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "x"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"best_of": 2}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"echo": True, "prompt": [1]}, "echo"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_completions_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        completions(fields)
    assert caught.value.param == param


# --- vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        ("x", ("x",)),
        (["x", "y"], ("x", "y")),
        ([1, 2, 3], ((1, 2, 3),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["x", [1]], ("x", (1,))),
        ([" "], (" ",)),
    ],
)
def test_embedding_inputs(given: Any, inputs: tuple[object, ...]) -> None:
    decoded = embeddings({"input": given, "dimensions": None, "encoding_format": None, "user": None})
    assert decoded == EmbedRequest(id="r", model="m", inputs=inputs)  # type: ignore[arg-type]


def test_dimensions_are_asked_of_the_service() -> None:
    assert embeddings({"dimensions": 64}).dimensions == 64


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": None}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["x", ""]}, "input[1]"),
        ({"input": [1, "x"]}, "input"),
        ({"input": [[1], 2]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": ["x"] * 16385}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"model": None}, "model"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_embeddings_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        embeddings(fields)
    assert caught.value.param == param


def test_rerank_fields() -> None:
    decoded = rerank({"documents": ["a", {"text": "b", "title": "t"}], "truncation": False})
    assert decoded == RerankRequest(id="r", model="m", query="q", documents=("a", "b"), truncate=False)
    assert rerank({"top_n": None, "return_documents": None, "truncation": None}).truncate is True


@pytest.mark.parametrize(
    ("fields", "param", "error"),
    [
        ({"documents": None}, "documents", InvalidRequestError),
        ({"documents": []}, "documents", InvalidRequestError),
        ({"documents": "d"}, "documents", InvalidRequestError),
        ({"documents": [5]}, "documents", InvalidRequestError),
        ({"documents": [{"title": "t"}]}, "documents", InvalidRequestError),
        ({"documents": [{"image": "x"}]}, "documents", InvalidRequestError),
        ({"query": {"text": "q"}}, "query", InvalidRequestError),
        ({"top_n": 0}, "top_n", InvalidRequestError),
        ({"max_chunks_per_doc": 3}, "max_chunks_per_doc", UnsupportedError),
        ({"max_tokens_per_doc": 3}, "max_tokens_per_doc", UnsupportedError),
        ({"rank_fields": ["title"]}, "rank_fields", UnsupportedError),
    ],
    ids=lambda value: str(value)[:40],
)
def test_rerank_refused(fields: dict[str, Any], param: str, error: type[RequestError]) -> None:
    with pytest.raises(error) as caught:
        rerank(fields)
    assert caught.value.param == param


# --- management ---------------------------------------------------------------------------------------------------


def test_load_nulls_are_absent() -> None:
    optional = set(LoadModelRequest.model_fields) - {"model_id", "model_path"}
    assert load(dict.fromkeys(optional)) == load({}) == LoadRequest(model_id="m", model_path="/m")
    assert load({"default_params": {}}).defaults == GenerationDefaults()


def test_every_default_param_of_the_page() -> None:
    params = {
        "temperature": 0.7, "top_p": 0.9, "top_k": 40, "repeat_penalty": 1.1, "frequency_penalty": 0.1,
        "presence_penalty": 0.2, "max_tokens": 512, "max_context_len": 4096, "stop": ["###"], "enable_thinking": True,
    }  # fmt: skip
    defaults = load({"default_params": params}).defaults
    assert (defaults.max_context_len, defaults.enable_thinking) == (4096, True)
    for name in set(params) - {"max_context_len", "enable_thinking", "stop"}:
        assert getattr(defaults.sampling, name) == params[name], name
    assert defaults.sampling.stop == ("###",)


@pytest.mark.parametrize("model_id", ["Qwen3", "bge-m3", "通义千问", "модель", LONG_ID, "a.b_c+d"])
def test_model_ids(model_id: str) -> None:
    assert load({"model_id": model_id}).model_id == model_id


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model_id": ""}, "model_id"),
        ({"model_id": "two words"}, "model_id"),
        ({"model_id": "tab\t"}, "model_id"),
        ({"model_id": "wide\u3000space"}, "model_id"),
        ({"model_id": "org/name"}, "model_id"),
        ({"model_id": "nul\0"}, "model_id"),
        ({"model_id": "x" * 201}, "model_id"),
        ({"model_id": None}, "model_id"),
        ({"model_path": None}, "model_path"),
        ({"model_path": ""}, "model_path"),
        ({"instance_count": -1}, "instance_count"),
        ({"instance_count": "2"}, "instance_count"),
        ({"instance_count": 1.5}, "instance_count"),
        ({"request_queue_size": -1}, "request_queue_size"),
        ({"default_params": {"temperature": 3}}, "default_params.temperature"),
        ({"default_params": {"n": 2}}, "default_params.n"),
        ({"default_params": {"max_context_len": 0}}, "default_params.max_context_len"),
        ({"default_params": []}, "default_params"),
        ({"options": []}, "options"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_load_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        load(fields)
    assert caught.value.param == param
    assert type(caught.value) is InvalidRequestError


def test_no_instances_have_a_name_of_their_own() -> None:
    with pytest.raises(InvalidInstanceCountError):
        load({"instance_count": 0})
    with pytest.raises(InvalidInstanceCountError):
        check_instance_count(0)
    check_instance_count(1)


@pytest.mark.parametrize("model", [ResizeModelRequest, UnloadModelRequest])
def test_resize_and_unload_need_their_fields(model: type[Any]) -> None:
    required = [name for name, field in model.model_fields.items() if field.is_required()]
    assert "model_id" in required
    for name in required:
        body = {"model_id": "m", "instance_count": 1}
        del body[name]
        with pytest.raises(InvalidRequestError, match=f"'{name}' is required"):
            parse_value(model, body)
