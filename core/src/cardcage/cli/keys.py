"""`cardcage key`: make, list and revoke API keys, in the database itself, whether a server runs or not."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cardcage.access import KeyRecord, KeyRing
    from cardcage.config import Config

__all__ = ["app", "parse_expiry"]

app = typer.Typer(help="Make, list and revoke API keys; works with and without a running server.", no_args_is_help=True)

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file.", show_default=False)]
DataDirOption = Annotated[Path | None, typer.Option(help="Data directory of the server.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

_DURATION = re.compile(r"([1-9][0-9]{0,5})([mhdw])")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for; shown in logs and lists.")],
    *,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="What it may do: models:read, models:manage, inference, responses:read, tasks:manage, or all; may be "
            "repeated.",
            show_default="models:read, inference, responses:read",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="30m, 12h, 90d, 4w, or a date or time as 2027-01-31.", show_default="never")
    ] = None,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it: the only time that it is shown."""
    from cardcage.access.keys import DEFAULT_SCOPES
    from cardcage.cli.output import note, print_json
    from cardcage_sdk.dialect import Scope

    scopes = DEFAULT_SCOPES
    if scope:
        known = {item.value: item for item in Scope}
        for word in scope:
            if word not in known and word != "all":
                raise typer.BadParameter(f"'{word}' is none of {', '.join([*known, 'all'])}", param_hint="--scope")
        scopes = frozenset(known.values()) if "all" in scope else frozenset(known[word] for word in scope)
    try:
        expires_at = parse_expiry(expires, now=time.time()) if expires else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--expires") from error
    loaded = _config(config, data_dir)
    ring = _ring(loaded)
    is_first = not ring.any_made_now()
    made = ring.create_now(name, scopes=scopes, expires_at=expires_at)
    if as_json:
        print_json({"key": made.text, **_values(made.record)})
        return
    typer.echo(made.text)
    note("This is the only time that the key is shown. Clients send it as 'Authorization: Bearer KEY'.")
    if is_first and loaded.security.require_keys is None:
        note("It is the first one: from now on every request needs a key.")


@app.command("list")
def list_keys(*, config: ConfigOption = None, data_dir: DataDirOption = None, as_json: JsonOption = False) -> None:
    """List all keys ever made, without their secrets."""
    from cardcage.cli.output import print_json, print_table

    records = _ring(_config(config, data_dir)).list_now()
    if as_json:
        print_json([_values(record) for record in records])
        return
    now = time.time()
    print_table(
        ("NAME", "ID", "STATE", "SCOPES", "CREATED", "EXPIRES"),
        [
            (
                record.name,
                record.id,
                record.state(now),
                ", ".join(sorted(record.scopes)),
                _time(record.created_at) or "",
                _time(record.expires_at) or "never",
            )
            for record in records
        ],
        empty="No key was ever made, so access is open unless [security] require_keys says otherwise.",
    )


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The key's name, or its id.")],
    *,
    config: ConfigOption = None,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a key; a running server refuses it from the next request on."""
    from cardcage.cli.output import note, print_json

    ring = _ring(_config(config, data_dir))
    revoked = ring.revoke_now(name)
    if as_json:
        print_json(_values(revoked))
    else:
        typer.echo(f"Revoked '{revoked.name}' ({revoked.id})")
    now = time.time()
    if not any(record.state(now) == "active" for record in ring.list_now()):
        note(
            "No key works any more, and access stays closed: make another one, or set [security] require_keys = false."
        )


def parse_expiry(text: str, *, now: float) -> float:
    """A time in the future, as Unix time in seconds.

    Args:
        text: A duration (`30m`, `12h`, `90d`, `4w`), or a date or time of ISO 8601; without a zone it is UTC. A date ends
            with the beginning of its day.
        now: Unix time in seconds.

    Raises:
        ValueError: It is neither, or has passed.
    """
    duration = _DURATION.fullmatch(text)
    if duration is not None:
        return now + int(duration[1]) * UNITS[duration[2]]
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"'{text}' is neither a duration (30m, 12h, 90d, 4w) nor a date (2027-01-31)") from error
    moment = parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed
    if moment.timestamp() <= now:
        raise ValueError(f"'{text}' has passed")
    return moment.timestamp()


def _config(file: Path | None, data_dir: Path | None) -> Config:
    from cardcage.config import load_config
    from cardcage.logs import configure_logs

    configure_logs(level="warn", log_format="console")
    return load_config(file=file, overrides={"paths.data_dir": data_dir})


def _ring(config: Config) -> KeyRing:
    from cardcage.access.keys import ACCESS_SCHEMA, KeyRing
    from cardcage.store import Store

    return KeyRing(Store(config.data_dir, (ACCESS_SCHEMA,)))


def _values(record: KeyRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "name": record.name,
        "state": record.state(time.time()),
        "scopes": sorted(record.scopes),
        "created_at": _time(record.created_at),
        "expires_at": _time(record.expires_at),
        "revoked_at": _time(record.revoked_at),
    }


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
