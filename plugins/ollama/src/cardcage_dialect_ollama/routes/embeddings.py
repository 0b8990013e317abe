"""`POST /api/embed` and, in its old form, `POST /api/embeddings`."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from quart import Blueprint, Response

from cardcage_dialect_ollama.decode import decode_embed, decode_embeddings
from cardcage_dialect_ollama.encode import encode_vectors
from cardcage_dialect_ollama.keep_alive import decode_keep_alive
from cardcage_dialect_ollama.names import ModelName, parse_name
from cardcage_dialect_ollama.options import decode_options
from cardcage_dialect_ollama.routes.replies import json_bytes_response, json_response, read_body
from cardcage_dialect_ollama.routes.running import held, new_id
from cardcage_dialect_ollama.settings import Settings
from cardcage_dialect_ollama.wire.generation import EmbedBody, EmbeddingsBody
from cardcage_sdk.embeddings import EmbedRequest, EmbedResult
from cardcage_sdk.errors import (
    ContextLengthExceededError,
    InvalidRequestError,
    ModelNotFoundError,
    UnsupportedError,
    WrongModelTypeError,
)
from cardcage_sdk.service import Service
from cardcage_sdk.stream.jsontext import encode_json

__all__ = ["add_embedding_routes"]

_NANO = 1_000_000_000


def add_embedding_routes(blueprint: Blueprint, service: Service, settings: Settings) -> None:
    """Add both routes."""

    async def run(
        body: EmbedBody | EmbeddingsBody, name: ModelName, neutral: EmbedRequest | None
    ) -> tuple[EmbedResult | None, float]:
        """The result, None where there was nothing to embed, and the seconds until the model was loaded."""
        began = time.monotonic()
        options = decode_options(body.options, settings=settings)
        keep_alive = decode_keep_alive(body.keep_alive)
        with _in_words_of_ollama(name):
            async with held(
                service, name, keep_alive=keep_alive, context_tokens=options.context_tokens, settings=settings
            ) as status:
                loaded = time.monotonic() - began
                if neutral is None:
                    return None, loaded
                return await service.embed(replace(neutral, model=status.id)), loaded

    @blueprint.post("/api/embed")
    async def embed() -> Response:
        began = time.monotonic()
        body = await read_body(EmbedBody)
        name = _name(body.model)
        neutral = decode_embed(body, request_id=new_id())
        result, loaded = await run(body, name, neutral)
        answer: dict[str, Any] = {"model": body.model, "embeddings": []}
        if result is not None and neutral is not None:
            # Thousands of vectors are seconds of formatting; streams of others go on meanwhile.
            answer["embeddings"] = await asyncio.to_thread(
                encode_vectors, result, len(neutral.inputs), dimensions=body.dimensions
            )
        answer["total_duration"] = round((time.monotonic() - began) * _NANO)
        answer["load_duration"] = round(loaded * _NANO)
        if result is not None and (tokens := sum(result.prompt_tokens)):
            answer["prompt_eval_count"] = tokens
        return json_bytes_response(await asyncio.to_thread(encode_json, answer))

    @blueprint.post("/api/embeddings")
    async def embeddings() -> Response:
        body = await read_body(EmbeddingsBody)
        name = parse_name(body.model)
        result, _ = await run(body, name, decode_embeddings(body, request_id=new_id()))
        return json_response({"embedding": encode_vectors(result, 1)[0] if result is not None else []})


def _name(text: str) -> ModelName:
    """The name; an empty one is a model that does not exist, on this route."""
    if not text.strip():
        raise ModelNotFoundError(text)
    return parse_name(text)


@contextlib.contextmanager
def _in_words_of_ollama(name: ModelName) -> Iterator[None]:
    try:
        yield
    except ModelNotFoundError as error:
        raise ModelNotFoundError(name.text, message=f'model "{name.text}" not found, try pulling it first') from error
    except ContextLengthExceededError as error:
        raise InvalidRequestError("the input length exceeds the context length", param="input") from error
    except WrongModelTypeError as error:
        raise UnsupportedError("embed", param="model", message=f'"{name.text}" does not support embeddings') from error
