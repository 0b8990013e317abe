"""Models on disk: list, pull with progress, remove. Extensions; LlamaPi's server has none of them, its command line does.

A pull belongs to the server: a client that leaves its stream stops nothing, and several clients that pull one model follow
the same download. A stream's first byte is sent when the source has answered, so that an unknown model has its status.
"""

from collections.abc import AsyncGenerator

from quart import Blueprint, Response

from cardcage_dialect_openai.encode_library import (
    encode_list,
    encode_listed_pull,
    encode_offers,
    encode_pull,
    encode_removed,
    encode_stored,
    encode_variant,
)
from cardcage_dialect_openai.routes.replies import json_response, read_body
from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.sse import DONE, encode_error_event
from cardcage_dialect_openai.streaming import SILENCE, EventPump, Marker, OwnedBody
from cardcage_dialect_openai.wire.library import PullModelRequest
from cardcage_sdk.errors import InternalError
from cardcage_sdk.library import PullProgress, PullRequest
from cardcage_sdk.service import Service
from cardcage_sdk.stream.sse import HEADERS, PING, encode_json_event

__all__ = ["add_library_routes"]


def add_library_routes(blueprint: Blueprint, service: Service, settings: Settings) -> None:
    """Add all of them."""

    @blueprint.get("/v1/models/available")
    async def list_stored() -> Response:
        return json_response(encode_list([encode_stored(model) for model in service.library.stored()]))

    @blueprint.get("/v1/models/available/<path:name>")
    async def find_stored(name: str) -> Response:
        return json_response(encode_stored(service.library.find(name)))

    @blueprint.delete("/v1/models/available/<path:name>")
    async def remove_stored(name: str) -> Response:
        return json_response(encode_removed(name, await service.library.remove(name)))

    @blueprint.get("/v1/models/offers")
    async def list_offers() -> Response:
        offers, errors = await service.library.offers()
        return json_response(encode_offers(offers, errors))

    @blueprint.post("/v1/models/variants")
    async def list_variants() -> Response:
        reports = await service.library.variants(_decode(await read_body(PullModelRequest)))
        return json_response(encode_list([encode_variant(report) for report in reports]))

    @blueprint.get("/v1/models/pulls")
    async def list_pulls() -> Response:
        return json_response(encode_list([encode_listed_pull(pull) for pull in service.library.pulls()]))

    @blueprint.delete("/v1/models/pulls/<pull_id>")
    async def cancel_pull(pull_id: str) -> Response:
        await service.library.cancel_pull(pull_id)
        return json_response({"success": True, "message": f"pull '{pull_id}' cancelled"})

    @blueprint.post("/v1/models/pull")
    async def pull_model() -> Response:
        body = await read_body(PullModelRequest)
        pump = EventPump(service.library.pull(_decode(body)))
        try:
            if body.stream:
                return await _stream(pump, ping_seconds=settings.ping_seconds)
            return json_response(encode_pull(await _last(pump)))
        except BaseException:  # also when the client leaves: then nobody reads the pump any more
            await pump.aclose()
            raise


def _decode(body: PullModelRequest) -> PullRequest:
    return PullRequest(model=body.model, source=body.source, platform=body.platform, chip=body.chip, name=body.name)


def _checked(state: PullProgress) -> PullProgress:
    """The state, unless the pull ended badly; then its error is raised."""
    if state.is_final and state.state != "done":
        raise state.error or InternalError()
    return state


async def _last(pump: EventPump[PullProgress]) -> PullProgress:
    """Follow to the end; a long download is silent for this kind of client, which asked for it."""
    last: PullProgress | None = None
    while not isinstance(item := await pump.next(), Marker):
        last = _checked(item)
    await pump.aclose()
    if last is None or not last.is_final:
        raise InternalError
    return last


async def _stream(pump: EventPump[PullProgress], *, ping_seconds: float) -> Response:
    """Wait until the source has answered, then return the response that streams the states."""
    item = await pump.next(ping_seconds)
    while isinstance(item, PullProgress) and _checked(item).state == "resolving":
        item = await pump.next(ping_seconds)
    body = OwnedBody(_events(pump, item, ping_seconds=ping_seconds), pump.aclose)
    response = Response(body, headers=dict(HEADERS))
    response.timeout = None  # Quart would cut the stream after 60 seconds
    return response


async def _events(
    pump: EventPump[PullProgress], item: PullProgress | Marker, *, ping_seconds: float
) -> AsyncGenerator[bytes, None]:
    while True:
        if item is SILENCE:
            yield PING
        elif isinstance(item, Marker):
            yield DONE
            return
        else:
            if item.is_final and item.state != "done":
                yield encode_error_event(item.error or InternalError())
                return
            yield encode_json_event(encode_pull(item))
        item = await pump.next(ping_seconds)
