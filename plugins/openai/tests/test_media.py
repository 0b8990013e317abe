"""Content parts: what is taken, and which of the page's two codes refuses the rest."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cardcage_dialect_openai.media import decode_part, image_size
from cardcage_dialect_openai.settings import Settings
from cardcage_sdk.chat import AudioPart, ContentPart, ImagePart, TextPart
from cardcage_sdk.errors import InvalidContentPartError, UnsupportedContentPartError


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 2, 0, 0, 0)


def jpeg(width: int, height: int, *, sof: int = 0xC0) -> bytes:
    app0 = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0" + bytes(9)
    table = b"\xff\xc4" + struct.pack(">H", 4) + bytes(2)
    return b"\xff\xd8" + app0 + table + b"\xff" + bytes([0xFF, sof]) + struct.pack(">HBHHB", 11, 8, height, width, 1)


def webp_extended(width: int, height: int) -> bytes:
    body = (
        b"VP8X"
        + struct.pack("<I", 10)
        + bytes(4)
        + (width - 1).to_bytes(3, "little")
        + (height - 1).to_bytes(3, "little")
    )
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


def webp_lossless(width: int, height: int) -> bytes:
    bits = (width - 1) | (height - 1) << 14
    return b"RIFF" + bytes(4) + b"WEBPVP8L" + bytes(4) + b"\x2f" + struct.pack("<I", bits) + bytes(8)


def webp_lossy(width: int, height: int) -> bytes:
    return b"RIFF" + bytes(4) + b"WEBPVP8 " + bytes(7) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def audio(data: bytes, form: str) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": form}}


def decode(part: dict[str, Any], *, role: str = "user", **settings: Any) -> ContentPart:
    return decode_part(part, role=role, param="messages[0].content[0]", settings=Settings(**settings))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png(640, 480), ("image/png", 640, 480)),
        (jpeg(640, 480), ("image/jpeg", 640, 480)),
        (jpeg(33, 44, sof=0xC2), ("image/jpeg", 33, 44)),
        (webp_extended(640, 480), ("image/webp", 640, 480)),
        (webp_lossless(640, 480), ("image/webp", 640, 480)),
        (webp_lossy(640, 480), ("image/webp", 640, 480)),
        (b"GIF89a" + bytes(40), None),
        (png(1, 1)[:20], None),
        (b"\xff\xd8\xff\xd9", None),
        (b"\xff\xd8\xff\xe0\x00\x10", None),
        (b"", None),
    ],
)
def test_image_size_from_header_bytes(data: bytes, expected: object) -> None:
    assert image_size(data) == expected


@settings(deadline=None, max_examples=60)
@given(st.sampled_from([png(3, 3), jpeg(3, 3), webp_extended(3, 3), webp_lossless(3, 3), webp_lossy(3, 3)]), st.data())
def test_damaged_headers_raise_nothing(data: bytes, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    noise = draw.draw(st.binary(max_size=20))
    found = image_size(data[:cut] + noise)
    assert found is None or len(found) == 3


def test_text_and_refusal() -> None:
    assert decode({"type": "text", "text": "hi"}) == TextPart("hi")
    assert decode({"type": "refusal", "refusal": "no"}, role="assistant") == TextPart("no")


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "image/jpg", "image/webp", "IMAGE/PNG"])
def test_data_urls_go_by_their_bytes(kind: str) -> None:
    data = png(8, 8)
    assert decode(image(data_url(data, kind))) == ImagePart(data=data, media_type="image/png")


def test_an_address_without_its_object() -> None:
    assert decode({"type": "image_url", "image_url": "/srv/cat.jpg"}) == ImagePart(path="/srv/cat.jpg")


def test_a_local_path_goes_to_the_service_unread() -> None:
    assert decode(image("/no/such/file.png")) == ImagePart(path="/no/such/file.png")


@pytest.mark.parametrize(
    "part",
    [
        {"text": "no type"},
        {"type": 5},
        {"type": "text"},
        {"type": "text", "text": 5},
        {"type": "image_url"},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": None},
        image(5),
        image("http://example.org/cat.png"),
        image("HTTPS://example.org/cat.png"),
        image("ftp://example.org/cat.png"),
        image("file:///srv/cat.png"),
        image("cat.png"),
        image("../cat.png"),
        image("/srv/\0cat.png"),
        image(""),
        image(data_url(png(1, 1), "image/gif")),
        image(data_url(png(1, 1), "text/html")),
        image(data_url(b"GIF89a" + bytes(40))),
        image("data:image/png,notbase64"),
        image("data:image/png;base64,@@@@"),
        image("data:image/png;base64,"),
        image("data:image/png;base64"),
        image(data_url(png(0, 5))),
        image(data_url(png(100_000, 100_000))),
        {"type": "input_audio"},
        {"type": "input_audio", "input_audio": {"data": "AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "*", "format": "wav"}},
        audio(b"RIFF0000WAVE", "ogg"),
        audio(b"OggS", "wav"),
        audio(b"RIFF0000WAVE", "mp3"),
        audio(b"", "wav"),
    ],
    ids=lambda part: str(part)[:60],
)
def test_malformed_parts(part: dict[str, Any]) -> None:
    with pytest.raises(InvalidContentPartError) as caught:
        decode(part)
    assert (caught.value.param or "").startswith("messages[0].content[0]")


@pytest.mark.parametrize("kind", ["video", "video_url", "file", "input_file", "refusal", "holo", ""])
def test_parts_of_other_kinds(kind: str) -> None:
    with pytest.raises(UnsupportedContentPartError) as caught:
        decode({"type": kind, "text": 5})
    assert caught.value.code == "unsupported_content_part_type"


@pytest.mark.parametrize("role", ["system", "assistant", "tool"])
def test_only_a_user_sends_images_and_sounds(role: str) -> None:
    for part in (image("/cat.png"), audio(b"RIFF0000WAVE", "wav")):
        with pytest.raises(UnsupportedContentPartError, match=role):
            decode(part, role=role)


@pytest.mark.parametrize(
    ("data", "form"),
    [(b"RIFF0000WAVEfmt ", "wav"), (b"ID3\x04", "mp3"), (b"\xff\xfb\x90\x00", "mp3"), (b"RIFF0000WAVE", "WAV")],
)
def test_sounds(data: bytes, form: str) -> None:
    assert decode(audio(data, form)) == AudioPart(data=data, format=form.lower())


def test_bounds_are_settings() -> None:
    url = data_url(png(8, 8) + bytes(1000))
    assert decode(image(url), max_image_bytes=1033, max_image_pixels=64)
    with pytest.raises(InvalidContentPartError, match="more than 1000 bytes"):
        decode(image(url), max_image_bytes=1000)
    with pytest.raises(InvalidContentPartError, match="8 x 8 pixels"):
        decode(image(url), max_image_pixels=63)


@pytest.mark.parametrize("address", [None, 5, []])
def test_an_address_of_a_wrong_shape_is_told_in_one_sentence(address: object) -> None:
    with pytest.raises(InvalidContentPartError, match=r"image_url' must be an object with 'url'$") as caught:
        decode({"type": "image_url", "image_url": address})
    assert caught.value.param == "messages[0].content[0].image_url"
