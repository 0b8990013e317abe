"""Request bodies in, JSON responses out."""

from typing import Any, TypeVar, cast

from pydantic import BaseModel
from quart import Response, request

from cardcage_dialect_openai.body import parse_body
from cardcage_sdk.stream.jsontext import encode_json

__all__ = ["json_bytes_response", "json_response", "read_body"]

Model = TypeVar("Model", bound=BaseModel)


async def read_body(model: type[Model]) -> Model:
    """Read and check the JSON body of the running request, whatever its content type says.

    Many local clients forget the header; that a web page can leave it out too is why core checks origins.
    """
    # Bytes, as no text was asked for; Quart's annotation does not tell the two apart.
    return parse_body(model, cast(bytes, await request.get_data()))


def json_response(value: Any) -> Response:
    """A successful answer."""
    return json_bytes_response(encode_json(value))


def json_bytes_response(body: bytes) -> Response:
    """A successful answer that is encoded already."""
    response = Response(body, content_type="application/json")
    response.timeout = None  # a slow reader of a large answer is no reason to cut it after Quart's 60 seconds
    return response
