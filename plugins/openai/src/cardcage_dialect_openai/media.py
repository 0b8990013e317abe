"""Content parts of messages, images and sounds checked from their first bytes without decoding them. Pure."""

import base64
import binascii
import re
import struct
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel

from cardcage_dialect_openai.body import parse_value
from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.wire.chat import AudioContent, ImageContent, RefusalContent, TextContent
from cardcage_sdk.chat import AudioPart, ContentPart, ImagePart, TextPart
from cardcage_sdk.errors import InvalidContentPartError, InvalidRequestError, UnsupportedContentPartError

__all__ = ["decode_part", "image_size"]

Model = TypeVar("Model", bound=BaseModel)

_DATA_URL = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),", re.ASCII)
_IMAGE_TYPES = {"image/png", "image/jpeg", "image/jpg", "image/webp"}
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:", re.ASCII)


def decode_part(part: dict[str, Any], *, role: str, param: str, settings: Settings) -> ContentPart:
    """Decode one content part.

    Args:
        part: The part as JSON.
        role: Role of its message; only a user sends images and sounds, only an assistant refusals.
        param: Path of the part in the request, for errors.
        settings: Bounds of images.

    Raises:
        UnsupportedContentPartError: `video`, `file`, an unknown type, or one that this role does not send.
        InvalidContentPartError: The type is known, its data is not as it must be.
    """
    kind = part.get("type")
    if not isinstance(kind, str):
        raise InvalidContentPartError(f"'{param}.type' must be a string", param=f"{param}.type")
    if kind == "text":
        return TextPart(_parse(TextContent, part, param).text)
    if kind == "refusal" and role == "assistant":
        return TextPart(_parse(RefusalContent, part, param).refusal)
    if kind in {"image_url", "input_audio"} and role != "user":
        raise UnsupportedContentPartError(kind, message=f"Messages of role '{role}' take no parts of type '{kind}'")
    if kind == "image_url":
        image = _parse(ImageContent, part, param).image_url
        return _decode_image(image if isinstance(image, str) else image.url, f"{param}.image_url.url", settings)
    if kind == "input_audio":
        audio = _parse(AudioContent, part, param).input_audio
        return _decode_audio(audio.data, audio.format, f"{param}.input_audio")
    raise UnsupportedContentPartError(kind)


def _parse(model: type[Model], part: dict[str, Any], param: str) -> Model:
    try:
        return parse_value(model, part, prefix=param)
    except InvalidRequestError as error:
        raise InvalidContentPartError(error.message, param=error.param) from error


def _decode_image(url: str, param: str, settings: Settings) -> ImagePart:
    if url[:5].lower() == "data:":
        return _decode_image_data(url, param, settings)
    if _SCHEME.match(url):
        raise InvalidContentPartError(
            f"'{param}' must be a data URL or an absolute path on the server; addresses are not fetched", param=param
        )
    if not url.startswith("/") or "\0" in url:
        raise InvalidContentPartError(f"'{param}' must be a data URL or an absolute path on the server", param=param)
    return ImagePart(path=url)


def _decode_image_data(url: str, param: str, settings: Settings) -> ImagePart:
    head = _DATA_URL.match(url)
    if head is None or ";base64" not in head[2].lower():
        raise InvalidContentPartError(f"'{param}' must be a base64 data URL", param=param)
    if head[1].lower() not in _IMAGE_TYPES:
        raise InvalidContentPartError(f"'{param}' must be of type png, jpeg, jpg or webp, not '{head[1]}'", param=param)
    # Four characters of base64 are three bytes, so the size is known before anything is decoded.
    if (len(url) - head.end()) * 3 // 4 > settings.max_image_bytes + 2:
        raise InvalidContentPartError(
            f"'{param}' holds an image of more than {settings.max_image_bytes} bytes", param=param
        )
    data = _decode_base64(url[head.end() :], param)
    found = image_size(data)
    if found is None:
        raise InvalidContentPartError(f"'{param}' holds no valid png, jpeg or webp image", param=param)
    media_type, width, height = found
    if width < 1 or height < 1 or width * height > settings.max_image_pixels:
        raise InvalidContentPartError(
            f"'{param}' holds an image of {width} x {height} pixels; at most {settings.max_image_pixels} are taken",
            param=param,
        )
    return ImagePart(data=data, media_type=media_type)


def _decode_audio(text: str, form: str, param: str) -> AudioPart:
    form = form.lower()
    if form not in {"wav", "mp3"}:
        raise InvalidContentPartError(f"'{param}.format' must be 'wav' or 'mp3', not '{form}'", param=f"{param}.format")
    data = _decode_base64(text, f"{param}.data")
    is_wav = data[:4] == b"RIFF" and data[8:12] == b"WAVE"
    # A tag, or the eleven set bits with which every MPEG audio frame begins.
    is_mp3 = data[:3] == b"ID3" or (len(data) > 1 and data[0] == 0xFF and data[1] & 0xE0 == 0xE0)
    if not (is_wav if form == "wav" else is_mp3):
        raise InvalidContentPartError(f"'{param}.data' holds no {form} file", param=f"{param}.data")
    return AudioPart(data=data, format=form)


def _decode_base64(text: str, param: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidContentPartError(f"'{param}' is not valid base64: {error}", param=param) from error
    if not data:
        raise InvalidContentPartError(f"'{param}' is empty", param=param)
    return data


# --- image headers ------------------------------------------------------------------------------------------------


def image_size(data: bytes) -> tuple[str, int, int] | None:
    """Media type, width and height of a png, jpeg or webp file from its header, or None where it is none of these.

    The media type is what the bytes say: clients often name the wrong one, and a decoder goes by the bytes too.
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and len(data) >= 24:
        width, height = struct.unpack_from(">II", data, 16)
        return "image/png", width, height
    if data[:3] == b"\xff\xd8\xff":
        return _jpeg_size(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and len(data) >= 30:
        return _webp_size(data)
    return None


def _jpeg_size(data: bytes) -> tuple[str, int, int] | None:
    for marker, start in _jpeg_segments(data):
        # SOF0 to SOF15 give the size; C4, C8 and CC in between are tables and a reserved marker.
        if 0xC0 <= marker <= 0xCF and marker not in {0xC4, 0xC8, 0xCC}:
            if start + 7 > len(data):
                return None
            height, width = struct.unpack_from(">HH", data, start + 3)
            return "image/jpeg", width, height
    return None


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Marker and offset of the length field of each segment before the image data."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in {0xD9, 0xDA}:
            return
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a segment
            at += 2
            continue
        yield marker, at + 2
        at += 2 + max(2, int.from_bytes(data[at + 2 : at + 4], "big"))


def _webp_size(data: bytes) -> tuple[str, int, int] | None:
    chunk = data[12:16]
    if chunk == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        return "image/webp", width, height
    if chunk == b"VP8L" and data[20] == 0x2F:
        bits = int.from_bytes(data[21:25], "little")
        return "image/webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return "image/webp", width & 0x3FFF, height & 0x3FFF
    return None
