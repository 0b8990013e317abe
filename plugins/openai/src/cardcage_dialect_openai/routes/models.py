"""`GET /v1/models`, `GET /v1/models/{id}`, and LlamaPi's load, resize and unload."""

from quart import Blueprint, Response

from cardcage_dialect_openai.decode import check_instance_count, decode_load
from cardcage_dialect_openai.encode import encode_load, encode_model, encode_models, encode_resize, encode_unload
from cardcage_dialect_openai.routes.replies import json_response, read_body
from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.wire.management import LoadModelRequest, ResizeModelRequest, UnloadModelRequest
from cardcage_sdk.service import Service

__all__ = ["add_model_routes"]


def add_model_routes(blueprint: Blueprint, service: Service, settings: Settings) -> None:
    """Add all five routes."""

    @blueprint.get("/v1/models")
    async def list_models() -> Response:
        return json_response(encode_models(service.models(), settings))

    # `path`, because an id may hold slashes, which arrive here decoded.
    @blueprint.get("/v1/models/<path:model_id>")
    async def retrieve_model(model_id: str) -> Response:
        return json_response(encode_model(service.model(model_id), settings))

    @blueprint.post("/v1/models/load")
    async def load_model() -> Response:
        body = await read_body(LoadModelRequest)
        return json_response(encode_load(await service.load(decode_load(body))))

    @blueprint.post("/v1/models/resize")
    async def resize_model() -> Response:
        body = await read_body(ResizeModelRequest)
        check_instance_count(body.instance_count)
        return json_response(encode_resize(await service.resize(body.model_id, body.instance_count)))

    @blueprint.post("/v1/models/unload")
    async def unload_model() -> Response:
        body = await read_body(UnloadModelRequest)
        await service.unload(body.model_id, force=bool(body.force))
        return json_response(encode_unload(body.model_id))
