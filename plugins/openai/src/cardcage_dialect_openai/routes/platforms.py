"""`GET /v1/platforms` and `GET /health`."""

from quart import Blueprint, Response

from cardcage_dialect_openai.encode import encode_platforms
from cardcage_dialect_openai.routes.replies import json_response
from cardcage_sdk.service import Service

__all__ = ["add_platform_routes"]


def add_platform_routes(blueprint: Blueprint, service: Service) -> None:
    """Add both routes."""

    @blueprint.get("/v1/platforms")
    async def list_platforms() -> Response:
        return json_response(encode_platforms(await service.platforms()))

    @blueprint.get("/health")
    async def health() -> Response:
        """Say that the server runs, and no more: no model need be loaded."""
        return Response("ok", content_type="text/plain; charset=utf-8")
