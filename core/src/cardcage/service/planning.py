"""What a load means: which model, which platform, which options, how much memory. Starts nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cardcage.names import check_model_id
from cardcage.scheduling.placement import memory_need
from cardcage.service.defaults import merge_defaults
from cardcage.service.resident import Plan
from cardcage.workers.life import WorkerSpec
from cardcage_sdk.errors import InvalidInstanceCountError, InvalidRequestError, PathNotAllowedError
from cardcage_sdk.ipc.client import EngineTarget
from cardcage_sdk.models import LoadOptions
from cardcage_sdk.options import validate_options

if TYPE_CHECKING:
    from cardcage.catalog import Catalog
    from cardcage.config import Config
    from cardcage.service.platforms import Platforms
    from cardcage_sdk.platform import Platform
    from cardcage_sdk.service import LoadRequest

__all__ = ["Planner", "check_instance_count", "check_load_id"]


MOST_INSTANCES = 1024
"""Bound where a platform has none: an instance may be a process, and a mistyped number must not fill the process table."""


class Planner:
    """Checks everything about a load that can be checked before a process is started."""

    def __init__(self, *, config: Config, catalog: Catalog, platforms: Platforms) -> None:
        self._config = config
        self._catalog = catalog
        self._platforms = platforms

    async def plan(self, request: LoadRequest, *, is_trusted: bool) -> Plan:
        """Find model and platform and work out the rest; files are read and plugins asked in threads.

        Args:
            request: What to load.
            is_trusted: Its path comes from the configuration or the catalog, and may lie anywhere.

        Raises:
            PathNotAllowedError, ModelNotFoundError, InvalidModelError: No such model for this caller.
            UnsupportedPlatformError, PlatformDetectionError: No platform for it.
            InvalidOptionError, InvalidInstanceCountError: Not with these options, or not so many.
        """
        config = self._config
        if request.model_path is None:
            artifact = await asyncio.to_thread(self._catalog.find, request.model_id)
        else:
            path = Path(request.model_path)
            if not is_trusted and not await asyncio.to_thread(config.allows_path, path):
                raise PathNotAllowedError(request.model_path)
            artifact = await asyncio.to_thread(self._catalog.artifact, path)
        plugin, report = await self._platforms.choose(artifact, request.platform)
        platform = plugin.platform
        check_instance_count(request.instance_count, platform)
        options = validate_options(platform, {**config.platform_options.get(plugin.name, {}), **request.options})
        of_model = await asyncio.to_thread(self._catalog.defaults, artifact)
        defaults = merge_defaults(config.defaults, of_model, request.defaults)
        # A longer context takes more memory than the one that the model's own file names.
        loaded = replace(artifact, context_tokens=defaults.max_context_len or artifact.context_tokens)
        estimate = await asyncio.to_thread(platform.estimate, loaded, options)
        return Plan(
            artifact=artifact,
            plugin=plugin,
            devices=report.devices,
            options=options,
            defaults=defaults,
            need=memory_need(estimate, report.devices),
        )

    def worker_spec(self, model_id: str, plan: Plan, *, instances: int) -> WorkerSpec:
        """What a worker is told to load."""
        platform = plan.plugin.platform
        return WorkerSpec(
            model_id=model_id,
            platform=platform,
            target=EngineTarget(path=platform.engine, plugin_file=plan.plugin.plugin_file),
            artifact=plan.artifact,
            options=LoadOptions(
                max_slots=_max_slots(platform, instances),
                context_tokens=plan.defaults.max_context_len,
                options=plan.options,
            ),
            capabilities=platform.capabilities,
            load_timeout_seconds=self._config.server.load_timeout_seconds,
            required_bytes=plan.need.total_bytes,
        )


def check_load_id(model_id: str) -> None:
    """Refuse an id that could not be shown or named.

    Raises:
        InvalidRequestError: With the reason.
    """
    try:
        check_model_id(model_id)
    except ValueError as error:
        raise InvalidRequestError(f"model_id: {error}", param="model_id") from error


def check_instance_count(instance_count: int, platform: Platform | None = None) -> None:
    """Refuse a number of instances that cannot be: below 1, or over what the platform or core says is safe.

    Raises:
        InvalidInstanceCountError: With the bound, where there is one.
    """
    maximum = platform.scaling.maximum if platform is not None else None
    if instance_count < 1:
        raise InvalidInstanceCountError(instance_count, maximum=maximum)
    if instance_count > MOST_INSTANCES:
        raise InvalidInstanceCountError(instance_count, maximum=MOST_INSTANCES, reason=f"at most {MOST_INSTANCES} are")
    if platform is not None and maximum is not None and instance_count > maximum:
        reason = f"platform '{platform.name}' allows at most {maximum}"
        raise InvalidInstanceCountError(instance_count, maximum=maximum, reason=reason)


def _max_slots(platform: Platform, wanted: int) -> int:
    """Slots that a resize may reach without loading anew: what the platform suggests, or what was asked for."""
    if platform.scaling.unit != "slots":
        return 1
    return max(wanted, min(platform.scaling.suggested, platform.scaling.maximum or platform.scaling.suggested))
