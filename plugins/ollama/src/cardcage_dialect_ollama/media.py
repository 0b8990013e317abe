"""Images of requests, checked from their first bytes without decoding them. Pure."""

import base64
import binascii
from collections.abc import Sequence

from cardcage_dialect_ollama.settings import Settings
from cardcage_sdk.chat import ContentPart, ImagePart, TextPart
from cardcage_sdk.errors import InvalidContentPartError
from cardcage_sdk.media import image_size

__all__ = ["decode_content"]

_MARK = "[img]"


def decode_content(text: str, images: Sequence[str], *, settings: Settings) -> tuple[ContentPart, ...]:
    """Text and images of a turn: each `[img]` in the text is where the next image goes, the others go first.

    Raises:
        InvalidContentPartError: One is no image, or too large.
    """
    parts = [_decode_image(image, settings) for image in images]
    if not parts:
        return (TextPart(text),) if text else ()
    pieces = text.split(_MARK, len(parts))
    marked = len(pieces) - 1
    content: list[ContentPart] = list(parts[: len(parts) - marked])
    for piece, image in zip(pieces, [*parts[len(parts) - marked :], None], strict=True):
        if piece:
            content.append(TextPart(piece))
        if image is not None:
            content.append(image)
    return tuple(content)


def _decode_image(text: str, settings: Settings) -> ImagePart:
    # Four characters of base64 are three bytes, so the size is known before anything is decoded.
    if len(text) * 3 // 4 > settings.max_image_bytes + 2:
        raise InvalidContentPartError(f"an image has more than {settings.max_image_bytes} bytes", param="images")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidContentPartError(f"illegal base64 data in an image: {error}", param="images") from error
    found = image_size(data)
    if found is None:
        raise InvalidContentPartError("an image is no valid png, jpeg or webp file", param="images")
    media_type, width, height = found
    if width < 1 or height < 1 or width * height > settings.max_image_pixels:
        raise InvalidContentPartError(
            f"an image has {width} x {height} pixels; at most {settings.max_image_pixels} are taken", param="images"
        )
    return ImagePart(data=data, media_type=media_type)
