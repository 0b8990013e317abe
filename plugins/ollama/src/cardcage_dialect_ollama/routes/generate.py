"""`POST /api/generate`."""

from dataclasses import replace

from quart import Blueprint, Response

from cardcage_dialect_ollama.decode import check_flags, decode_generate
from cardcage_dialect_ollama.names import ModelName, parse_name
from cardcage_dialect_ollama.options import decode_options
from cardcage_dialect_ollama.routes.replies import read_body
from cardcage_dialect_ollama.routes.running import Errand, answer, load_only, new_id, only_loads, unload
from cardcage_dialect_ollama.settings import Settings
from cardcage_dialect_ollama.templates import compile_template
from cardcage_dialect_ollama.wire.generation import GenerateBody
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.errors import ModelNotFoundError
from cardcage_sdk.service import ModelStatus, Service

__all__ = ["add_generate_route"]


def add_generate_route(blueprint: Blueprint, service: Service, settings: Settings) -> None:
    """Add the route."""

    @blueprint.post("/api/generate")
    async def generate() -> Response:
        body = await read_body(GenerateBody)
        check_flags(body)
        name = _name(body.model)
        options = decode_options(body.options, settings=settings)
        errand = Errand.of("generate", body, name, options, settings)
        match only_loads(body, is_empty=not body.prompt and not body.suffix):
            case "unload":
                return await unload(service, errand)
            case "load":
                return await load_only(service, errand)
            case _:
                request = decode_generate(body, request_id=new_id(), options=options, settings=settings)
                template = compile_template(body.template) if body.template else None

                def render(whole: ChatRequest, status: ModelStatus) -> ChatRequest:
                    del status
                    if template is None:
                        return whole
                    return replace(whole, prompt=template.render(whole), messages=(), enable_thinking=None)

                return await answer(
                    service, errand, request, body=body, exchange=request.messages or None, render=render
                )


def _name(text: str) -> ModelName:
    """The name; an empty one is a model that does not exist, on this route."""
    if not text.strip():
        raise ModelNotFoundError(text)
    return parse_name(text)
