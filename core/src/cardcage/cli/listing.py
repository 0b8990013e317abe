"""`load`, `unload`, `ps`, `platform`, `plugins`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cardcage.catalog import check_model_id, default_model_id
from cardcage.cli.background import connect, connect_or_start
from cardcage.cli.client import ServerClient, find_url
from cardcage.cli.exits import USAGE, CommandError
from cardcage.cli.output import note, print_json, print_table
from cardcage.cli.pulling import stored_path
from cardcage.cli.usage import find_loaded, forget_run_loads, resolve
from cardcage.plugins import PluginRegistry
from cardcage.plugins.noise import noise_on_stderr
from cardcage.plugins.probing import probe_platform

if TYPE_CHECKING:
    from pathlib import Path

    from cardcage.config import Config

__all__ = ["load", "plugins", "probe_locally", "ps", "show_platforms", "unload"]


def load(
    config: Config,
    *,
    model: str,
    model_id: str | None,
    instances: int | None,
    platform: str | None,
    options: list[str],
    url: str | None,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Load a model and keep it, or change the number of instances of one that is loaded.

    Raises:
        CommandError: With one line.
    """
    client = connect_or_start(config, url, config_file=config_file)
    artifact = resolve(config, model, platform=platform)
    loaded = find_loaded(client, model_id or model, artifact if model_id is None else None)
    if loaded is not None:
        forget_run_loads(config, client, str(loaded["id"]))
        count = int(loaded["requested_instances"])
        if instances is None or instances == count:
            result = {
                "success": True,
                "message": f"model '{loaded['id']}' is loaded already",
                "requested_instance_count": count,
                "actual_instance_count": loaded["instances"],
            }
        else:
            result = client.post(
                "/v1/models/resize",
                {"model_id": loaded["id"], "instance_count": instances},
                timeout_seconds=config.server.load_timeout_seconds,
            )
        _print_result(result, as_json=as_json)
        return
    if artifact is None and (path := stored_path(client, model)) is not None:
        artifact = resolve(config, path)
    if artifact is None:
        raise CommandError(
            f"there is no model '{model}' in the store {config.store}; 'cardcage doctor' shows what is there"
        )
    chosen = platform.partition("/")[0] if platform else None
    body: dict[str, Any] = {
        "model_id": model_id or default_model_id(artifact, platform=chosen),
        "model_path": str(artifact.path),
        "instance_count": instances or 1,
    }
    try:
        check_model_id(body["model_id"])
    except ValueError as error:
        raise CommandError(f"--id: {error}", exit_code=USAGE) from error
    if chosen:
        body["platform"] = chosen
    if options:
        body["options"] = dict(_option(text) for text in options)
    _print_result(
        client.post("/v1/models/load", body, timeout_seconds=config.server.load_timeout_seconds), as_json=as_json
    )


def unload(config: Config, *, model_id: str, url: str | None, as_json: bool) -> None:
    """Unload a model once its running requests have ended."""
    client = connect(config, url)
    loaded = find_loaded(client, model_id, None)
    result = client.post(
        "/v1/models/unload",
        {"model_id": loaded["id"] if loaded is not None else model_id},
        timeout_seconds=config.server.load_timeout_seconds,
    )
    _print_result(result, as_json=as_json)


def ps(config: Config, *, url: str | None, as_json: bool) -> None:
    """List the loaded models."""
    client = connect(config, url)
    models = client.states()
    starts = {entry.model_id: entry.instance_count for entry in config.models}
    if as_json:
        print_json({"models": [{**model, "enabled": starts.get(model["id"])} for model in models]})
        return
    rows = [
        (
            model["id"],
            model["name"],
            model["kind"],
            model["platform"],
            model["state"],
            f"{model['instances']}/{model['requested_instances']}",
            f"yes({starts[model['id']]})" if model["id"] in starts else "no",
        )
        for model in models
    ]
    columns = ("ID", "MODEL", "TYPE", "PLATFORM", "STATUS", "INSTANCES", "ENABLE")
    print_table(columns, rows, empty="no model is loaded")


def show_platforms(config: Config, *, url: str | None, as_json: bool) -> None:
    """Show the installed platforms: as the server sees them, or, where none runs, as this command does."""
    client = ServerClient(find_url(config, url))
    is_running = client.is_alive()
    found = client.platforms() if is_running else probe_locally(PluginRegistry.discover(config, strict=False))
    if as_json:
        print_json({"service": "running" if is_running else "not running", "url": client.url, "platforms": found})
        return
    rows = [
        (
            item["id"],
            str(item.get("display_name") or item["id"]),
            "yes" if item["available"] else "no",
            ", ".join(f"{chip['count']} x {chip['chip_type']}" for chip in item.get("detected_chips", [])),
            str(item.get("reason") or ""),
        )
        for item in found
    ]
    print_table(("ID", "NAME", "AVAILABLE", "CHIPS", "REASON"), rows, empty="no platform is installed")
    note(f"service: {'running' if is_running else 'not running'} ({client.url})")


def plugins(config: Config, *, as_json: bool) -> None:
    """List every installed plugin, without a server."""
    registry = PluginRegistry.discover(config, strict=False)
    if as_json:
        print_json(
            {
                "plugins": [
                    {
                        "name": record.name,
                        "kind": record.kind,
                        "distribution": record.distribution,
                        "version": record.version,
                        "state": record.state,
                        "reason": record.reason,
                    }
                    for record in registry.records
                ],
                "problems": [problem.message for problem in registry.problems],
            }
        )
        return
    rows = [
        (record.name, record.kind, record.distribution, record.version, record.state, record.reason)
        for record in registry.records
    ]
    columns = ("NAME", "KIND", "DISTRIBUTION", "VERSION", "STATE", "REASON")
    print_table(columns, rows, empty="no plugin is installed; try: pip install 'cardcage[cpu]'")
    for problem in registry.problems:
        note(f"'cardcage serve' would refuse to start: {problem.message}")


def probe_locally(registry: PluginRegistry) -> list[dict[str, Any]]:
    """The platforms of this environment, in the shape of `/v1/platforms`."""
    found: list[dict[str, Any]] = []
    for plugin in registry.platforms.values():
        with noise_on_stderr():
            report = probe_platform(plugin)
        counts: dict[str, int] = {}
        for device in report.devices:
            counts[device.chip] = counts.get(device.chip, 0) + 1
        found.append(
            {
                "id": plugin.name,
                "display_name": plugin.platform.display_name or plugin.name,
                "available": report.is_available,
                "reason": report.reason,
                "detected_chips": [{"chip_type": chip, "count": count} for chip, count in counts.items()],
                "versions": dict(report.versions),
            }
        )
    return found


def _print_result(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    requested, actual = result.get("requested_instance_count"), result.get("actual_instance_count")
    counts = f" ({actual} of {requested} instances)" if requested is not None else ""
    note(f"{result.get('message', 'done')}{counts}")


def _option(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise CommandError(f"--option: '{text}' must be NAME=VALUE", exit_code=USAGE)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
