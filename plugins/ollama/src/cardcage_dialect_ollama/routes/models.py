"""`/api/tags`, `/api/ps`, `/api/show`, `/api/copy`, `/api/delete`."""

from quart import Blueprint, Response, request

from cardcage_dialect_ollama.encode_models import (
    encode_loaded,
    encode_show,
    encode_stored,
    facts_of,
    shown_id,
    shown_names,
)
from cardcage_dialect_ollama.names import parse_name
from cardcage_dialect_ollama.options import decode_options
from cardcage_dialect_ollama.routes.replies import empty_response, json_response, read_body
from cardcage_dialect_ollama.settings import Settings
from cardcage_dialect_ollama.wire.models import CopyBody, NameBody, ShowBody
from cardcage_sdk.errors import CardcageError, InvalidRequestError, ModelNotFoundError
from cardcage_sdk.library import CreateRequest, ModelDescription, StoredModel
from cardcage_sdk.service import ModelStatus, Service

__all__ = ["add_model_routes"]


def add_model_routes(blueprint: Blueprint, service: Service, settings: Settings) -> None:
    """Add all of them."""

    @blueprint.get("/api/tags")
    async def tags() -> Response:
        descriptions = await service.library.descriptions()
        names = shown_names([description.model for description in descriptions])
        entries = [
            (description.model.modified_at, encode_stored(description, name=names[description.model.path]))
            for description in descriptions
        ]
        stored = {description.model.path for description in descriptions}
        # What was loaded from elsewhere can be asked for by its id, so it is listed by that.
        entries += [
            (status.loaded_at, encode_stored(_loaded_elsewhere(status), name=shown_id(status.id)))
            for status in service.models()
            if status.path not in stored and status.state == "ready"
        ]
        entries.sort(key=lambda entry: entry[0], reverse=True)
        return json_response({"models": [entry for _, entry in entries]})

    @blueprint.get("/api/ps")
    async def ps() -> Response:
        descriptions = {item.model.path: item for item in await service.library.descriptions()}
        names = shown_names([item.model for item in descriptions.values()])
        loaded = [status for status in service.models() if status.state == "ready"]
        loaded.sort(key=lambda status: status.expires_at or float("inf"), reverse=True)
        entries = []
        for status in loaded:
            name = names.get(status.path, shown_id(status.id))
            entries.append(encode_loaded(status, name=name, description=descriptions.get(status.path)))
        return json_response({"models": entries})

    @blueprint.post("/api/show")
    async def show() -> Response:
        body = await read_body(ShowBody)
        name = parse_name(body.wanted)
        options = decode_options(body.options, settings=settings)
        found = next((status for status in service.models() if status.id == name.wanted), None)
        try:
            description = await service.library.describe(name.wanted)
        except ModelNotFoundError as error:
            if found is None:
                raise ModelNotFoundError(name.text, message=error.message.replace("Model '", "model '", 1)) from error
            description = _loaded_elsewhere(found)
        path = description.model.path
        loaded = next((status for status in service.models() if status.path == path and status.state == "ready"), None)
        return json_response(
            encode_show(
                description,
                name=name.text,
                verbose=body.verbose,
                system=body.system,
                options=options,
                user_agent=request.headers.get("user-agent", ""),
                loaded=loaded,
            )
        )

    @blueprint.post("/api/copy")
    async def copy() -> Response:
        body = await read_body(CopyBody)
        source = _valid(body.source, f'source "{body.source}" is invalid')
        destination = _valid(body.destination, f'destination "{body.destination}" is invalid')
        try:
            await service.library.create(CreateRequest(name=destination, base=source))
        except ModelNotFoundError as error:
            raise ModelNotFoundError(body.source, message=f'model "{body.source}" not found') from error
        await service.let_go(destination)
        return empty_response()

    @blueprint.delete("/api/delete")
    async def delete() -> Response:
        body = await read_body(NameBody)
        wanted = _valid(body.wanted, f'name "{body.wanted}" is invalid')
        try:
            found = service.library.find(wanted)
            await service.let_go(found.id)
            await service.library.remove(wanted)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(body.wanted) from error
        return empty_response()


def _valid(text: str, refusal: str) -> str:
    try:
        return parse_name(text).wanted
    except CardcageError as error:
        raise InvalidRequestError(refusal, param="model") from error


def _loaded_elsewhere(status: ModelStatus) -> ModelDescription:
    """A loaded model whose files lie outside of the store, as far as its engine told of it."""
    model = StoredModel(
        id=status.id,
        name=status.id,
        path=status.path,
        size_bytes=status.size_bytes,
        kind=status.kind,
        platform=status.platform,
        modified_at=status.loaded_at,
    )
    return ModelDescription(
        model=model,
        facts=facts_of(status.info, None),
        capabilities=status.capabilities,
        defaults=status.defaults,
    )
