"""Put the library of a server together from its configuration and its plugins."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

import structlog

from cardcage.downloads.library import Downloads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from cardcage.catalog import Catalog
    from cardcage.config import Config
    from cardcage.plugins.registry import PluginRegistry
    from cardcage_sdk.platform import Platform
    from cardcage_sdk.sources import Source

__all__ = ["build_library", "configured_sources"]

log = structlog.get_logger("cardcage.downloads")


def configured_sources(config: Config, registry: PluginRegistry) -> dict[str, Source]:
    """The sources, each given its table of the configuration.

    Raises:
        ConfigError: A source refused its settings.
    """
    for name in {*config.source_settings} - {*registry.sources}:
        log.warning("the configuration has a table for a source that is not loaded", table=f"sources.{name}")
    sources = {name: plugin.source for name, plugin in registry.sources.items()}
    for name, source in sources.items():
        source.configure(config.source_settings.get(name, {}))
    return sources


def build_library(
    config: Config, registry: PluginRegistry, catalog: Catalog, *, is_loaded: Callable[[Path], int]
) -> Downloads:
    """The library; starts and opens nothing.

    Raises:
        ConfigError: A source refused its settings.
    """
    sources = configured_sources(config, registry)
    catalog.learn(sources)
    return Downloads(
        catalog=catalog,
        platforms=_in_order(registry, config.platform_order),
        sources=sources,
        allows_path=config.allows_path,
        is_loaded=is_loaded,
        user_agent=f"cardcage/{metadata.version('cardcage')}",
    )


def _in_order(registry: PluginRegistry, order: tuple[str, ...]) -> Mapping[str, Platform]:
    """The configured order first, then by name, so that the same machine always decides alike."""
    names = [name for name in order if name in registry.platforms]
    names += sorted(name for name in registry.platforms if name not in names)
    return {name: registry.platforms[name].platform for name in names}
