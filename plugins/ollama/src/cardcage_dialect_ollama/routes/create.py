"""`POST /api/create`: a model from another one, or from uploaded files."""

from quart import Blueprint, Response

from cardcage_dialect_ollama.decode_create import decode_create
from cardcage_dialect_ollama.names import parse_name
from cardcage_dialect_ollama.routes.replies import Lines, error_response, json_response, read_body, stream_lines
from cardcage_dialect_ollama.routes.transfers import pull_lines
from cardcage_dialect_ollama.settings import Settings
from cardcage_dialect_ollama.wire.models import CreateBody
from cardcage_sdk.errors import ModelNotFoundError
from cardcage_sdk.library import CreateRequest, PullRequest
from cardcage_sdk.service import Service
from cardcage_sdk.stream.pump import EventPump

__all__ = ["add_create_routes"]


def add_create_routes(blueprint: Blueprint, service: Service, settings: Settings) -> None:
    """Add the route."""

    @blueprint.post("/api/create")
    async def create() -> Response:
        body = await read_body(CreateBody)
        request = decode_create(body, settings=settings)
        lines = _lines(service, request)
        if body.stream:
            return await stream_lines(lines)
        async for line in lines:
            if "error" in line:
                return error_response(line["error"], status=500)
        return json_response({"status": "success"})


async def _lines(service: Service, request: CreateRequest) -> Lines:
    if request.base is not None and not _is_there(service, request.base):
        pump = EventPump(service.library.pull(PullRequest(model=parse_name(request.base).to_pull)))
        try:
            async for line in pull_lines(pump, is_last=False):
                yield line
                if "error" in line:
                    return
        finally:
            await pump.aclose()
    if request.files:
        yield {"status": "parsing model files"}
    made = await service.library.create(request)
    # Whoever has the older state of this name loaded would go on with it.
    await service.let_go(made.id)
    for file in made.files:
        yield {"status": f"using existing layer sha256:{file.sha256}"}
    yield {"status": f"creating new layer sha256:{made.digest}"}
    yield {"status": "writing manifest"}
    yield {"status": "success"}


def _is_there(service: Service, name: str) -> bool:
    try:
        service.library.find(name)
    except ModelNotFoundError:
        return False
    return True
