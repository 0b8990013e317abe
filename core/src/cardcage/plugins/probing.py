"""Asking a platform whether it can work here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardcage_sdk.platform import ProbeReport

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardcage.plugins.records import PlatformPlugin

__all__ = ["probe_platform"]


def probe_platform(plugin: PlatformPlugin, *, on_failure: Callable[[Exception], object] | None = None) -> ProbeReport:
    """The platform's own answer, or that its probe failed. May read many files; any thread.

    Args:
        plugin: The platform.
        on_failure: Told what the probe raised.
    """
    try:
        return plugin.platform.probe()
    except Exception as error:  # noqa: BLE001 - the boundary to a plugin: a probe that fails is a reason, not a failure
        if on_failure is not None:
            on_failure(error)
        return ProbeReport.unavailable(f"its probe failed: {type(error).__name__}: {error}")
