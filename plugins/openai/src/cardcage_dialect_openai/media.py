"""Content parts of messages, images and sounds checked from their first bytes without decoding them. Pure."""

import base64
import binascii
import re
from typing import Any, TypeVar

from pydantic import BaseModel

from cardcage_dialect_openai.body import parse_value
from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.wire.chat import AudioContent, ImageContent, RefusalContent, TextContent
from cardcage_sdk.chat import AudioPart, ContentPart, ImagePart, TextPart
from cardcage_sdk.errors import InvalidContentPartError, InvalidRequestError, UnsupportedContentPartError
from cardcage_sdk.media import image_size

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
