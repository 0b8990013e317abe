"""What the registry knows of a plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from pathlib import Path

    from cardcage_sdk.dialect import Dialect
    from cardcage_sdk.platform import Platform
    from cardcage_sdk.sources import Source

__all__ = ["Candidate", "DialectPlugin", "Kind", "PlatformPlugin", "PluginRecord", "SourcePlugin", "State"]

Kind: TypeAlias = Literal["platform", "dialect", "source"]

State: TypeAlias = Literal["loaded", "failed", "refused", "disabled"]
"""`failed`: its code raised. `refused`: it breaks the contract, or its name or route is taken. `disabled`: by configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord:
    """One installed plugin, whether it works or not.

    Attributes:
        name: The entry point's name; the id in configuration, URLs and logs.
        distribution: The package that brings it, or the path of an unpackaged plugin.
        version: The package's version; empty for an unpackaged plugin.
        reason: Why it is not loaded; empty where it is.
    """

    name: str
    kind: Kind
    distribution: str
    version: str
    state: State
    reason: str = ""

    @property
    def label(self) -> str:
        """Who brings it, for messages: `cardcage-platform-x 0.1.0`, or a path."""
        return f"{self.distribution} {self.version}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformPlugin:
    """A platform that can be asked.

    Attributes:
        plugin_file: The file that a worker must load the engine's module from, or None where it is installed.
    """

    name: str
    platform: Platform
    distribution: str
    version: str
    plugin_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectPlugin:
    """A dialect that can be asked for its routes."""

    name: str
    dialect: Dialect
    distribution: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlugin:
    """A source of models that can be asked."""

    name: str
    source: Source
    distribution: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plugin as its metadata tell, before anything of it is imported.

    Attributes:
        name: The entry point's name; None for a file, whose classes name themselves.
        kind: None for a file, which may bring all kinds.
        module: Dotted name of the plugin module; for a file, the name under which it is loaded.
        file: The source file of an unpackaged plugin.
        requirements: The distribution's requirements, as its metadata write them.
    """

    name: str | None
    kind: Kind | None
    distribution: str
    version: str
    module: str
    file: Path | None = None
    requirements: tuple[str, ...] = ()
