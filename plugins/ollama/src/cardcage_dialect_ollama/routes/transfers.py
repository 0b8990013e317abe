"""`POST /api/pull`, and `POST /api/push`, which is refused."""

from collections.abc import AsyncGenerator

from quart import Blueprint, Response

from cardcage_dialect_ollama.encode_progress import PullLines
from cardcage_dialect_ollama.names import parse_name
from cardcage_dialect_ollama.routes.replies import Lines, error_response, json_response, read_body, stream_lines
from cardcage_dialect_ollama.wire.models import TransferBody
from cardcage_sdk.errors import CardcageError, InternalError, UnsupportedError
from cardcage_sdk.library import PullProgress, PullRequest
from cardcage_sdk.service import Service
from cardcage_sdk.stream.pump import EventPump, Marker

__all__ = ["add_transfer_routes", "pull_lines"]


def add_transfer_routes(blueprint: Blueprint, service: Service) -> None:
    """Add both routes."""

    @blueprint.post("/api/pull")
    async def pull() -> Response:
        body = await read_body(TransferBody)
        name = parse_name(body.wanted, when_empty="invalid model name")
        _check_insecure(body)
        pump = EventPump(_states(service, name.to_pull))
        if body.stream:
            return await stream_lines(pull_lines(pump), pump.aclose)
        try:
            async for line in pull_lines(pump):
                if "error" in line:
                    return error_response(line["error"], status=500)
        finally:
            await pump.aclose()
        return json_response({"status": "success"})

    @blueprint.post("/api/push")
    async def push() -> Response:
        body = await read_body(TransferBody)
        parse_name(body.wanted)
        return error_response("push is not supported: this server fetches models, and publishes none", status=501)


def _check_insecure(body: TransferBody) -> None:
    if body.insecure:
        raise UnsupportedError(
            "insecure", message="insecure is not supported: only a registry on this machine is asked without encryption"
        )


async def _states(service: Service, model: str) -> AsyncGenerator[PullProgress, None]:
    async for state in service.library.pull(PullRequest(model=model)):
        yield state


async def pull_lines(pump: EventPump[PullProgress], *, is_last: bool = True) -> Lines:
    """The lines of a pull; one that fails ends with the line that says so.

    Args:
        pump: Its states.
        is_last: Success is told; otherwise something follows it.
    """
    lines = PullLines()
    yield lines.begin()
    try:
        while not isinstance(state := await pump.next(), Marker):
            for line in lines.feed(state):
                if is_last or line != {"status": "success"}:
                    yield line
    except CardcageError as error:
        yield lines.failure(error)
    else:
        if not lines.has_ended:
            yield lines.failure(InternalError())
