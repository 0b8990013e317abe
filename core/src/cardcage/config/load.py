"""Read the layers, check each by itself so that an error names its origin, and put the stronger over the weaker."""

from __future__ import annotations

import codecs
import difflib
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from cardcage.config.places import default_places
from cardcage.config.tables import GenerationTable, ModelTable, describe
from cardcage.config.values import (
    Config,
    FilePath,
    ListenEntry,
    ModelEntry,
    PluginsConfig,
    SchedulingConfig,
    SecurityConfig,
    ServerConfig,
    Table,
)
from cardcage.names import check_model_id
from cardcage_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage_sdk.chat import JsonValue

__all__ = ["ENVIRONMENT", "load_config"]


class PathsTable(Table):
    """`[paths]`; relative ones are taken from the directory of the file that names them."""

    store: FilePath | None = None
    data_dir: FilePath | None = None


FLAT_TABLES: dict[str, type[Table]] = {
    "server": ServerConfig,
    "paths": PathsTable,
    "scheduling": SchedulingConfig,
    "plugins": PluginsConfig,
    "security": SecurityConfig,
}
OTHER_TABLES = ("defaults", "models", "platforms", "dialects", "sources", "listen")

ENVIRONMENT: Mapping[str, str] = {
    "CARDCAGE_HOST": "server.host",
    "CARDCAGE_PORT": "server.port",
    "CARDCAGE_LOG_LEVEL": "server.log_level",
    "CARDCAGE_LOG_FORMAT": "server.log_format",
    "CARDCAGE_SHUTDOWN_SECONDS": "server.shutdown_seconds",
    "CARDCAGE_STORE": "paths.store",
    "CARDCAGE_DATA_DIR": "paths.data_dir",
}
"""Variables and the key that each sets. `CARDCAGE_CONFIG` names the file itself. An empty variable is an unset one."""

_TableT = TypeVar("_TableT", bound=Table)


def load_config(
    *,
    file: Path | None = None,
    overrides: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """Read the whole configuration.

    Args:
        file: The command line's file; None takes `CARDCAGE_CONFIG`, then the default file if it exists.
        overrides: The command line's values by `table.key`; None values are no values. `plugins.files` adds to the file's.
        environ: Environment; None is the process's own.

    Raises:
        ConfigError: One line that names the file (or variable, or option), the table and the key.
    """
    environment = os.environ if environ is None else environ
    places = default_places()
    named = file or (Path(environment["CARDCAGE_CONFIG"]) if environment.get("CARDCAGE_CONFIG") else None)
    chosen = named or (places.config_file if places.config_file.is_file() else None)
    document = _read(chosen) if chosen is not None else {}
    base = chosen.resolve().parent if chosen is not None else Path.cwd()

    loader = _Loader(document=document, origin=str(chosen), environ=environment, overrides=overrides or {})
    loader.check_top_level()
    server = loader.table("server", ServerConfig)
    paths = loader.table("paths", PathsTable)
    scheduling = loader.table("scheduling", SchedulingConfig)
    plugins = loader.table("plugins", PluginsConfig)
    security = loader.table("security", SecurityConfig)

    def absolute(path: Path, key: str) -> Path:
        start = base if loader.sources.get(key) == str(chosen) else Path.cwd()
        return Path(os.path.normpath(start / path.expanduser()))

    data_dir = absolute(paths.data_dir, "paths.data_dir") if paths.data_dir else places.data_dir
    store = absolute(paths.store, "paths.store") if paths.store else data_dir / "models"
    extra_files = tuple(Path(str(name)) for name in _sequence(loader.overrides.get("plugins.files")))
    plugin_files = tuple(Path(os.path.normpath(base / path.expanduser())) for path in plugins.files)
    plugin_files += tuple(Path(os.path.normpath(Path.cwd() / path.expanduser())) for path in extra_files)
    roots = tuple(absolute(path, "security.allowed_roots") for path in security.allowed_roots)
    return Config(
        store=store,
        data_dir=data_dir,
        server=server,
        defaults=loader.generation(document.get("defaults", {}), "[defaults]").to_defaults(),
        models=loader.models(base),
        platform_options=loader.named_tables("platforms"),
        dialect_settings=loader.named_tables("dialects"),
        source_settings=loader.named_tables("sources"),
        scheduling=scheduling,
        plugins=plugins.model_copy(update={"files": plugin_files}),
        security=security.model_copy(update={"allowed_roots": roots}),
        listen=loader.listen(base),
        file=chosen,
        sources=loader.sources,
    )


def _sequence(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else ()


def _read(file: Path) -> dict[str, Any]:
    try:
        content = file.read_bytes()
        if content.startswith(codecs.BOM_UTF8):
            raise ConfigError(f"{file}: begins with a byte order mark; save it as UTF-8 without one")
        return tomllib.loads(content.decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error


class _Loader:
    """One reading of all layers; keeps the sources as it goes."""

    def __init__(
        self, *, document: dict[str, Any], origin: str, environ: Mapping[str, str], overrides: Mapping[str, object]
    ) -> None:
        self.document = document
        self.origin = origin
        self.environ = environ
        self.overrides = {key: value for key, value in overrides.items() if value is not None}
        self.sources: dict[str, str] = {}

    def check_top_level(self) -> None:
        known = [*FLAT_TABLES, *OTHER_TABLES]
        for name, value in self.document.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean [{near[0]}]?" if near else f"; known are: {', '.join(known)}"
                what = f"table [{name}]" if isinstance(value, dict) else f"key '{name}'"
                raise ConfigError(f"{self.origin}: unknown {what}{hint}")
            if name in {"models", "listen"}:
                if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
                    raise ConfigError(f"{self.origin}: {name} must be written as [[{name}]] entries")
            elif not isinstance(value, dict):
                raise ConfigError(f"{self.origin}: '{name}' must be a table, written [{name}]")

    def table(self, name: str, kind: type[_TableT]) -> _TableT:
        """One flat table from all layers."""
        merged: dict[str, object] = {}
        self.sources.update({f"{name}.{key}": "built-in" for key in kind.model_fields})

        def layer(checked: _TableT, source: str) -> None:
            for key in checked.model_fields_set:
                merged[key] = getattr(checked, key)
                self.sources[f"{name}.{key}"] = source

        written = self.document.get(name, {})
        try:
            layer(kind.model_validate(written), self.origin)
        except ValidationError as error:
            raise ConfigError(f"{self.origin}: [{name}] {describe(error)}{_hint(error, kind)}") from error
        for variable, key in ENVIRONMENT.items():
            table, _, field = key.partition(".")
            text = self.environ.get(variable)
            if table == name and text:
                try:
                    layer(kind.model_validate_strings({field: text}), f"environment {variable}")
                except ValidationError as error:
                    raise ConfigError(f"{variable}: {describe(error)}") from error
        for key, value in self.overrides.items():
            table, _, field = key.partition(".")
            if table != name:
                continue
            if key == "plugins.files":
                if value:
                    self.sources[key] = "command line"
                continue
            try:
                layer(kind.model_validate({field: value}), "command line")
            except ValidationError as error:
                raise ConfigError(f"--{field.replace('_', '-')}: {describe(error)}") from error
        return kind.model_validate(merged)

    def generation(self, value: object, where: str) -> GenerationTable:
        try:
            return GenerationTable.model_validate(value)
        except ValidationError as error:
            raise ConfigError(f"{self.origin}: {where} {describe(error)}{_hint(error, GenerationTable)}") from error

    def models(self, base: Path) -> tuple[ModelEntry, ...]:
        entries: list[ModelEntry] = []
        seen: set[str] = set()
        for number, written in enumerate(self.document.get("models", []), start=1):
            where = f"[[models]] entry {number}"
            rest = dict(written)
            params = rest.pop("default_params", {})
            options = rest.pop("options", {})
            try:
                table = ModelTable.model_validate(rest)
                check_model_id(table.model_id)
            except ValidationError as error:
                raise ConfigError(f"{self.origin}: {where}: {describe(error)}{_hint(error, ModelTable)}") from error
            except ValueError as error:
                raise ConfigError(f"{self.origin}: {where}: model_id: {error}") from error
            if table.model_id in seen:
                raise ConfigError(f"{self.origin}: {where}: model_id '{table.model_id}' is used twice")
            seen.add(table.model_id)
            defaults = self.generation(params, f"{where}: default_params:").to_defaults()
            entries.append(
                ModelEntry(
                    model_id=table.model_id,
                    model_path=os.path.normpath(base / Path(table.model_path).expanduser()),
                    instance_count=table.instance_count,
                    request_queue_size=table.request_queue_size,
                    defaults=defaults,
                    platform=table.platform,
                    options=self._json_table(options, f"{where}: options"),
                )
            )
        return tuple(entries)

    def listen(self, base: Path) -> tuple[ListenEntry, ...]:
        """`[[listen]]`; a host or port of a stronger layer replaces the whole of it by that one socket."""
        entries: list[ListenEntry] = []
        for number, written in enumerate(self.document.get("listen", []), start=1):
            where = f"{self.origin}: [[listen]] entry {number}"
            try:
                entry = ListenEntry.model_validate(written)
            except ValidationError as error:
                raise ConfigError(f"{where}: {describe(error)}{_hint(error, ListenEntry)}") from error
            if entry.unix is not None:
                unix = Path(os.path.normpath(base / entry.unix.expanduser()))
                entry = entry.model_copy(update={"unix": unix})
                if any(other.unix is not None for other in entries):
                    raise ConfigError(f"{where}: only one entry may have 'unix'")
            if any(other.label == entry.label and entry.port for other in entries):
                raise ConfigError(f"{where}: {entry.label} is listed twice")
            entries.append(entry)
        sources = {self.sources.get(f"server.{key}", "built-in") for key in ("host", "port")}
        if entries and self.origin in sources:
            raise ConfigError(
                f"{self.origin}: [server] host and port stand for one socket; with [[listen]], list it there"
            )
        return tuple(entries) if sources == {"built-in"} else ()

    def named_tables(self, kind: str) -> dict[str, Mapping[str, JsonValue]]:
        """`[platforms.<name>]`, `[dialects.<name>]` or `[sources.<name>]`."""
        result: dict[str, Mapping[str, JsonValue]] = {}
        for name, value in self.document.get(kind, {}).items():
            if not isinstance(value, dict):
                raise ConfigError(f"{self.origin}: [{kind}] key '{name}': must be a table, written [{kind}.{name}]")
            result[name] = self._json_table(value, f"[{kind}.{name}]")
            self.sources.update({f"{kind}.{name}.{key}": self.origin for key in value})
        return result

    def _json_table(self, value: object, where: str) -> dict[str, JsonValue]:
        if not isinstance(value, dict):
            raise ConfigError(f"{self.origin}: {where}: must be a table")
        for key, item in value.items():
            if not _is_json(item):
                raise ConfigError(f"{self.origin}: {where} {key}: dates and infinite numbers have no place here")
        return value


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(_is_json(item) for item in value.values())
    if isinstance(value, list):
        return all(_is_json(item) for item in value)
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")  # noqa: PLR0124 - only NaN differs from itself
    return isinstance(value, str | int | bool)


def _hint(error: ValidationError, kind: type[Table | GenerationTable]) -> str:
    first = error.errors(include_url=False)[0]
    if first["type"] != "extra_forbidden":
        return ""
    known = list(kind.model_fields)
    near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; known are: {', '.join(known)}"
