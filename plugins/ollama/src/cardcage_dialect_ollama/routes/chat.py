"""`POST /api/chat`."""

from quart import Blueprint, Response

from cardcage_dialect_ollama.decode import check_flags, decode_chat
from cardcage_dialect_ollama.names import parse_name
from cardcage_dialect_ollama.options import decode_options
from cardcage_dialect_ollama.routes.replies import read_body
from cardcage_dialect_ollama.routes.running import Errand, answer, load_only, new_id, only_loads, unload
from cardcage_dialect_ollama.settings import Settings
from cardcage_dialect_ollama.wire.generation import ChatBody
from cardcage_sdk.service import Service

__all__ = ["add_chat_route"]


def add_chat_route(blueprint: Blueprint, service: Service, settings: Settings) -> None:
    """Add the route."""

    @blueprint.post("/api/chat")
    async def chat() -> Response:
        body = await read_body(ChatBody)
        check_flags(body)
        name = parse_name(body.model)
        options = decode_options(body.options, settings=settings)
        errand = Errand.of("chat", body, name, options, settings)
        match only_loads(body, is_empty=not body.messages):
            case "unload":
                return await unload(service, errand)
            case "load":
                return await load_only(service, errand)
            case _:
                request = decode_chat(body, request_id=new_id(), options=options, settings=settings)
                return await answer(service, errand, request, body=body)
