"""What is asked of the server itself, and what only Ollama's hosted service has."""

from quart import Blueprint, Response, request

from cardcage_dialect_ollama.routes.replies import error_response, json_response
from cardcage_dialect_ollama.settings import Settings

__all__ = ["add_server_routes"]

_NO_CLOUD = "ollama cloud is disabled: {} is unavailable"


def add_server_routes(blueprint: Blueprint, settings: Settings) -> None:
    """Add all of them."""

    @blueprint.get("/")
    async def alive() -> Response:
        return Response(b"Ollama is running", content_type="text/plain; charset=utf-8")

    @blueprint.get("/api/version")
    async def version() -> Response:
        return json_response({"version": settings.version})

    @blueprint.get("/api/status")
    async def status() -> Response:
        return json_response({"cloud": {"disabled": True, "source": "config"}})

    @blueprint.get("/api/experimental/model-recommendations")
    async def recommendations() -> Response:
        return json_response({"recommendations": []})

    @blueprint.post("/api/me")
    async def me() -> Response:
        await request.get_data()  # an answer to a body that was never read ends the connection
        return error_response("unauthorized: this server has no accounts", status=401)

    @blueprint.post("/api/signout")
    async def sign_out() -> Response:
        await request.get_data()  # an answer to a body that was never read ends the connection
        return error_response("unauthorized: this server has no accounts", status=401)

    @blueprint.delete("/api/user/keys/<key>")
    async def forget_key(key: str) -> Response:
        await request.get_data()  # an answer to a body that was never read ends the connection
        del key
        return error_response("unauthorized: this server has no accounts", status=401)

    @blueprint.post("/api/experimental/web_search")
    async def web_search() -> Response:
        await request.get_data()  # an answer to a body that was never read ends the connection
        return error_response(_NO_CLOUD.format("web search"), status=403)

    @blueprint.post("/api/experimental/web_fetch")
    async def web_fetch() -> Response:
        await request.get_data()  # an answer to a body that was never read ends the connection
        return error_response(_NO_CLOUD.format("web fetch"), status=403)
