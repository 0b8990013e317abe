"""`POST /v1/embeddings` and `POST /v1/rerank`."""

import asyncio
from dataclasses import replace

from quart import Blueprint, Response

from cardcage_dialect_openai.decode import decode_embeddings, decode_rerank
from cardcage_dialect_openai.encode import encode_embedding, encode_rerank
from cardcage_dialect_openai.routes.generation import new_id, wanted_model
from cardcage_dialect_openai.routes.replies import json_bytes_response, json_response, read_body
from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.wire.vectors import EmbeddingRequest, RerankRequestBody
from cardcage_sdk.service import Service
from cardcage_sdk.stream.jsontext import encode_json

__all__ = ["add_vector_routes"]


def add_vector_routes(blueprint: Blueprint, service: Service, settings: Settings) -> None:
    """Add both routes."""

    @blueprint.post("/v1/embeddings")
    async def create_embeddings() -> Response:
        body = await read_body(EmbeddingRequest)
        neutral = decode_embeddings(body, request_id=new_id("embd"))
        model_id = await wanted_model(service, settings, body.model)
        result = await service.embed(replace(neutral, model=model_id))
        entries = []
        for index in range(len(neutral.inputs)):
            entries.append(encode_embedding(result, index, body.encoding_format or "float"))
            if index % 16 == 15:
                await asyncio.sleep(0)  # 2,048 vectors are a second of formatting; streams of others go on meanwhile
        tokens = sum(result.prompt_tokens)
        tail = encode_json({"model": body.model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}})
        return json_bytes_response(b'{"object":"list","data":[' + b",".join(entries) + b"]," + tail[1:])

    @blueprint.post("/v1/rerank")
    async def rerank() -> Response:
        body = await read_body(RerankRequestBody)
        neutral = decode_rerank(body, request_id=new_id("rerank"))
        model_id = await wanted_model(service, settings, body.model)
        result = await service.rerank(replace(neutral, model=model_id))
        return json_response(
            encode_rerank(
                result,
                request_id=neutral.id,
                model=body.model,
                documents=neutral.documents,
                top_n=body.top_n,
                return_documents=bool(body.return_documents),
            )
        )
