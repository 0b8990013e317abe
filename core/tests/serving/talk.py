"""A small dialect for tests of the frame: it streams lines, and misbehaves in every way that a dialect can."""

import asyncio
import json
import uuid
from contextlib import aclosing

from quart import Blueprint, Response, abort, request

from cardcage_sdk import hookimpl
from cardcage_sdk.chat import ChatRequest, Message, Sampling, TextPart
from cardcage_sdk.dialect import Dialect, Reply
from cardcage_sdk.errors import (
    BusyError,
    CardcageError,
    ConfigError,
    ForbiddenError,
    MethodNotAllowedError,
    ModelNotFoundError,
    PayloadTooLargeError,
    RequestError,
    RequestTimeoutError,
    RouteNotFoundError,
)
from cardcage_sdk.events import TextDelta

STATUSES = (
    (ForbiddenError, 403),
    (ModelNotFoundError, 404),
    (RouteNotFoundError, 404),
    (MethodNotAllowedError, 405),
    (RequestTimeoutError, 408),
    (PayloadTooLargeError, 413),
    (RequestError, 400),
    (BusyError, 503),
)


class TalkDialect(Dialect):
    name = "talk"
    prefixes = ("/talk",)
    any_origin_paths = ("/talk/echo",)

    def blueprint(self, service, settings):
        if "bad" in settings:
            raise ConfigError("[dialects.talk] bad: is not known")
        if "broken" in settings:
            raise RuntimeError("no routes today")
        if "elsewhere" in settings:
            elsewhere = Blueprint("talk", __name__)
            elsewhere.add_url_rule("/other/place", "place", lambda: "x")
            return elsewhere
        if "nothing" in settings:
            return None
        blueprint = Blueprint("talk", __name__)

        @blueprint.post("/talk/echo")
        async def echo():
            data = await request.get_data()
            return {"bytes": len(data), "request_id": request.headers["x-request-id"]}

        @blueprint.post("/talk/linger")
        async def linger():
            await request.get_data()
            await asyncio.sleep(10)
            return "nobody left"

        @blueprint.get("/talk/fault")
        async def fault():
            raise RuntimeError("secret detail of a fault")

        @blueprint.get("/talk/abort/<int:status>")
        async def aborted(status):
            abort(status)

        @blueprint.get("/talk/unrenderable")
        async def unrenderable():
            raise ModelNotFoundError("unrenderable")

        @blueprint.post("/talk/chat/<model>")
        async def chat(model):
            text = (await request.get_data()).decode()
            message = Message(role="user", content=(TextPart(text),))
            sampling = Sampling(temperature=0.0)
            events = service.chat(ChatRequest(id=uuid.uuid4().hex, model=model, messages=(message,), sampling=sampling))
            await anext(events)
            response = Response(_lines(events), content_type="application/x-ndjson")
            response.timeout = None
            return response

        return blueprint

    def error_reply(self, error, path):
        if isinstance(error, ModelNotFoundError) and error.model == "unrenderable":
            raise TypeError("this dialect cannot render that")
        status = next((status for cls, status in STATUSES if isinstance(error, cls)), 500)
        headers = {"Retry-After": "5"} if isinstance(error, BusyError) else {}
        body = {"talk": error.code, "message": error.message}
        return Reply(status=status, body=json.dumps(body).encode(), headers=headers)


async def _lines(events):
    async with aclosing(events):
        try:
            async for event in events:
                if isinstance(event, TextDelta):
                    yield json.dumps({"text": event.text}).encode() + b"\n"
        except CardcageError as error:
            yield json.dumps({"error": error.code}).encode() + b"\n"
            return
    yield b'{"done": true}\n'


@hookimpl
def register_dialects():
    return [TalkDialect]
