"""`enable` and `disable`: which models the server loads when it starts, written into the user's own file."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cardcage.catalog import check_model_id, default_model_id
from cardcage.cli import listing
from cardcage.cli.client import ServerClient, find_url
from cardcage.cli.exits import CONFIGURATION, USAGE, CommandError
from cardcage.cli.output import note, print_json
from cardcage.cli.pulling import stored_path
from cardcage.cli.usage import resolve
from cardcage.config import default_places, load_config
from cardcage.config.edit import add_model, remove_model, set_instance_count
from cardcage_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cardcage.config import Config, ModelEntry
    from cardcage_sdk.models import ModelArtifact

__all__ = ["disable", "enable"]


def enable(
    config: Config,
    *,
    model: str,
    model_id: str | None,
    instances: int | None,
    platform: str | None,
    now: bool,
    url: str | None,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Have the server load a model at its start; with `now` at once too.

    Raises:
        CommandError: With one line.
    """
    artifact = _artifact(config, model, platform=platform, url=url)
    chosen = platform.partition("/")[0] if platform else None
    wanted = model_id or default_model_id(artifact, platform=chosen)
    try:
        check_model_id(wanted)
    except ValueError as error:
        raise CommandError(f"--id: {error}", exit_code=USAGE) from error
    file = _file(config, config_file)
    values: dict[str, str | int] = {"model_id": wanted, "model_path": str(artifact.path)}
    if instances is not None:
        values["instance_count"] = instances
    if chosen and chosen != artifact.platform:
        values["platform"] = chosen
    changed = True
    with _editing(file) as entries:
        entry = next((known for known in entries if known.model_id == wanted), None)
        if entry is not None and Path(entry.model_path) != artifact.path:
            raise CommandError(f"'{wanted}' is enabled for another model, {entry.model_path}; choose another --id")
        if entry is None:
            _write(file, add_model(_read(file), values))
        elif instances is not None and instances != entry.instance_count:
            _write(file, set_instance_count(_read(file), wanted, instances))
        else:
            changed = False
    what = f"'{wanted}' is loaded at start from now on" if changed else f"'{wanted}' is loaded at start already"
    if as_json and not now:
        print_json({"model_id": wanted, "model_path": str(artifact.path), "config": str(file), "changed": changed})
    else:
        (note if now else _say)(f"{what} ({file})")
    if now:
        listing.load(
            config,
            model=str(artifact.path),
            model_id=wanted,
            instances=instances,
            platform=platform,
            options=[],
            url=url,
            config_file=config_file,
            as_json=as_json,
        )


def disable(config: Config, *, model: str, now: bool, url: str | None, config_file: Path | None, as_json: bool) -> None:
    """Have the server no longer load a model at its start; with `now` unload it too.

    Raises:
        CommandError: With one line.
    """
    wanted = next((entry.model_id for entry in config.models if entry.model_id == model), None)
    if wanted is None:
        artifact = _find(config, model, platform=None, url=url)
        path = artifact.path if artifact is not None else None
        found = [entry.model_id for entry in config.models if Path(entry.model_path) == path]
        if len(found) > 1:
            raise CommandError(f"'{model}' is enabled under several ids: {', '.join(found)}; name one of these")
        wanted = found[0] if found else None
    if wanted is None:
        enabled = ", ".join(entry.model_id for entry in config.models) or "none"
        raise CommandError(f"'{model}' is not enabled; enabled are: {enabled}")
    file = _file(config, config_file)
    with _editing(file):
        _write(file, remove_model(_read(file), wanted))
    if as_json and not now:
        print_json({"model_id": wanted, "config": str(file), "changed": True})
    else:
        (note if now else _say)(f"'{wanted}' is no longer loaded at start ({file})")
    if now:
        listing.unload(config, model_id=wanted, url=url, as_json=as_json)


def _artifact(config: Config, model: str, *, platform: str | None, url: str | None) -> ModelArtifact:
    artifact = _find(config, model, platform=platform, url=url)
    if artifact is None:
        raise CommandError(
            f"there is no model '{model}' in the store {config.store}; 'cardcage pull {model}' may get it"
        )
    return artifact


def _find(config: Config, model: str, *, platform: str | None, url: str | None) -> ModelArtifact | None:
    artifact = resolve(config, model, platform=platform)
    if artifact is not None:
        return artifact
    # The server also knows the names that models were fetched by.
    client = ServerClient(find_url(config, url))
    if not client.is_alive():
        return None
    path = stored_path(client, model)
    return resolve(config, path) if path is not None else None


def _file(config: Config, config_file: Path | None) -> Path:
    """The file that the server reads; a link is followed, so that it stays one."""
    return (config.file or config_file or default_places().config_file).resolve()


def _read(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", newline="") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise CommandError(f"'{file}' cannot be read: {error.strerror}", exit_code=CONFIGURATION) from error


def _write(file: Path, text: str) -> None:
    """Replace the file in one step, once the whole of it was read as a configuration."""
    if file.exists() and not os.access(file, os.W_OK):
        raise CommandError(f"'{file}' is read-only", exit_code=CONFIGURATION)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}-", dir=file.parent)
    except OSError as error:
        raise CommandError(f"'{file}' cannot be written: {error.strerror}", exit_code=CONFIGURATION) from error
    side = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        load_config(file=side)
        if file.exists():
            state = file.stat()
            os.chown(side, state.st_uid, state.st_gid)
            side.chmod(state.st_mode & 0o7777)
        else:
            side.chmod(0o644)
        side.replace(file)
    except OSError as error:
        raise CommandError(f"'{file}' cannot be written: {error.strerror}", exit_code=CONFIGURATION) from error
    finally:
        side.unlink(missing_ok=True)


@contextmanager
def _editing(file: Path) -> Iterator[Sequence[ModelEntry]]:
    """The entries as they are now, and nobody else who changes them; errors name the file.

    What is locked is the file's directory, for the file itself is replaced, and nothing is left lying beside it.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        directory = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CommandError(f"'{file}' cannot be written: {error.strerror}", exit_code=CONFIGURATION) from error
    try:
        # Network file systems may refuse to lock a directory; then two at once are as they would be with an editor.
        with suppress(OSError):
            fcntl.flock(directory, fcntl.LOCK_EX)
        yield load_config(file=file).models if file.exists() else ()
    except ConfigError as error:
        raise CommandError(f"{file}: {error.message}", exit_code=CONFIGURATION) from error
    finally:
        os.close(directory)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
