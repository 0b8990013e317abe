"""Bytes of streams, read back as a client reads them."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cardcage_sdk.stream import ndjson, sse


def read_sse(data: bytes) -> list[dict[str, str]]:
    """A reader after the letter of the standard."""
    events = []
    event: dict[str, str] = {}
    for line in data.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if not line:
            if event:
                events.append(event)
            event = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            event[name] = f"{event[name]}\n{value}" if name in event else value
    return events


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives_an_event(text: str) -> None:
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    assert read_sse(sse.encode_event(text)) == [{"data": lines}]


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=10), max_size=3))
def test_json_is_one_line(value: dict[str, str]) -> None:
    data = sse.encode_json_event(value, event="error", event_id="7")
    assert data.count(b"\ndata: ") == 1
    (event,) = read_sse(data)
    assert (event["event"], event["id"]) == ("error", "7")
    assert json.loads(event["data"]) == value
    assert json.loads(ndjson.encode_line(value)) == value
    assert ndjson.encode_line(value).count(b"\n") == 1


def test_characters_are_not_escaped_but_for_half_a_pair() -> None:
    assert sse.encode_json_event("ü🛠") == 'data: "ü🛠"\n\n'.encode()
    assert ndjson.encode_line("\ud800") == b'"\\ud800"\n'


def test_comments_are_dropped_by_readers() -> None:
    assert read_sse(sse.PING + sse.encode_comment("still\nloading") + sse.encode_event("x")) == [{"data": "x"}]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        sse.encode_json_event({"x": number})
    with pytest.raises(ValueError, match="not JSON compliant"):
        ndjson.encode_line({"x": number})


@pytest.mark.parametrize("fields", [{"event": "a\nb"}, {"event_id": "a\rb"}, {"event_id": "a\0"}])
def test_names_of_several_lines_are_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="must"):
        sse.encode_event("x", **fields)
