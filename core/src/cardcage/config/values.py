"""The configuration as values: frozen, checked, built by `load_config` or directly by a test."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from cardcage_sdk.chat import JsonValue
from cardcage_sdk.service import GenerationDefaults

__all__ = [
    "Config",
    "ListenEntry",
    "ModelEntry",
    "PluginsConfig",
    "SchedulingConfig",
    "SecurityConfig",
    "ServerConfig",
    "is_loopback",
]

_ORIGIN = re.compile(r"\*|null|[a-z*][a-z0-9+.*-]*://[^/\s]+/?", re.IGNORECASE)
_HOST = re.compile(r"[^\s/:*\[\]]+")


def _origin(text: str) -> str:
    if not _ORIGIN.fullmatch(text):
        raise ValueError("an origin is written as 'https://chat.example', where '*' stands for any text")
    return text


def _host(text: str) -> str:
    if not _HOST.fullmatch(text) and not _is_ipv6(text.removeprefix("[").removesuffix("]")):
        raise ValueError("a host is a name or an address without scheme and port")
    return text


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _some_path(value: object) -> object:
    if value == "":
        raise ValueError("a path must not be empty")
    return value


Words = Annotated[tuple[str, ...], Field(strict=False)]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], Field(strict=False)]
Hosts = Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], Field(strict=False)]
FilePath = Annotated[Path, Field(strict=False), BeforeValidator(_some_path)]
Paths = Annotated[tuple[FilePath, ...], Field(strict=False)]


class Table(BaseModel):
    """A table of the file with exactly these keys; an unknown key or a wrong type is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ServerConfig(Table):
    """`[server]`: where and how to serve; `host`, `port`, `log_level`, `request_queue_size` are LlamaPi's keys.

    Attributes:
        port: TCP port; 0 takes a free one, which the lock file then names.
        request_queue_size: Waiting places of each model.
        queue_timeout_seconds: Longest wait in a queue, then `busy`.
        load_timeout_seconds: Longest load of a model, the self-test included.
        shutdown_seconds: How long running requests may go on after the first SIGTERM.
        max_body_bytes: Largest request body.
        max_upload_bytes: Largest file that a client may upload, on routes that take files.
        body_timeout_seconds: Longest time for a request body to arrive.
        ping_seconds: A stream that has been silent for so long gets a sign of life.
    """

    host: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 9265
    log_level: Literal["trace", "debug", "info", "warn", "error"] = "info"
    log_format: Literal["auto", "console", "json"] = "auto"
    request_queue_size: Annotated[int, Field(ge=0)] = 48
    queue_timeout_seconds: Annotated[float, Field(gt=0)] = 300.0
    load_timeout_seconds: Annotated[float, Field(gt=0)] = 300.0
    shutdown_seconds: Annotated[float, Field(ge=0)] = 10.0
    max_body_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    max_upload_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024 * 1024
    body_timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    ping_seconds: Annotated[float, Field(gt=0)] = 10.0


class SchedulingConfig(Table):
    """`[scheduling]`: which models may be resident, and which platform is asked first.

    Attributes:
        max_loaded_models: Most models loaded on demand at once; None is no bound.
        memory_budget_bytes: Memory that models loaded on demand may take together; None is no bound.
        keep_alive_seconds: How long a model loaded on demand stays after its last request.
        platform_order: Decides when several platforms claim a model and its `model.toml` names none.
    """

    max_loaded_models: Annotated[int, Field(ge=1)] | None = None
    memory_budget_bytes: Annotated[int, Field(ge=1)] | None = None
    keep_alive_seconds: Annotated[float, Field(ge=0)] = 300.0
    platform_order: Words = ()


class PluginsConfig(Table):
    """`[plugins]`: names are a plugin's id, or `platform:<id>`, `dialect:<id>`, `source:<id>` where one id is several.

    Attributes:
        required: The server does not start without these.
        disabled: Not even imported.
        files: Source files of unpackaged plugins; each is required.
    """

    required: Words = ()
    disabled: Words = ()
    files: Paths = ()


class ListenEntry(Table):
    """One `[[listen]]` entry: a socket, and what is different behind it.

    Attributes:
        address: Host name or address to bind; `0.0.0.0` and `::` are all of this machine's.
        port: TCP port; 0 takes a free one.
        unix: Path of a Unix socket to make instead; at most one entry has it. Its group may connect, others may not.
        dialects: Ids of the dialects served here; None is all. Core's own routes are served everywhere.
        require_keys: Whether a request that comes in here needs a key; None takes `[security]`'s.
        origins: Further origins of web pages that may call every route here; `*` stands for any text.
        optional: The server starts, with a warning, where the address is taken or does not exist.
    """

    address: Annotated[str, Field(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 9265
    unix: FilePath | None = None
    dialects: Words | None = None
    require_keys: bool | None = None
    origins: Origins = ()
    optional: bool = False

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if self.unix is not None and self.model_fields_set & {"address", "port"}:
            raise ValueError("unix stands instead of address and port")
        return self

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine reach it."""
        return self.unix is not None or is_loopback(self.address)

    @property
    def label(self) -> str:
        """The address as one word, for messages."""
        if self.unix is not None:
            return f"unix:{self.unix}"
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class SecurityConfig(Table):
    """`[security]`: who may call, and which files a request may name.

    Attributes:
        require_keys: True: every request needs a key. False: none does, even where keys exist. Unset: as soon as one key
            was ever made, every request needs one.
        allowed_roots: Directories below which a request may name files, besides the store. Unset: any file on a loopback
            bind, the store only as soon as one socket is wider.
        allowed_origins: Further origins of web pages that may call every route, as `https://chat.example`; `*` stands for
            any text.
        allowed_hosts: Further host names by which the server may be called. Unset: loopback names on a loopback bind, any
            on a wider one.
    """

    require_keys: bool | None = None
    allowed_roots: Paths = ()
    allowed_origins: Origins = ()
    allowed_hosts: Hosts = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """One `[[models]]` entry: a model that is loaded at start, in the order of the file.

    Attributes:
        model_path: Absolute path of a model directory or file.
        request_queue_size: Waiting places; None takes `[server]`'s.
        defaults: `[models.default_params]`.
        platform: Platform id; None lets `model.toml`, then the files decide.
        options: Load options of the platform, over those of `[platforms.<name>]`.
    """

    model_id: str
    model_path: str
    instance_count: int = 1
    request_queue_size: int | None = None
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    platform: str | None = None
    options: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that an operator decides.

    Attributes:
        store: The model store: `<store>/<platform>/<chip>/<name-size>/`.
        data_dir: Lock file, background log, database.
        defaults: `[defaults]`, the weakest generation defaults.
        platform_options: `[platforms.<name>]`: load options for every model of a platform.
        dialect_settings: `[dialects.<name>]`, unchecked: the dialect refuses what is wrong.
        source_settings: `[sources.<name>]`, unchecked: the source refuses what is wrong.
        listen: `[[listen]]`; empty is one socket at `[server]`'s host and port. Ask `listeners`.
        file: The file that was read, or None.
        sources: Where each value came from, by `table.key`: `command line`, `environment NAME`, the file's path, or `built-in`.
    """

    store: Path
    data_dir: Path
    server: ServerConfig = field(default_factory=ServerConfig)
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    models: tuple[ModelEntry, ...] = ()
    platform_options: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    dialect_settings: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    source_settings: Mapping[str, Mapping[str, JsonValue]] = field(default_factory=dict)
    scheduling: SchedulingConfig = field(default_factory=SchedulingConfig)
    plugins: PluginsConfig = field(default_factory=PluginsConfig)
    security: SecurityConfig = field(default_factory=SecurityConfig)
    listen: tuple[ListenEntry, ...] = ()
    file: Path | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def platform_order(self) -> tuple[str, ...]:
        """Platform ids, preferred first."""
        return self.scheduling.platform_order

    @property
    def listeners(self) -> tuple[ListenEntry, ...]:
        """The sockets of the server, at least one."""
        return self.listen or (ListenEntry(address=self.server.host, port=self.server.port),)

    @property
    def is_local_only(self) -> bool:
        """Whether only programs on this machine reach the server."""
        return all(entry.is_local for entry in self.listeners)

    @property
    def allowed_roots(self) -> tuple[Path, ...] | None:
        """Directories that a request may name files in; None is any file."""
        if self.security.allowed_roots:
            return (self.store, *self.security.allowed_roots)
        return None if self.is_local_only else (self.store,)

    def allows_path(self, path: Path) -> bool:
        """Whether a request may name this file or directory; symbolic links count by where they lead."""
        roots = self.allowed_roots
        return roots is None or any(path.resolve().is_relative_to(root.resolve()) for root in roots)


def is_loopback(host: str) -> bool:
    """Whether this host name or address reaches this machine only."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback
