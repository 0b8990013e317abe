"""All plugins of this installation, found by entry point and by file, as one object without globals."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from importlib import metadata
from typing import TYPE_CHECKING

from cardcage.plugins.loading import load_candidate
from cardcage.plugins.records import (
    Candidate,
    DialectPlugin,
    Kind,
    PlatformPlugin,
    PluginRecord,
    SourcePlugin,
    State,
)
from cardcage_sdk.errors import PluginConflictError, PluginContractError, PluginError, PluginLoadError
from cardcage_sdk.hookspecs import ENTRY_POINT_GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from cardcage.config import Config, PluginsConfig
    from cardcage_sdk.dialect import Dialect
    from cardcage_sdk.platform import Platform
    from cardcage_sdk.sources import Source

__all__ = ["CORE_PREFIXES", "PluginRegistry", "candidates"]

CORE_PREFIXES = ("/metrics", "/readyz", "/livez")
"""Paths of core itself; no dialect may claim them."""

KINDS: tuple[Kind, ...] = ("platform", "dialect", "source")


class PluginRegistry:
    """The platforms, dialects and sources of a server. Built once at start-up, then only read.

    Attributes:
        problems: What forbids a start: conflicts, and required plugins that did not load.
    """

    def __init__(
        self,
        *,
        platforms: Iterable[PlatformPlugin] = (),
        dialects: Iterable[DialectPlugin] = (),
        sources: Iterable[SourcePlugin] = (),
        records: Iterable[PluginRecord] = (),
        problems: Iterable[PluginError] = (),
    ) -> None:
        self._platforms = {plugin.name: plugin for plugin in platforms}
        self._dialects = {plugin.name: plugin for plugin in dialects}
        self._sources = {plugin.name: plugin for plugin in sources}
        self._records = tuple(records)
        self.problems = tuple(problems)

    @property
    def platforms(self) -> Mapping[str, PlatformPlugin]:
        """Loaded platforms by id."""
        return self._platforms

    @property
    def dialects(self) -> Mapping[str, DialectPlugin]:
        """Loaded dialects by id."""
        return self._dialects

    @property
    def sources(self) -> Mapping[str, SourcePlugin]:
        """Loaded sources of models by id."""
        return self._sources

    @property
    def records(self) -> Sequence[PluginRecord]:
        """Every plugin that was found, loaded or not."""
        return self._records

    @classmethod
    def of(cls, *instances: Platform | Dialect | Source, distribution: str = "this process") -> PluginRegistry:
        """A registry of given instances, for tests and embedders; their engines must be importable in a worker."""
        collected = _Collection()
        for instance in instances:
            kind = _kind_of(instance)
            record = PluginRecord(name=instance.name, kind=kind, distribution=distribution, version="", state="loaded")
            collected.add(record, instance, plugin_file=None)
        registry = collected.registry()
        registry.check()
        return registry

    @classmethod
    def discover(cls, config: Config, *, strict: bool = True) -> PluginRegistry:
        """Find and load every installed plugin, one at a time.

        A plugin that fails becomes a record with its reason and stops nothing.

        Args:
            config: Its `[plugins]` table names what is required, disabled and loaded from files.
            strict: False returns a registry with its `problems` instead of raising, for listings.

        Raises:
            PluginConflictError: Two plugins claim one name or one route; both are named.
            PluginError: A plugin that the configuration requires is missing, disabled or did not load.
        """
        collected = _Collection()
        found = sorted(candidates(config.plugins.files), key=lambda item: (item.name or "", item.distribution))
        for candidate in found:
            collected.load(candidate, config.plugins)
        collected.check_required(config.plugins)
        registry = collected.registry()
        if strict:
            registry.check()
        return registry

    def withdraw_dialect(self, name: str, *, state: State, reason: str, required: Sequence[str]) -> None:
        """Take a dialect back that could not give its routes; where it is required that is a problem of the start.

        Called while the application is built, before anything is served.
        """
        self._dialects.pop(name)
        self._records = tuple(
            replace(record, state=state, reason=reason) if (record.kind, record.name) == ("dialect", name) else record
            for record in self._records
        )
        if _is_named(required, "dialect", name):
            self.problems += (
                PluginLoadError(name, f"Plugin '{name}' is required by [plugins] required, but: {reason}"),
            )

    def check(self) -> None:
        """Raise the first of `problems`, if there is one."""
        if self.problems:
            raise self.problems[0]


def candidates(files: Sequence[Path] = ()) -> list[Candidate]:
    """Every plugin that metadata name, and the files; imports nothing of them."""
    found: list[Candidate] = []
    for kind in KINDS:
        for entry in metadata.entry_points(group=ENTRY_POINT_GROUPS[kind]):
            dist = entry.dist
            found.append(
                Candidate(
                    name=entry.name,
                    kind=kind,
                    distribution=dist.name if dist else entry.module,
                    version=dist.version if dist else "",
                    module=entry.module,
                    requirements=tuple(dist.requires or ()) if dist else (),
                )
            )
    found.extend(
        Candidate(
            name=None, kind=None, distribution=str(file), version="", module=f"cardcage_plugin_{file.stem}", file=file
        )
        for file in files
    )
    return found


class _Collection:
    """A registry while it is being filled."""

    def __init__(self) -> None:
        self.platforms: dict[str, PlatformPlugin] = {}
        self.dialects: dict[str, DialectPlugin] = {}
        self.sources: dict[str, SourcePlugin] = {}
        self.records: list[PluginRecord] = []
        self.problems: list[PluginError] = []
        self.prefixes: dict[str, str] = dict.fromkeys(CORE_PREFIXES, "cardcage itself")

    def load(self, candidate: Candidate, plugins: PluginsConfig) -> None:
        """Load one, or record why not."""
        if candidate.kind is not None and _is_named(plugins.disabled, candidate.kind, candidate.name or ""):
            self._record_failure(candidate, "disabled", "disabled by [plugins] disabled")
            return
        try:
            declared = load_candidate(candidate)
        except PluginContractError as error:
            self._record_failure(candidate, "refused", error.message)
            return
        except PluginLoadError as error:
            self._record_failure(candidate, "failed", error.message)
            return
        instances: list[Platform | Dialect | Source] = [*declared.platforms, *declared.dialects, *declared.sources]
        for instance in instances:
            record = PluginRecord(
                name=instance.name,
                kind=_kind_of(instance),
                distribution=candidate.distribution,
                version=candidate.version,
                state="loaded",
            )
            self.add(record, instance, plugin_file=candidate.file)

    def _record_failure(self, candidate: Candidate, state: State, reason: str) -> None:
        # A file tells its kinds only by running; where it does not run, it is listed as what such files mostly are.
        record = PluginRecord(
            name=candidate.name or (candidate.file.stem if candidate.file else candidate.module),
            kind=candidate.kind or "platform",
            distribution=candidate.distribution,
            version=candidate.version,
            state=state,
            reason=reason,
        )
        self.records.append(record)
        if candidate.file is not None:
            self.problems.append(PluginLoadError(record.name, f"Plugin file '{candidate.file}': {reason}"))

    def add(self, record: PluginRecord, instance: Platform | Dialect | Source, *, plugin_file: Path | None) -> None:
        """Take a constructed plugin in, unless its name or a route of it is taken."""
        from cardcage_sdk.platform import Platform
        from cardcage_sdk.sources import Source

        taken = [other for other in self.records if (other.kind, other.name) == (record.kind, record.name)]
        if taken:
            self._refuse(
                record, f"{record.kind} '{record.name}' is brought by both {taken[0].label} and {record.label}"
            )
            return
        if isinstance(instance, Platform):
            self.platforms[record.name] = PlatformPlugin(
                name=record.name,
                platform=instance,
                distribution=record.distribution,
                version=record.version,
                plugin_file=_worker_file(instance.engine, plugin_file),
            )
        elif isinstance(instance, Source):
            self.sources[record.name] = SourcePlugin(
                name=record.name, source=instance, distribution=record.distribution, version=record.version
            )
        else:
            for prefix in instance.prefixes:
                owner = self.prefixes.get(_normal(prefix))
                if owner is not None:
                    self._refuse(record, f"route '{prefix}' is claimed by both {owner} and {record.label}")
                    return
            self.prefixes.update({_normal(prefix): record.label for prefix in instance.prefixes})
            self.dialects[record.name] = DialectPlugin(
                name=record.name, dialect=instance, distribution=record.distribution, version=record.version
            )
        self.records.append(record)

    def _refuse(self, record: PluginRecord, reason: str) -> None:
        self.records.append(
            PluginRecord(
                name=record.name,
                kind=record.kind,
                distribution=record.distribution,
                version=record.version,
                state="refused",
                reason=reason,
            )
        )
        self.problems.append(
            PluginConflictError(record.name, f"{reason[:1].upper()}{reason[1:]}; uninstall one of them")
        )

    def check_required(self, plugins: PluginsConfig) -> None:
        """Every plugin that the configuration names must be there and work."""
        for wanted in plugins.required:
            matching = [record for record in self.records if _is_named((wanted,), record.kind, record.name)]
            if any(record.state == "loaded" for record in matching):
                continue
            if matching:
                why = "; ".join(f"{record.label}: {record.state}: {record.reason}" for record in matching)
            else:
                why = "it is not installed"
            self.problems.append(
                PluginLoadError(wanted, f"Plugin '{wanted}' is required by [plugins] required, but {why}")
            )

    def registry(self) -> PluginRegistry:
        """The finished registry."""
        return PluginRegistry(
            platforms=self.platforms.values(),
            dialects=self.dialects.values(),
            sources=self.sources.values(),
            records=self.records,
            problems=self.problems,
        )


def _kind_of(instance: Platform | Dialect | Source) -> Kind:
    from cardcage_sdk.platform import Platform
    from cardcage_sdk.sources import Source

    if isinstance(instance, Platform):
        return "platform"
    return "source" if isinstance(instance, Source) else "dialect"


def _is_named(names: Sequence[str], kind: Kind, name: str) -> bool:
    return name in names or f"{kind}:{name}" in names


def _normal(prefix: str) -> str:
    return prefix.rstrip("/") or "/"


def _worker_file(engine: str, file: Path | None) -> str | None:
    """The file that a worker loads the engine from: the plugin's, unless the engine lies in an installed package."""
    if file is None:
        return None
    module = engine.partition(":")[0]
    if module in {file.stem, f"cardcage_plugin_{file.stem}"}:
        return str(file)
    top = module.partition(".")[0]
    return None if importlib.util.find_spec(top) is not None else str(file)
