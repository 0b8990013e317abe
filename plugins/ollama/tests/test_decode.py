"""Requests towards neutral: every field, every form, every refusal with its text."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import pytest

from cardcage_dialect_ollama.body import parse_body
from cardcage_dialect_ollama.context import decode_context, encode_context
from cardcage_dialect_ollama.decode import (
    check_flags,
    decode_chat,
    decode_embed,
    decode_embeddings,
    decode_generate,
    fit_to_model,
)
from cardcage_dialect_ollama.decode_create import decode_create
from cardcage_dialect_ollama.digests import decode_digest
from cardcage_dialect_ollama.keep_alive import decode_keep_alive
from cardcage_dialect_ollama.names import parse_name
from cardcage_dialect_ollama.options import decode_options
from cardcage_dialect_ollama.settings import Settings
from cardcage_dialect_ollama.templates import compile_template
from cardcage_dialect_ollama.wire.generation import ChatBody, EmbedBody, EmbeddingsBody, GenerateBody
from cardcage_dialect_ollama.wire.models import CreateBody, NameBody
from cardcage_sdk.capabilities import SAMPLING_PARAMETERS, Capabilities, Feature, Task
from cardcage_sdk.chat import ChatRequest, ImagePart, Message, ResponseFormat, Sampling, TextPart, ToolCall, ToolSpec
from cardcage_sdk.embeddings import EmbedRequest
from cardcage_sdk.errors import ForbiddenError, InvalidRequestError, RequestError, UnsupportedError
from cardcage_sdk.models import ModelInfo
from cardcage_sdk.service import GenerationDefaults, ModelStatus

SETTINGS = Settings()
PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", 7, 9)


def chat(**fields: Any) -> ChatRequest:
    body = parse_body(ChatBody, json.dumps({"model": "m", **fields}).encode())
    options = decode_options(body.options, settings=SETTINGS)
    return decode_chat(body, request_id="r", options=options, settings=SETTINGS)


def generate(**fields: Any) -> ChatRequest:
    body = parse_body(GenerateBody, json.dumps({"model": "m", **fields}).encode())
    options = decode_options(body.options, settings=SETTINGS)
    return decode_generate(body, request_id="r", options=options, settings=SETTINGS)


def user(text: str) -> Message:
    return Message(role="user", content=(TextPart(text),))


# --- bodies


def test_fields_match_in_any_case_null_is_absent_and_unknown_ones_are_ignored() -> None:
    request = chat(
        Messages=[{"ROLE": "User", "Content": "hi", "colour": 1}], OPTIONS={"seed": None}, temperature=2, Tools=None
    )
    assert request == ChatRequest(id="r", model="", messages=(user("hi"),))
    assert parse_body(NameBody, b'{"Name": "x"}').wanted == "x"
    assert parse_body(NameBody, b'{"name": "x", "model": "y"}').wanted == "y"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "missing request body"),
        (b"  ", "missing request body"),
        (b"[]", "JSON object"),
        (b"{", "not valid JSON"),
        (b'{"model": 1}', "'model' must be a valid string"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "'messages.0.content'"),
        (b'{"messages": [{"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}', "arguments"),
        (b'{"stream": "yes"}', "'stream'"),
    ],
)
def test_bodies_that_are_refused(data: bytes, text: str) -> None:
    with pytest.raises(InvalidRequestError, match=text):
        parse_body(ChatBody, data)


# --- names


@pytest.mark.parametrize(
    ("text", "wanted", "full", "to_pull"),
    [
        ("llama3", "llama3", "registry.ollama.ai/library/llama3:latest", "llama3"),
        (" Llama3:8B ", "Llama3:8B", "registry.ollama.ai/library/Llama3:8B", "Llama3:8B"),
        ("me/thing:v1", "me/thing:v1", "registry.ollama.ai/me/thing:v1", "registry.ollama.ai/me/thing:v1"),
        ("hf.co/u/r:Q4_K_M", "hf.co/u/r:Q4_K_M", "hf.co/u/r:Q4_K_M", "hf.co/u/r:Q4_K_M"),
        ("reg.io:5000/me/x", "reg.io:5000/me/x", "reg.io:5000/me/x:latest", "reg.io:5000/me/x"),
        ("llama3:local", "llama3", "registry.ollama.ai/library/llama3:latest", "llama3"),
        ("llama3:8b:local", "llama3:8b", "registry.ollama.ai/library/llama3:8b", "llama3:8b"),
        ("fox:1b@llamacpp-cpu", "fox:1b@llamacpp-cpu", "fox:1b@llamacpp-cpu", "fox:1b@llamacpp-cpu"),
        ("huggingface:Org/Repo:Q4", "huggingface:Org/Repo:Q4", "huggingface:Org/Repo:Q4", "huggingface:Org/Repo:Q4"),
        ("https://hf.co/a/b", "https://hf.co/a/b", "https://hf.co/a/b", "https://hf.co/a/b"),
    ],
)  # fmt: skip
def test_names(text: str, wanted: str, full: str, to_pull: str) -> None:
    name = parse_name(text)
    assert (name.text, name.wanted, name.full, name.to_pull) == (text, wanted, full, to_pull)


def test_a_name_of_another_script_is_one() -> None:
    assert parse_name("通义:4b").wanted == "通义:4b"


@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "-a",
        "a:",
        "a:b:c",
        "/a",
        "../a",
        "a/../b",
        "a//b",
        "a\\b",
        "x" * 81,
        "a/b/c/d",
        "a\0b",
        "a\n",
        "b?c",
        "a/..",
    ],
)
def test_names_that_no_model_has(text: str) -> None:
    if text == "a\n":
        assert parse_name(text).wanted == "a"
        return
    with pytest.raises(InvalidRequestError, match=r"^invalid model name$"):
        parse_name(text)


def test_names_of_the_hosted_service() -> None:
    for text in ("gpt-oss:cloud", "gpt-oss:120b-Cloud"):
        with pytest.raises(ForbiddenError, match="ollama cloud is disabled"):
            parse_name(text)
    with pytest.raises(InvalidRequestError, match="invalid model name"):
        parse_name("gpt-oss:cloud:local")
    with pytest.raises(InvalidRequestError, match="model is required"):
        parse_name(" ")


# --- keep_alive


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0),
        ("0", 0),
        ("0s", 0),
        (300, 300),
        (0.5, 0.5),
        (-1, math.inf),
        (-0.1, math.inf),
        ("-1m", math.inf),
        ("-1", math.inf),
        ("300", 300),
        ("10m", 600),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("2us", 2e-6),
        ("7ns", 7e-9),
        ("1m0.5s", 60.5),
        ("+5s", 5),
    ],
)
def test_keep_alive(value: Any, seconds: float | None) -> None:
    decoded = decode_keep_alive(value)
    assert decoded == seconds if seconds is None else decoded == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("abc", 'time: invalid duration "abc"'),
        ("", 'time: invalid duration ""'),
        ("5m3", 'time: missing unit in duration "5m3"'),
        ("1d", 'time: unknown unit "d" in duration "1d"'),
        (True, "Unsupported type: 'bool'"),
        ([], "Unsupported type: '[]interface {}'"),
        ({}, "Unsupported type: 'map[string]interface {}'"),
    ],
)
def test_keep_alive_that_is_refused(value: Any, text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode_keep_alive(value)
    assert caught.value.message == text


# --- options


def test_every_option() -> None:
    options = decode_options(
        {
            "temperature": 1, "top_p": 0.5, "top_k": 3.9, "min_p": 0.1, "repeat_penalty": 1.1, "repeat_last_n": -1,
            "frequency_penalty": 0.2, "presence_penalty": 0.3, "seed": 2**31 + 5, "num_predict": 7, "stop": ["a", "", "b"],
            "num_ctx": 1234, "num_keep": 9, "typical_p": 1.0, "num_gpu": -1, "num_thread": 0, "use_mmap": None, "colour": "red",
        },
        settings=SETTINGS,
    )  # fmt: skip
    assert options.sampling == Sampling(
        temperature=1.0, top_p=0.5, top_k=3, min_p=0.1, repeat_penalty=1.1, repeat_last_n=-1, frequency_penalty=0.2,
        presence_penalty=0.3, seed=5, max_tokens=7, stop=("a", "b"),
    )  # fmt: skip
    assert (options.context_tokens, options.keep_tokens, options.is_unbounded) == (1234, 9, False)


def test_values_that_mean_nothing_in_particular() -> None:
    options = decode_options(
        {"seed": -1, "num_predict": -1, "top_k": -5, "num_ctx": 0, "top_p": 0, "stop": []}, settings=SETTINGS
    )
    assert options.sampling == Sampling(temperature=0.0, top_k=0)
    assert (options.context_tokens, options.is_unbounded) == (None, True)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("top_k", "x", 'option "top_k" must be of type integer'),
        ("num_ctx", True, 'option "num_ctx" must be of type integer'),
        ("temperature", "hot", 'option "temperature" must be of type float32'),
        ("use_mmap", 1, 'option "use_mmap" must be of type boolean'),
        ("stop", "x", 'option "stop" must be of type array'),
        ("stop", ["x", 1], 'option "stop" must be of an array of strings'),
        ("top_p", 2, 'option "top_p" must be between 0 and 1'),
        ("temperature", -1, 'option "temperature" must not be negative'),
        ("repeat_penalty", 0, 'option "repeat_penalty" must be greater than 0'),
        ("typical_p", 0.5, 'option "typical_p" is not supported'),
    ],
)
def test_options_that_are_refused(name: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode_options({name: value}, settings=SETTINGS)
    assert caught.value.message == text


def test_options_of_a_runtime_are_refused_or_by_setting_ignored() -> None:
    for name, value in (("num_gpu", 3), ("num_thread", 4), ("num_batch", 512), ("use_mmap", False), ("main_gpu", 0)):
        with pytest.raises(InvalidRequestError, match=f'option "{name}" is not supported'):
            decode_options({name: value}, settings=SETTINGS)
        assert decode_options({name: value}, settings=Settings(runtime_options="ignore")).sampling == Sampling()


# --- generate and chat


def test_chat_with_everything() -> None:
    request = chat(
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "USER", "content": "Weather?"},
            {
                "role": "assistant",
                "content": None,
                "thinking": "hm",
                "tool_calls": [
                    {"function": {"name": "weather", "arguments": {"city": "Paris"}}},
                    {"id": "own", "function": {"index": 1, "name": "time"}},
                ],
            },
            {"role": "tool", "content": "noon", "tool_name": "time"},
            {"role": "tool", "content": "sun"},
        ],
        tools=[
            {
                "type": "function",
                "function": {"name": "weather", "description": "d", "parameters": {"type": "object", "$defs": {}}},
            },
            {"function": {"name": "time"}},
        ],
        format={"type": "object"},
        think="max",
        logprobs=True,
        top_logprobs=2,
        options={"temperature": 0},
    )
    assert request == ChatRequest(
        id="r",
        model="",
        messages=(
            Message(role="system", content=(TextPart("Be brief."),)),
            user("Weather?"),
            Message(
                role="assistant",
                tool_calls=(
                    ToolCall(id="call_2_0", name="weather", arguments='{"city": "Paris"}'),
                    ToolCall(id="own", name="time", arguments="{}"),
                ),
                reasoning="hm",
            ),
            Message(role="tool", content=(TextPart("noon"),), tool_call_id="own", name="time"),
            Message(role="tool", content=(TextPart("sun"),), tool_call_id="call_2_0", name="weather"),
        ),
        tools=(
            ToolSpec(name="weather", description="d", parameters={"type": "object", "$defs": {}}),
            ToolSpec(name="time"),
        ),
        response_format=ResponseFormat(kind="json_schema", schema={"type": "object"}),
        enable_thinking=True,
        reasoning_effort="high",
        logprobs=2,
        sampling=Sampling(temperature=0.0),
    )


def test_images_go_where_they_are_marked() -> None:
    image = base64.b64encode(PNG).decode()
    part = ImagePart(data=PNG, media_type="image/png")
    said = [{"role": "user", "content": "a [img] b", "images": [image, image]}]
    assert chat(messages=said).messages[0].content == (part, TextPart("a "), part, TextPart(" b"))
    assert generate(prompt="what", images=[image]).messages[0].content == (part, TextPart("what"))
    assert chat(messages=[{"role": "user", "content": "[img]", "images": []}]).messages[0].text == "[img]"


def test_generate() -> None:
    assert generate(prompt="hi", system="s") == ChatRequest(
        id="r", model="", messages=(Message(role="system", content=(TextPart("s"),)), user("hi"))
    )
    assert generate(prompt="hi", raw=True) == ChatRequest(id="r", model="", prompt="hi")
    assert generate(prompt="a", suffix="b") == ChatRequest(id="r", model="", prompt="a", suffix="b")
    assert generate(prompt="x", format="json").response_format.kind == "json_object"
    for value in ("", None):
        assert generate(prompt="x", format=value).response_format == ResponseFormat()
    for value, thinking in ((True, True), (False, False), (None, None), ("low", True)):
        assert generate(prompt="x", think=value).enable_thinking is thinking


def test_context_comes_back_as_the_exchange_that_it_was() -> None:
    exchange = (
        Message(role="system", content=(TextPart("s"),)),
        user("hällo \U0001f600"),
        Message(role="assistant", content=(TextPart("hi\n"),)),
    )
    context = encode_context(exchange)
    assert all(0 <= number < 2**16 for number in context)
    assert decode_context(context) == exchange
    request = generate(prompt="go on", context=context)
    assert request.messages == (*exchange, user("go on"))
    replaced = generate(prompt="go on", context=context, system="new").messages
    assert replaced == (Message(role="system", content=(TextPart("new"),)), *exchange[1:], user("go on"))


@pytest.mark.parametrize(
    "context", [[1, 2, 3], [52321], [52321, 0], [52321, 0, 5, 6], [52321, 0, -1], [52321, 0, 70000], [52321, 7, 1]]
)
def test_a_context_from_elsewhere_is_refused(context: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="context is none that this server has answered with"):
        generate(prompt="x", context=context)


def test_a_context_that_was_cut_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        decode_context(encode_context([user("x" * 1000)])[:-2])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"raw": True, "system": "s"}, "raw mode does not support template, system, or context"),
        ({"raw": True, "template": "t"}, "raw mode does not support template, system, or context"),
        ({"suffix": "s", "system": "s"}, "suffix does not support"),
        ({"think": "hard"}, 'invalid think value: "hard" (must be "high", "medium", "low", "max", true, or false)'),
        ({"think": 1}, "invalid think value: 1"),
        ({"format": "xml"}, 'invalid format: "xml"; expected "json" or a valid JSON Schema object'),
        ({"format": 5}, 'invalid format: 5; expected "json" or a valid JSON Schema object'),
        ({"format": {"type": "thing"}}, 'expected "json" or a valid JSON Schema object'),
        ({"images": ["%%%"]}, "illegal base64 data"),
        ({"images": [base64.b64encode(b"GIF89a").decode()]}, "no valid png, jpeg or webp"),
    ],
)
def test_generate_that_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError) as caught:
        generate(prompt="x", **fields)
    assert text in caught.value.message


def test_chat_that_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match='invalid role "robot"'):
        chat(messages=[{"role": "robot", "content": "x"}])
    with pytest.raises(InvalidRequestError, match="defined twice"):
        chat(messages=[{"role": "user"}], tools=[{"function": {"name": "f"}}, {"function": {"name": "f"}}])
    for value in (-1, 21):
        with pytest.raises(InvalidRequestError, match=r"^top_logprobs must be between 0 and 20$"):
            check_flags(parse_body(ChatBody, json.dumps({"top_logprobs": value}).encode()))
    with pytest.raises(UnsupportedError, match="_debug_render_only"):
        check_flags(parse_body(ChatBody, b'{"_debug_render_only": true}'))


def test_a_template_is_jinja() -> None:
    rendered = compile_template("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    assert rendered.render(chat(messages=[{"role": "user", "content": "hi"}])) == "<user>hi"
    for source in ("{{ .Prompt }}", "{{- if .System }}x{{ end }}", "{{ range .Messages }}{{ end }}"):
        with pytest.raises(InvalidRequestError, match="Go's text/template"):
            compile_template(source)
    with pytest.raises(InvalidRequestError, match="template: "):
        compile_template("{% if %}")


# --- against a model


def status(
    features: set[Feature], *, tags: bool = False, tasks: set[Task] | None = None, **defaults: Any
) -> ModelStatus:
    capabilities = Capabilities(
        tasks=frozenset(tasks or {Task.CHAT}), features=frozenset(features), sampling=SAMPLING_PARAMETERS - {"min_p"}
    )
    return ModelStatus(
        id="id", name="n", path="/p", platform="x", kind="chat", tasks=frozenset({"chat"}), state="ready", instance_count=1,
        requested_instance_count=1, request_queue_size=1, running=0, queued=0, loaded_at=0.0, pinned=False, size_bytes=1,
        capabilities=capabilities, info=ModelInfo(context_tokens=77, reasoning_tags=("<t>", "</t>") if tags else None),
        defaults=GenerationDefaults(**defaults),
    )  # fmt: skip


def fitted(request: ChatRequest, loaded: ModelStatus, **options: Any) -> ChatRequest:
    decoded = decode_options(options, settings=SETTINGS)
    return fit_to_model(request, loaded, name=parse_name("Mine"), options=decoded, task="chat")


def test_defaults_of_ollama_hold_where_nobody_says_anything() -> None:
    loaded = status(set(), sampling=Sampling(top_k=11, temperature=0.1))
    request = fitted(chat(messages=[{"role": "user"}]), loaded, top_p=0.3, num_predict=-1)
    assert request.sampling == Sampling(
        top_p=0.3, repeat_last_n=64, repeat_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, max_tokens=77
    )
    assert request.model == "id"


@pytest.mark.parametrize(
    ("wanted", "features", "tags", "result"),
    [
        (None, {Feature.THINKING}, True, True), (None, set(), True, None), (None, set(), False, None),
        (True, {Feature.THINKING}, True, True), (True, set(), True, None), (False, {Feature.THINKING}, True, False),
        (False, set(), False, None),
        (True, set(), False, '"Mine" does not support thinking'),
        (False, set(), True, 'think value "false" is not supported for this model'),
    ],
)  # fmt: skip
def test_thinking(wanted: bool | None, features: set[Feature], tags: bool, result: bool | str | None) -> None:
    request = chat(messages=[{"role": "user"}], think=wanted)
    if isinstance(result, str):
        with pytest.raises(UnsupportedError) as caught:
            fitted(request, status(features, tags=tags))
        assert caught.value.message == result
    else:
        assert fitted(request, status(features, tags=tags)).enable_thinking is result


def test_the_operator_may_switch_thinking_off() -> None:
    loaded = status({Feature.THINKING}, enable_thinking=False)
    assert fitted(chat(messages=[{"role": "user"}]), loaded).enable_thinking is None


def test_what_a_model_cannot_do_is_refused_in_ollamas_words() -> None:
    full = "registry.ollama.ai/library/Mine:latest"
    image = {"role": "user", "images": [base64.b64encode(PNG).decode()]}
    cases: list[tuple[ChatRequest, ModelStatus, str]] = [
        (chat(messages=[{"role": "user"}], tools=[{"function": {"name": "f"}}]), status(set()), f"{full} does not support tools"),
        (chat(messages=[image]), status(set()), f"{full} does not support vision"),
        (generate(prompt="a", suffix="b"), status({Feature.RAW_PROMPT}), f"{full} does not support insert"),
        (chat(messages=[{"role": "user"}]), status(set(), tasks={Task.EMBED}), '"Mine" does not support chat'),
    ]  # fmt: skip
    for request, loaded, text in cases:
        with pytest.raises(UnsupportedError) as caught:
            fitted(request, loaded)
        assert caught.value.message == text


# --- embeddings, create, digests


def test_embeddings() -> None:
    def embed(**fields: Any) -> EmbedRequest | None:
        return decode_embed(parse_body(EmbedBody, json.dumps({"model": "m", **fields}).encode()), request_id="r")

    assert embed(input="x") == EmbedRequest(id="r", model="", inputs=("x",), truncate=True)
    assert embed(input=["x", ""], truncate=False) == EmbedRequest(id="r", model="", inputs=("x", ""))
    for nothing in ("", None, []):
        assert embed(input=nothing) is None
    for wrong in (5, [1], [[1, 2]], {"a": 1}, ["x", None]):
        with pytest.raises(InvalidRequestError, match=r"^invalid input type$"):
            embed(input=wrong)
    old = parse_body(EmbeddingsBody, b'{"model": "m", "prompt": "x", "input": "y"}')
    assert decode_embeddings(old, request_id="r") == EmbedRequest(
        id="r", model="", inputs=("x",), normalize=False, truncate=True
    )
    assert decode_embeddings(parse_body(EmbeddingsBody, b'{"input": "y"}'), request_id="r") is None


def create(**fields: Any) -> Any:
    return decode_create(parse_body(CreateBody, json.dumps({"model": "new", **fields}).encode()), settings=SETTINGS)


def test_create() -> None:
    digest = "AB" * 32
    made = create(
        **{"from": "base:1b"},
        files={"a/m.gguf": f"sha256:{digest}"},
        template="{{ messages }}",
        license=["one", "two"],
        system="s",
        parameters={"stop": ["x"], "num_ctx": 99, "temperature": 0.5},
        messages=[{"role": "user", "content": "hi"}],
    )
    assert (made.name, made.base, made.files) == ("new", "base:1b", {"a/m.gguf": digest.lower()})
    assert (made.chat_template, made.license) == ("{{ messages }}", "one\n\ntwo")
    assert made.defaults == GenerationDefaults(
        sampling=Sampling(stop=("x",), temperature=0.5), max_context_len=99, system="s", messages=(user("hi"),)
    )


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "neither 'from' or 'files' was specified"),
        ({"model": ""}, "invalid model name"),
        ({"model": "a b", "from": "x"}, "invalid model name"),
        ({"files": {"/m.gguf": "sha256:" + "0" * 64}}, "file path must be relative"),
        ({"files": {"../m.gguf": "sha256:" + "0" * 64}}, "file path must be relative"),
        ({"files": {"m.gguf": "md5:0"}}, "invalid digest format"),
        ({"from": "x", "adapters": {"a": "b"}}, "adapters are not supported"),
        ({"from": "x", "quantize": "q4_K_M"}, "quantize is not supported"),
        ({"from": "x", "renderer": "qwen"}, "renderer is not supported"),
        ({"from": "x", "parameters": {"num_keep": 5}}, "unknown parameter 'num_keep'"),
        ({"from": "x", "parameters": {"temperature": "hot"}}, 'option "temperature" must be of type float32'),
        ({"from": "x", "parameters": {"num_predict": -1}}, "num_predict"),
        ({"from": "x", "template": "{{ .Prompt }}"}, "Go's text/template"),
        ({"from": "x", "messages": [{"role": "tool", "content": "y"}]}, "messages of a model are text"),
    ],
)
def test_create_that_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError) as caught:
        create(**fields)
    assert text in caught.value.message


def test_digests() -> None:
    for separator in ":-":
        assert decode_digest(f"sha256{separator}{'aB' * 32}") == "ab" * 32
    for wrong in ("", "sha256:", "sha256:" + "g" * 64, "sha1:" + "0" * 64, "0" * 64):
        with pytest.raises(InvalidRequestError, match="invalid digest format"):
            decode_digest(wrong)
