"""What the first bytes of an encoded image tell, without decoding it. Pure."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["image_size"]


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
