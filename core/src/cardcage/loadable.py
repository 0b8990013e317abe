"""What can be told of the configuration's models and platforms before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cardcage_sdk.options import check_options

if TYPE_CHECKING:
    from cardcage.config import Config
    from cardcage.plugins import PluginRegistry

__all__ = ["model_problems", "option_problems"]


def option_problems(config: Config, registry: PluginRegistry) -> list[str]:
    """Load options in the configuration that their platform would refuse at every load."""
    problems: list[str] = []
    for name, options in config.platform_options.items():
        plugin = registry.platforms.get(name)
        if plugin is not None:
            problems += [f"[platforms.{name}] {problem}" for problem in check_options(plugin.platform, options)]
    return problems


def model_problems(config: Config, registry: PluginRegistry) -> list[tuple[str, str]]:
    """Models of the configuration that cannot be loaded as they stand: each with its id and what is wrong."""
    problems: list[tuple[str, str]] = []
    for entry in config.models:
        if not Path(entry.model_path).exists():
            problems.append((entry.model_id, f"there is no '{entry.model_path}'"))
        if entry.platform is None:
            continue
        plugin = registry.platforms.get(entry.platform)
        if plugin is None:
            problems.append((entry.model_id, f"platform '{entry.platform}' is not loaded"))
        else:
            problems += [(entry.model_id, f"options: {one}") for one in check_options(plugin.platform, entry.options)]
    return problems
