"""The commands and their options; each imports what it needs when it runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cardcage.cli import keys
from cardcage.cli.exits import CONFIGURATION, FAILED, OCCUPIED, CommandError
from cardcage.cli.models import add_model_commands, complete_stored
from cardcage.cli.options import EPILOG, ConfigOption, JsonOption, PlatformOption, PluginOption, UrlOption

if TYPE_CHECKING:
    from cardcage.config import Config

__all__ = ["app", "run_command_line"]

app = typer.Typer(
    name="cardcage",
    help="A local model server whose every hardware backend and API is a plugin.",
    epilog=EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

app.add_typer(keys.app, name="key")


def run_command_line() -> None:
    """Run, and turn an error of ours into one line and its exit code."""
    from cardcage_sdk.errors import CardcageError, ConfigError, PluginError

    try:
        app()
    except CommandError as error:
        _fail(str(error), error.exit_code)
    except CardcageError as error:
        code = CONFIGURATION if isinstance(error, ConfigError | PluginError) else FAILED
        _fail(error.message, OCCUPIED if _is_occupied(error) else code)


def _is_occupied(error: Exception) -> bool:
    from cardcage.lock import DataDirInUseError, PortInUseError

    return isinstance(error, DataDirInUseError | PortInUseError)


def _fail(message: str, code: int) -> None:
    from cardcage.cli.output import shown

    sys.stdout.flush()
    sys.stderr.write(f"cardcage: error: {shown(message)}\n")
    sys.exit(code)


def _quiet_config(file: Path | None, plugin_files: list[Path] | None = None) -> Config:
    """The configuration for a command that is not the server: logs are for warnings only."""
    from cardcage.config import load_config
    from cardcage.logs import configure_logs

    configure_logs(level="warn", log_format="console")
    return load_config(file=file, overrides={"plugins.files": plugin_files or None})


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        typer.echo(f"cardcage {metadata.version('cardcage')}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """A local model server whose every hardware backend and API is a plugin."""


@app.command(epilog=EPILOG)
def serve(
    *,
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[
        int | None, typer.Option("--port", "-p", help="Port; 0 takes a free one.", show_default="9265")
    ] = None,
    log_level: Annotated[
        str | None, typer.Option(help="trace, debug, info, warn or error.", show_default="info")
    ] = None,
    log_format: Annotated[str | None, typer.Option(help="auto, console or json.", show_default="auto")] = None,
    store: Annotated[Path | None, typer.Option(help="Model store.", show_default=False)] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Lock, logs and database.", show_default=False)] = None,
    plugin: PluginOption = None,
) -> None:
    """Serve until SIGTERM or Ctrl+C."""
    from cardcage.config import load_config
    from cardcage.lock import DataDirLock
    from cardcage.logs import configure_logs

    overrides = {
        "server.host": host,
        "server.port": port,
        "server.log_level": log_level,
        "server.log_format": log_format,
        "paths.store": store,
        "paths.data_dir": data_dir,
        "plugins.files": plugin or None,
    }
    loaded = load_config(file=config, overrides=overrides)
    configure_logs(level=loaded.server.log_level, log_format=loaded.server.log_format)
    lock = DataDirLock.acquire(loaded.data_dir)
    try:
        # Only now, so that a refusal takes a moment and not a second.
        from cardcage.plugins import PluginRegistry
        from cardcage.serve import STARTUP_ERRORS, bind_listeners
        from cardcage.serve import serve as run_server

        listeners = bind_listeners(loaded.listeners)
        registry = PluginRegistry.discover(loaded)
        try:
            run_server(
                loaded,
                registry,
                lock=lock,
                listeners=listeners,
                announce=lambda url: typer.echo(f"Cardcage listens on {url}"),
            )
        except STARTUP_ERRORS as error:
            raise CommandError(f"the server could not start: {error}") from error
    finally:
        lock.release()


@app.command(epilog=EPILOG)
def stop(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Stop the server of this data directory once its running answers have ended."""
    from cardcage.cli.background import stop as stop_server

    stop_server(_quiet_config(config), as_json=as_json)


@app.command(epilog=EPILOG)
def run(
    model: Annotated[
        str,
        typer.Argument(
            help="A loaded model's id, a name of the store (NAME[:SIZE]), a path, or what 'pull' takes.",
            autocompletion=complete_stored,
        ),
    ],
    prompt: Annotated[
        str | None, typer.Argument(help="The question; without it, a conversation or standard input.")
    ] = None,
    *,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Nucleus sampling.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print token counts and speed on standard error.")] = False,
    platform: PlatformOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a model. Starts a server, fetches and loads the model if need be; unloads only what a run loaded and nobody uses."""
    from cardcage.cli.chat import run as run_chat
    from cardcage.cli.conversation import Conversation

    loaded = _quiet_config(config)
    if prompt is None and not sys.stdin.isatty():
        prompt = sys.stdin.read().strip()
        if not prompt:
            raise CommandError("there is no prompt: neither an argument nor anything on standard input", exit_code=2)
    if prompt is None and as_json:
        raise CommandError("--json needs a prompt", exit_code=2)
    given = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens}
    conversation = Conversation(
        system=system, parameters={name: value for name, value in given.items() if value is not None}
    )
    try:
        run_chat(
            loaded,
            model=model,
            prompt=prompt,
            conversation=conversation,
            url=url,
            config_file=config,
            platform=platform,
            show_stats=stats,
            as_json=as_json,
        )
    except KeyboardInterrupt as interrupt:
        raise typer.Exit(130) from interrupt


@app.command(epilog=EPILOG)
def load(
    model: Annotated[
        str,
        typer.Argument(
            help="A name of the store (NAME[:SIZE]), a path, or a loaded model's id to resize.",
            autocompletion=complete_stored,
        ),
    ],
    *,
    model_id: Annotated[str | None, typer.Option("--id", help="Id under which clients ask for it.")] = None,
    instances: Annotated[int | None, typer.Option("--instances", "--instance", min=1, help="Instances wanted.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="Load option of the platform, NAME=VALUE; may be repeated.")
    ] = None,
    platform: PlatformOption = None,
    config: ConfigOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Load a model and keep it loaded."""
    from cardcage.cli import listing

    listing.load(
        _quiet_config(config),
        model=model,
        model_id=model_id,
        instances=instances,
        platform=platform,
        options=option or [],
        url=url,
        config_file=config,
        as_json=as_json,
    )


@app.command(epilog=EPILOG)
def unload(
    model_id: Annotated[str, typer.Argument(help="A loaded model's id, or its name with size.")],
    *,
    config: ConfigOption = None,
    url: UrlOption = None,
    as_json: JsonOption = False,
) -> None:
    """Unload a model once its running requests have ended."""
    from cardcage.cli import listing

    listing.unload(_quiet_config(config), model_id=model_id, url=url, as_json=as_json)


@app.command(epilog=EPILOG)
def ps(*, config: ConfigOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """List the loaded models."""
    from cardcage.cli import listing

    listing.ps(_quiet_config(config), url=url, as_json=as_json)


@app.command(epilog=EPILOG)
def platform(*, config: ConfigOption = None, url: UrlOption = None, as_json: JsonOption = False) -> None:
    """Show which platforms are installed and whether they work here."""
    from cardcage.cli import listing

    listing.show_platforms(_quiet_config(config), url=url, as_json=as_json)


@app.command(epilog=EPILOG)
def plugins(*, config: ConfigOption = None, plugin: PluginOption = None, as_json: JsonOption = False) -> None:
    """List the installed plugins with their state; needs no server."""
    from cardcage.cli import listing

    listing.plugins(_quiet_config(config, plugin), as_json=as_json)


@app.command(epilog=EPILOG)
def doctor(
    *, config: ConfigOption = None, plugin: PluginOption = None, url: UrlOption = None, as_json: JsonOption = False
) -> None:
    """Examine configuration, plugins, platforms, store and server; exit 1 if there is a fault."""
    from cardcage.cli.doctor import doctor as run_doctor

    run_doctor(_quiet_config(config, plugin), url=url, as_json=as_json)


add_model_commands(app)
