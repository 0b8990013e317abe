"""`HEAD` and `POST /api/blobs/{digest}`: files that a model is made of."""

import asyncio
from collections.abc import AsyncGenerator

from quart import Blueprint, Response, request

from cardcage_dialect_ollama.digests import decode_digest
from cardcage_dialect_ollama.routes.replies import empty_response
from cardcage_sdk.errors import InvalidRequestError, RequestTimeoutError
from cardcage_sdk.service import Service

__all__ = ["add_blob_routes"]

_SILENCE_SECONDS = 60.0


def add_blob_routes(blueprint: Blueprint, service: Service) -> None:
    """Add both routes."""

    @blueprint.route("/api/blobs/<digest>", methods=["HEAD"], provide_automatic_options=False)
    async def has(digest: str) -> Response:
        is_there = await service.library.has_file(decode_digest(digest))
        return empty_response(status=200 if is_there else 404)

    @blueprint.post("/api/blobs/<digest>")
    async def put(digest: str) -> Response:
        chunks = _chunks()
        try:
            sha256 = decode_digest(digest)
        except InvalidRequestError:
            async for _ in chunks:
                pass  # a client that is still sending would not see the answer
            raise
        is_new = await service.library.add_file(sha256, chunks)
        return empty_response(status=201 if is_new else 200)


async def _chunks() -> AsyncGenerator[bytes, None]:
    body = aiter(request.body)
    while True:
        try:
            async with asyncio.timeout(_SILENCE_SECONDS):
                chunk = await anext(body)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise RequestTimeoutError from None
        yield chunk
