"""Which platforms there are, which can work here, and which one a model is for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from cardcage.plugins.probing import probe_platform
from cardcage_sdk.errors import PlatformDetectionError, UnsupportedPlatformError
from cardcage_sdk.platform import ProbeReport
from cardcage_sdk.service import PlatformStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardcage.plugins.records import PlatformPlugin
    from cardcage.plugins.registry import PluginRegistry
    from cardcage_sdk.models import ModelArtifact

__all__ = ["Platforms", "choose_claimant"]

PROBE_SECONDS = 3.0
"""How long a probe's answer is good for: a client that polls must not read sysfs for each poll."""


def choose_claimant(path: str, claimants: Sequence[str], order: Sequence[str]) -> str:
    """Choose between platforms that claim a model.

    Args:
        path: The model, for the error.
        claimants: Platform ids.
        order: Configured order, preferred first.

    Raises:
        PlatformDetectionError: None claims it, or several do and none of them is in the order; all are named.
    """
    if len(claimants) == 1:
        return claimants[0]
    for name in order:
        if name in claimants:
            return name
    raise PlatformDetectionError(path, candidates=tuple(sorted(claimants)))


class Platforms:
    """The installed platforms, asked in threads: a plugin's probe or claim may read many files."""

    def __init__(self, registry: PluginRegistry, *, order: Sequence[str]) -> None:
        self._registry = registry
        self._order = tuple(order)
        self._reports: dict[str, tuple[float, ProbeReport]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._log = structlog.get_logger("cardcage.platforms")

    async def probe(self, plugin: PlatformPlugin) -> ProbeReport:
        """Whether a platform can work here; an answer of the last seconds is taken again."""
        async with self._locks.setdefault(plugin.name, asyncio.Lock()):
            loop = asyncio.get_running_loop()
            known = self._reports.get(plugin.name)
            if known is not None and loop.time() - known[0] < PROBE_SECONDS:
                return known[1]
            report = await asyncio.to_thread(
                probe_platform,
                plugin,
                on_failure=lambda error: self._log.warning("probe failed", platform=plugin.name, exc_info=error),
            )
            self._reports[plugin.name] = (loop.time(), report)
            return report

    async def statuses(self) -> list[PlatformStatus]:
        """All installed platforms."""
        plugins = list(self._registry.platforms.values())
        reports = await asyncio.gather(*(self.probe(plugin) for plugin in plugins))
        return [_status(plugin, report) for plugin, report in zip(plugins, reports, strict=True)]

    async def choose(self, artifact: ModelArtifact, wanted: str | None) -> tuple[PlatformPlugin, ProbeReport]:
        """Find the platform for a model: the one that the load names, else `model.toml`, else the one that claims it.

        Raises:
            UnsupportedPlatformError: It is not installed or cannot work here; with the reason.
            PlatformDetectionError: None claims it, or several do and the configured order names none of them.
        """
        name = wanted or artifact.platform
        if name is not None:
            plugin = self._registry.platforms.get(name)
            if plugin is None:
                raise UnsupportedPlatformError(name, reason=self._why_missing(name))
            report = await self.probe(plugin)
        else:
            plugin, report = await self._detect(artifact)
        if not report.is_available:
            raise UnsupportedPlatformError(plugin.name, reason=report.reason or "it is not available")
        return plugin, report

    async def _detect(self, artifact: ModelArtifact) -> tuple[PlatformPlugin, ProbeReport]:
        plugins = list(self._registry.platforms.values())
        claims = await asyncio.to_thread(lambda: [self._claims(plugin, artifact) for plugin in plugins])
        claimants = [plugin for plugin, is_claimed in zip(plugins, claims, strict=True) if is_claimed]
        reports = {plugin.name: await self.probe(plugin) for plugin in claimants}
        # Where one of them can work here, the others are no candidates.
        able = [name for name, report in reports.items() if report.is_available] or list(reports)
        chosen = choose_claimant(str(artifact.path), able, self._order)
        return self._registry.platforms[chosen], reports[chosen]

    def _claims(self, plugin: PlatformPlugin, artifact: ModelArtifact) -> bool:
        try:
            return plugin.platform.claims(artifact)
        except Exception as error:  # noqa: BLE001 - the boundary to a plugin: one that fails on a file does not know it
            self._log.warning("claim failed", platform=plugin.name, path=str(artifact.path), exc_info=error)
            return False

    def _why_missing(self, name: str) -> str:
        for record in self._registry.records:
            if record.kind == "platform" and record.name == name:
                return f"{record.label} is {record.state}: {record.reason}"
        return "no installed package brings it"


def _status(plugin: PlatformPlugin, report: ProbeReport) -> PlatformStatus:
    platform = plugin.platform
    return PlatformStatus(
        id=plugin.name,
        display_name=platform.display_name or platform.name,
        available=report.is_available,
        reason=report.reason,
        devices=report.devices,
        capabilities=platform.capabilities,
        versions=report.versions,
        distribution=f"{plugin.distribution} {plugin.version}".strip(),
    )
