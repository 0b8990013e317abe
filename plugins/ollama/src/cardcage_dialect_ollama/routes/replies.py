"""Request bodies in, JSON and NDJSON out."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar, cast

import structlog
from pydantic import BaseModel
from quart import Response, has_request_context, request

from cardcage_dialect_ollama.body import parse_body
from cardcage_dialect_ollama.errors import JSON_TYPE, encode_error
from cardcage_sdk.dialect import Reply
from cardcage_sdk.errors import CardcageError, InternalError
from cardcage_sdk.stream.jsontext import encode_json
from cardcage_sdk.stream.ndjson import HEADERS, encode_line
from cardcage_sdk.stream.pump import OwnedBody

__all__ = [
    "Lines",
    "empty_response",
    "error_response",
    "json_bytes_response",
    "json_response",
    "read_body",
    "redirect_reply",
    "stream_lines",
]

Model = TypeVar("Model", bound=BaseModel)
Lines = AsyncGenerator[dict[str, Any], None]

_log = structlog.get_logger("cardcage.dialect.ollama")


async def read_body(model: type[Model]) -> Model:
    """Read and check the JSON body of the running request, whatever its content type says: `curl -d` must work."""
    # Bytes, as no text was asked for; Quart's annotation does not tell the two apart.
    return parse_body(model, cast(bytes, await request.get_data()))


def json_response(value: Any, *, status: int = 200) -> Response:
    """One object."""
    return json_bytes_response(encode_json(value), status=status)


def json_bytes_response(body: bytes, *, status: int = 200) -> Response:
    """One object that is encoded already."""
    response = Response(body, status, content_type=JSON_TYPE)
    response.timeout = None  # a slow reader of a large answer is no reason to cut it after Quart's 60 seconds
    return response


def error_response(text: str, *, status: int) -> Response:
    """An error that no class of the tree stands for."""
    return json_response({"error": text}, status=status)


def empty_response(*, status: int = 200) -> Response:
    """An answer without a body."""
    return Response(b"", status, content_type="text/plain")


def redirect_reply(path: str) -> Reply:
    """Send a path with a slash at the end to the one without, as Go's router does: 301 for GET, else 307 with the same body."""
    is_reading = has_request_context() and request.method in {"GET", "HEAD"}
    bare = f"/{path.strip('/')}"
    return Reply(status=301 if is_reading else 307, body=b"", content_type="text/plain", headers={"location": bare})


async def stream_lines(lines: Lines, close: Callable[[], Awaitable[None]] | None = None) -> Response:
    """A response of one line for each object, begun when the first one is there; until then an error has its status.

    Args:
        lines: The objects.
        close: Ends what the lines come from, when the client leaves as well.

    Raises:
        CardcageError: There was no first line.
    """

    async def end() -> None:
        await lines.aclose()
        if close is not None:
            await close()

    try:
        first = await anext(lines)
    except BaseException:  # also when the client leaves: the worker is told before anything else happens
        await end()
        raise
    response = Response(OwnedBody(_body(first, lines), end), headers=dict(HEADERS))
    response.timeout = None  # Quart would cut the stream after 60 seconds
    return response


async def _body(first: dict[str, Any], lines: Lines) -> AsyncGenerator[bytes, None]:
    try:
        yield encode_line(first)
        async for line in lines:
            yield encode_line(line)
    except CardcageError as error:
        yield encode_line(encode_error(error))
    except Exception:  # noqa: BLE001 - the status is sent, so nobody above could tell the client any more
        _log.exception("a stream failed in the dialect")
        yield encode_line(encode_error(InternalError()))
