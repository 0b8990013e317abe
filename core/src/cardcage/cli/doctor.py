"""`cardcage doctor`: what works here, what does not, and why. Changes nothing."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from cardcage.access import ACCESS_SCHEMA, KeyRing
from cardcage.catalog import Catalog, default_model_id
from cardcage.cli.client import ServerClient, find_url
from cardcage.cli.exits import FAILED, CommandError
from cardcage.cli.listing import probe_locally
from cardcage.cli.output import print_json, print_table, stdout_console
from cardcage.loadable import model_problems, option_problems
from cardcage.lock import read_holder
from cardcage.plugins import PluginRegistry
from cardcage.store import Store
from cardcage_sdk.errors import CardcageError

if TYPE_CHECKING:
    from cardcage.config import Config, ListenEntry

__all__ = ["Finding", "doctor", "examine"]

Grade: TypeAlias = Literal["ok", "warning", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        grade: `fault` is what keeps a server from starting or from serving anything.
    """

    topic: str
    subject: str
    grade: Grade
    detail: str


def doctor(config: Config, *, url: str | None, as_json: bool) -> None:
    """Print the findings.

    Raises:
        CommandError: There is a fault.
    """
    findings = examine(config, url)
    values = effective_values(config)
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings], "configuration": values})
    else:
        rows = [(finding.topic, finding.subject, finding.grade, finding.detail) for finding in findings]
        print_table(("TOPIC", "SUBJECT", "RESULT", "DETAIL"), rows)
        stdout_console().print("")
        settings = [(key, str(item["value"]), item["source"]) for key, item in values.items()]
        print_table(("SETTING", "VALUE", "FROM"), settings)
    faults = [finding for finding in findings if finding.grade == "fault"]
    if faults:
        raise CommandError(f"{len(faults)} fault(s) found; the first: {faults[0].detail}", exit_code=FAILED)


def examine(config: Config, url: str | None = None) -> list[Finding]:
    """Look at everything; nothing is started, loaded or written."""
    registry = PluginRegistry.discover(config, strict=False)
    return [
        *_configuration(config, registry),
        *_access(config),
        *_server(config, url),
        *_plugins(registry),
        *_platforms(registry),
        *_store(config),
    ]


def effective_values(config: Config) -> dict[str, dict[str, Any]]:
    """Each setting with its value and where that came from."""
    tables = {
        "server": config.server.model_dump(),
        "scheduling": config.scheduling.model_dump(),
        "plugins": config.plugins.model_dump(),
        "security": config.security.model_dump(),
        "paths": {"store": str(config.store), "data_dir": str(config.data_dir)},
        "platforms": config.platform_options,
        "dialects": config.dialect_settings,
    }
    values: dict[str, dict[str, Any]] = {}
    for key, source in config.sources.items():
        value: Any = tables
        for part in key.split("."):
            value = value.get(part) if hasattr(value, "get") else None
        if isinstance(value, tuple):
            value = [str(item) for item in value]
        values[key] = {"value": value, "source": source}
    return values


def _configuration(config: Config, registry: PluginRegistry) -> list[Finding]:
    """The file, and what it says that no load would get on with."""
    file = str(config.file) if config.file else "no file; built-in values hold"
    findings = [Finding(topic="configuration", subject="file", grade="ok", detail=file)]
    findings += [
        Finding(topic="configuration", subject="options", grade="fault", detail=problem)
        for problem in option_problems(config, registry)
    ]
    findings += [
        Finding(topic="configuration", subject=f"model {model_id}", grade="warning", detail=problem)
        for model_id, problem in model_problems(config, registry)
    ]
    findings += [
        Finding(
            topic="configuration",
            subject="platform_order",
            grade="warning",
            detail=f"platform '{name}' is not loaded",
        )
        for name in config.platform_order
        if name not in registry.platforms
    ]
    return findings


def _access(config: Config) -> list[Finding]:
    """Who may call: the keys, and the sockets that let everybody in."""
    store = Store(config.data_dir, (ACCESS_SCHEMA,))
    try:
        records = KeyRing(store).list_now()
    except CardcageError as error:
        return [Finding(topic="access", subject="keys", grade="fault", detail=error.message)]
    finally:
        store.close()
    now = time.time()
    working = sum(record.state(now) == "active" for record in records)
    is_required = bool(records) if config.security.require_keys is None else config.security.require_keys
    rule = "every request needs one" if is_required else "requests need none"
    findings = [
        Finding(
            topic="access",
            subject="keys",
            grade="warning" if is_required and not working else "ok",
            detail=f"{working} of {len(records)} work; {rule}",
        )
    ]
    findings += [
        Finding(
            topic="access",
            subject=entry.label,
            grade="warning",
            detail="reaches beyond this machine without requiring a key",
        )
        for entry in config.listeners
        if not entry.is_local and not (is_required if entry.require_keys is None else entry.require_keys)
    ]
    return findings


def _server(config: Config, url: str | None) -> list[Finding]:
    findings: list[Finding] = []
    holder = read_holder(config.data_dir)
    if holder is not None:
        detail = f"process {holder.pid} serves {holder.url or '(no address of its own)'}"
        findings.append(Finding(topic="server", subject="lock", grade="ok", detail=detail))
    else:
        writable = _is_writable(config)
        findings.append(
            Finding(
                topic="server",
                subject="data directory",
                grade="ok" if writable else "fault",
                detail=f"{config.data_dir} is {'free' if writable else 'not writable for this user'}",
            )
        )
    client = ServerClient(find_url(config, url))
    if client.is_alive():
        readiness = client.readiness()
        reasons = "; ".join(readiness["reasons"])
        findings.append(
            Finding(
                topic="server",
                subject="service",
                grade="ok" if readiness["ready"] else "warning",
                detail=f"running at {client.url}, {'ready' if readiness['ready'] else f'not ready: {reasons}'}",
            )
        )
    else:
        findings.append(Finding(topic="server", subject="service", grade="ok", detail="not running"))
        if holder is None:
            findings += [_port(entry) for entry in config.listeners if entry.unix is None]
    return findings


def _port(entry: ListenEntry) -> Finding:
    """Whether the port could be bound; it is bound for an instant and released."""
    from cardcage.serve import bind_socket
    from cardcage_sdk.errors import ConfigError

    try:
        bound: socket.socket = bind_socket(entry.address, entry.port)
    except ConfigError as error:
        grade: Grade = "warning" if entry.optional else "fault"
        return Finding(topic="server", subject=entry.label, grade=grade, detail=error.message)
    bound.close()
    return Finding(topic="server", subject=entry.label, grade="ok", detail="free")


def _is_writable(config: Config) -> bool:
    place = config.data_dir
    while not place.exists() and place != place.parent:
        place = place.parent
    return os.access(place, os.W_OK | os.X_OK)


def _plugins(registry: PluginRegistry) -> list[Finding]:
    findings = [
        Finding(
            topic="plugin",
            subject=f"{record.kind} {record.name}",
            grade="ok" if record.state in {"loaded", "disabled"} else "warning",
            detail=f"{record.distribution} {record.version}".strip() + (f": {record.reason}" if record.reason else ""),
        )
        for record in registry.records
    ]
    findings += [
        Finding(topic="plugin", subject=problem.plugin, grade="fault", detail=problem.message)
        for problem in registry.problems
    ]
    if not registry.dialects:
        findings.append(
            Finding(
                topic="plugin", subject="dialects", grade="fault", detail="no dialect is loaded, so a server has no API"
            )
        )
    return findings


def _platforms(registry: PluginRegistry) -> list[Finding]:
    probed = probe_locally(registry)
    findings = []
    for item in probed:
        versions = ", ".join(f"{name} {version}" for name, version in item["versions"].items())
        chips = ", ".join(f"{chip['count']} x {chip['chip_type']}" for chip in item["detected_chips"])
        detail = "; ".join(part for part in (item["reason"], chips, versions) if part)
        grade: Grade = "ok" if item["available"] else "warning"
        findings.append(Finding(topic="platform", subject=item["id"], grade=grade, detail=detail or "available"))
    if not any(item["available"] for item in probed):
        detail = "no platform is available here, so no model can be loaded" if probed else "no platform is installed"
        findings.append(Finding(topic="platform", subject="platforms", grade="fault", detail=detail))
    return findings


def _store(config: Config) -> list[Finding]:
    if not config.store.is_dir():
        return [Finding(topic="store", subject=str(config.store), grade="warning", detail="does not exist yet")]
    artifacts, problems = Catalog(config.store).scan()
    names = ", ".join(default_model_id(artifact) for artifact in artifacts) or "no models"
    findings = [Finding(topic="store", subject=str(config.store), grade="ok", detail=names)]
    findings += [
        Finding(topic="store", subject=problem.path.name, grade="warning", detail=problem.reason)
        for problem in problems
    ]
    return findings
