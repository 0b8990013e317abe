"""From bytes to a checked model: everything that can be wrong with a body is one sentence."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardcage_dialect_openai.body import parse_body, read_json
from cardcage_dialect_openai.wire.chat import ChatCompletionRequest
from cardcage_dialect_openai.wire.management import LoadModelRequest
from cardcage_sdk.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b"  \n", "it is empty"),
        (b"{", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -Infinity}', "-Infinity is not JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"text"', "must be a JSON object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"model=x&messages=y", "not valid JSON"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bodies_that_are_no_json_object(data: bytes, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        read_json(data)
    assert caught.value.param is None


def test_deep_nesting_with_a_surrogate_is_read_or_refused() -> None:
    def body(depth: int) -> bytes:
        return b'{"a": "\\ud800", "b": ' + b"[" * depth + b"]" * depth + b"}"

    assert read_json(body(100))["a"] == "\ufffd"
    # Where exactly the limit of Python's recursion lies depends on who calls; it must not come out as a RecursionError.
    with contextlib.suppress(InvalidRequestError):
        read_json(body(900))


def test_a_byte_order_mark_is_no_reason_to_refuse() -> None:
    assert read_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_lone_surrogates_become_replacement_characters_and_pairs_stay() -> None:
    cut = read_json(b'{"\\ud83d": ["a\\uD83D", {"b": "\\ude00\\ud83d\\ude00"}]}')
    assert cut == {"\ufffd": ["a\ufffd", {"b": "\ufffd\U0001f600"}]}
    json.dumps(cut, ensure_ascii=False).encode()


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
                                               | st.integers(-(10**300), 10**300) | st.text(), st.lists)))  # fmt: skip
def test_all_json_is_read_as_it_is(value: dict[str, object]) -> None:
    assert read_json(json.dumps(value, ensure_ascii=True).encode()) == value


def test_one_sentence_names_the_first_of_several_problems() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(ChatCompletionRequest, b'{"model": 1, "messages": [{"role": "user", "content": {}}]}')
    assert caught.value.message == "'model' must be a valid string (and 1 more)"
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("member", "says"),
    [
        ('"stream_options": 5', "'stream_options' must be an object"),
        ('"logit_bias": []', "'logit_bias' must be an object"),
        ('"tools": {}', "'tools' must be an array"),
        ('"tools": [null]', "'tools[0]' must be an object"),
        ('"response_format": "json_object"', "'response_format' must be an object"),
    ],
)
def test_shapes_are_told_in_the_words_of_json(member: str, says: str) -> None:
    body = '{"model": "m", "messages": [{"role": "user", "content": "hi"}], ' + member + "}"
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(ChatCompletionRequest, body.encode())
    assert caught.value.message == says


def test_negative_instance_counts_are_malformed_and_unknown_default_params_named() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(LoadModelRequest, b'{"model_id": "m", "model_path": "/m", "instance_count": -1}')
    assert type(caught.value) is InvalidRequestError
    assert caught.value.message == "'instance_count' must be greater than or equal to 0"
    with pytest.raises(InvalidRequestError) as caught:
        parse_body(LoadModelRequest, b'{"model_id": "m", "model_path": "/m", "default_params": {"temprature": 1}}')
    assert caught.value.message == "'default_params.temprature' is unknown"


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(InvalidRequestError):
        parse_body(ChatCompletionRequest, data)
