"""`POST /v1/chat/completions`."""

import contextlib
from dataclasses import replace

from quart import Blueprint, Response

from cardcage_dialect_openai.decode import decode_chat, think_if_able
from cardcage_dialect_openai.encode import ChatAnswer, ChatChunks
from cardcage_dialect_openai.routes.generation import (
    Encoder,
    answer_head,
    can_think,
    new_id,
    run_requests,
    stream_response,
    wanted_model,
)
from cardcage_dialect_openai.routes.replies import json_response, read_body
from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.wire.chat import ChatCompletionRequest
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.errors import EngineFailedError
from cardcage_sdk.service import Service

__all__ = ["add_chat_routes"]


def add_chat_routes(blueprint: Blueprint, service: Service, settings: Settings) -> None:
    """Add the route."""

    @blueprint.post("/v1/chat/completions")
    async def create_chat_completion() -> Response:
        body = await read_body(ChatCompletionRequest)
        neutral = decode_chat(body, request_id=new_id("chatcmpl"), settings=settings)
        model_id = await wanted_model(service, settings, body.model)
        neutral = replace(think_if_able(neutral, can_think=can_think(service, model_id)), model=model_id)
        if not body.stream:
            return await _whole(service, settings, neutral, name=body.model)

        def make_encoder() -> Encoder:
            chunks = ChatChunks(
                head=answer_head(service, model_id, answer_id=neutral.id, name=body.model),
                settings=settings,
                choices=neutral.n,
                logprobs=neutral.logprobs is not None,
                include_usage=body.stream_options.include_usage if body.stream_options else None,
            )
            return Encoder(lambda _, event: chunks.feed(event), chunks.end)

        return await stream_response(run_requests(service, [neutral]), make_encoder, ping_seconds=settings.ping_seconds)


async def _whole(service: Service, settings: Settings, neutral: ChatRequest, *, name: str) -> Response:
    answer: ChatAnswer | None = None
    async with contextlib.aclosing(service.chat(neutral)) as events:
        async for event in events:
            answer = answer or ChatAnswer(
                head=answer_head(service, neutral.model, answer_id=neutral.id, name=name),
                settings=settings,
                choices=neutral.n,
                logprobs=neutral.logprobs is not None,
            )
            answer.feed(event)
    if answer is None:
        raise EngineFailedError("The engine ended without an answer")
    return json_response(answer.encode())
