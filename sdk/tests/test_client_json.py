"""What a client's JSON may be, and what an image's first bytes tell; the dialects' own tests cover the rest."""

from __future__ import annotations

import struct

import pytest

from cardcage_sdk.client_json import MAX_DEPTH, check_plain, check_schema, decode_json
from cardcage_sdk.errors import InvalidRequestError, InvalidSchemaError
from cardcage_sdk.media import image_size


def test_half_a_character_becomes_the_replacement_character() -> None:
    assert decode_json(b'{"a\\ud83d": ["x\\udc00", "\\ud83d\\ude00"]}') == {"a\ufffd": ["x\ufffd", "\U0001f600"]}


@pytest.mark.parametrize("data", [b"", b"{", b'{"a": NaN}', b"\xff", b"[" * 100_000, b"1" * 5000])
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_json(data)


def test_values_that_no_pipe_takes_are_refused() -> None:
    deep: object = 1
    for _ in range(201):
        deep = [deep]
    for value in (deep, {"a": 2**64}):
        with pytest.raises(InvalidRequestError, match="'x'"):
            check_plain(value, param="x")
    check_plain({"a": [2**64 - 1, -(2**63), {"b": None}]}, param="x")


@pytest.mark.parametrize("schema", [[], {"type": "thing"}, {"properties": []}, {"$ref": "https://x"}, {"enum": []}])
def test_what_is_no_schema_is_refused(schema: object) -> None:
    with pytest.raises(InvalidSchemaError):
        check_schema(schema, param="format")


def test_a_schema_has_bounds() -> None:
    schema: dict[str, object] = {"type": "string"}
    for _ in range(MAX_DEPTH + 1):
        schema = {"items": schema}
    with pytest.raises(InvalidSchemaError, match="nested deeper"):
        check_schema(schema, param="format")


def test_the_size_of_an_image_comes_from_its_header() -> None:
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + struct.pack(">II", 7, 9)
    assert image_size(png) == ("image/png", 7, 9)
    assert image_size(b"GIF89a" + bytes(32)) is None
