"""`POST /v1/completions`."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from quart import Blueprint, Response

from cardcage_dialect_openai.completions import CompletionAnswer, CompletionChunks
from cardcage_dialect_openai.decode import decode_completion
from cardcage_dialect_openai.encode import AnswerHead
from cardcage_dialect_openai.routes.generation import (
    Encoder,
    answer_head,
    new_id,
    run_requests,
    stream_response,
    wanted_model,
)
from cardcage_dialect_openai.routes.replies import json_response, read_body
from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.wire.completions import CompletionRequest
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.errors import EngineFailedError
from cardcage_sdk.service import Service

__all__ = ["add_completion_routes"]


def add_completion_routes(blueprint: Blueprint, service: Service, settings: Settings) -> None:
    """Add the route."""

    @blueprint.post("/v1/completions")
    async def create_completion() -> Response:
        body = await read_body(CompletionRequest)
        answer_id = new_id("cmpl")
        decoded = decode_completion(body, request_id=answer_id)
        model_id = await wanted_model(service, settings, body.model)
        requests = [replace(request, model=model_id) for request in decoded]
        echo = bool(body.echo)

        def make_head() -> AnswerHead:
            return answer_head(service, model_id, answer_id=answer_id, name=body.model)

        if not body.stream:
            return await _whole(service, requests, make_head, echo=echo)

        def make_encoder() -> Encoder:
            chunks = CompletionChunks(
                head=make_head(),
                requests=requests,
                echo=echo,
                include_usage=body.stream_options.include_usage if body.stream_options else None,
            )
            return Encoder(chunks.feed, chunks.end)

        return await stream_response(
            run_requests(service, requests, check_all_first=True), make_encoder, ping_seconds=settings.ping_seconds
        )


async def _whole(
    service: Service, requests: Sequence[ChatRequest], make_head: Callable[[], AnswerHead], *, echo: bool
) -> Response:
    answer: CompletionAnswer | None = None
    async with contextlib.aclosing(run_requests(service, requests)) as events:
        async for number, event in events:
            answer = answer or CompletionAnswer(head=make_head(), requests=requests, echo=echo)
            answer.feed(number, event)
    if answer is None:
        raise EngineFailedError("The engine ended without an answer")
    return json_response(answer.encode())
