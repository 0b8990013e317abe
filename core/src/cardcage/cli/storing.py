"""`list` and `rm`: the models of the store, through the server where one runs, else directly."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from cardcage.catalog import Catalog
from cardcage.cli.background import connect
from cardcage.cli.choosing import can_ask
from cardcage.cli.client import ServerClient, available_path, find_url
from cardcage.cli.exits import CommandError
from cardcage.cli.output import note, print_json, print_table
from cardcage.cli.pulling import gigabytes

if TYPE_CHECKING:
    from cardcage.config import Config
    from cardcage.downloads import Downloads

__all__ = ["list_models", "remove"]

COLUMNS = ("MODEL", "TYPE", "PLATFORM", "SIZE", "LOCAL")


def list_models(
    config: Config, *, model: str | None, online: bool, everything: bool, url: str | None, as_json: bool
) -> None:
    """List the models of the store, those that the sources offer, or both; with a name, its variants.

    Raises:
        CommandError: With one line.
    """
    if model is not None:
        _list_variants(connect(config, url), model, as_json=as_json)
        return
    stored = _stored(config, url) if everything or not online else []
    offered: dict[str, Any] = {"data": [], "errors": []}
    if online or everything:
        offered = connect(config, url).offers()
        stored_names = {item["name"] for item in (stored or _stored(config, url))}
        offered["data"] = [{**item, "local": item["name"] in stored_names} for item in offered["data"]]
    if as_json:
        print_json({"models": stored, "offers": offered["data"], "errors": offered["errors"]})
        return
    rows = [_stored_row(item) for item in stored]
    rows += [_offer_row(item) for item in offered["data"] if not (everything and item["local"])]
    print_table(COLUMNS, rows, empty=f"the store {config.store} holds no models; 'cardcage pull NAME' gets one")
    for item in stored:
        if item["problem"]:
            note(f"{item['model_path']}: {item['problem']}")
    for error in offered["errors"]:
        note(str(error["message"]))


def _stored_row(item: dict[str, Any]) -> tuple[str, ...]:
    state = "broken" if item["problem"] else "yes"
    return (item["name"], item["model_kind"] or "-", _place(item), gigabytes(item["size_bytes"]), state)


def _offer_row(item: dict[str, Any]) -> tuple[str, ...]:
    local = "yes" if item["local"] else "no"
    return (item["reference"], item["model_kind"] or "-", _place(item), gigabytes(item["size_bytes"]), local)


def _place(item: dict[str, Any]) -> str:
    return "/".join(part for part in (item["platform"], *item["chips"][:1]) if part) or "-"


def _list_variants(client: ServerClient, model: str, *, as_json: bool) -> None:
    variants = client.post("/v1/models/variants", {"model": model}, timeout_seconds=240.0)["data"]
    if as_json:
        print_json({"variants": variants})
        return
    rows = [
        (
            f"{item['reference']}:{item['label']}" if item["label"] else item["reference"],
            item["name"],
            ", ".join(item["platforms"]) or "-",
            gigabytes(item["size_bytes"]),
            item["reason"],
        )
        for item in variants
    ]
    print_table(("VARIANT", "MODEL", "FITS", "SIZE", "WHY NOT"), rows)


def remove(config: Config, *, model: str, is_sure: bool, url: str | None, as_json: bool) -> None:
    """Delete a model, and what an unfinished pull of it left.

    Raises:
        CommandError: There is neither, it is loaded, or the person at the terminal said no.
    """
    client = _running(config, url)
    _confirm(config, client, model, is_sure=is_sure)
    if client is not None:
        answer = client.delete(available_path(model))
    else:
        removed = asyncio.run(_local(config).remove(model))
        what = f"model '{removed.id}' removed" if removed else f"unfinished files of '{model}' removed"
        answer = {"success": True, "message": what, "removed": _as_object(removed) if removed else None}
    if as_json:
        print_json(answer)
    else:
        sys.stdout.write(f"{answer['message']}\n")
    gone = (answer["removed"] or {}).get("model_path")
    for entry in config.models:
        if entry.model_path == gone:
            note(
                f"the server still loads '{entry.model_id}' at its start; 'cardcage disable {entry.model_id}' ends that"
            )


def _confirm(config: Config, client: ServerClient | None, model: str, *, is_sure: bool) -> None:
    if is_sure or not can_ask():
        return
    try:
        found = client.find_available(model) if client is not None else _as_object(_local(config).find(model))
    except CommandError:
        return  # unfinished files only, or nothing: the removal itself says so
    sys.stderr.write(f"Delete {found['id']} ({gigabytes(found['size_bytes'])})? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandError("nothing was deleted")


def _running(config: Config, url: str | None) -> ServerClient | None:
    """The server, or None where none runs and none was named."""
    if url:
        return connect(config, url)
    client = ServerClient(find_url(config))
    if client.is_alive():
        return client
    client.close()
    return None


def _stored(config: Config, url: str | None) -> list[dict[str, Any]]:
    client = _running(config, url)
    if client is not None:
        return client.available()
    return [_as_object(model) for model in _local(config).stored()]


def _local(config: Config) -> Downloads:
    """The store without a server; it can look and delete, not fetch."""
    from cardcage.downloads import Downloads

    return Downloads(catalog=Catalog(config.store), platforms={}, sources={}, allows_path=lambda _path: False)


def _as_object(model: Any) -> dict[str, Any]:
    return {
        "id": model.id,
        "name": model.name,
        "model_path": model.path,
        "size_bytes": model.size_bytes,
        "model_kind": model.kind,
        "platform": model.platform,
        "chips": list(model.chips),
        "license": model.license,
        "source": model.source,
        "problem": model.problem,
    }
