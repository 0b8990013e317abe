"""What this machine has, as the choice of a variant needs it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cardcage.downloads.fitting import Machine, PlatformFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage_sdk.platform import Platform

__all__ = ["read_machine"]


def read_machine(platforms: Mapping[str, Platform]) -> Machine:
    """Probe every platform, in the order given. Reads files; call it in a thread."""
    return Machine(
        platforms=tuple(_facts(name, platform) for name, platform in platforms.items()),
        memory_bytes=_memory_bytes(),
    )


def _facts(name: str, platform: Platform) -> PlatformFacts:
    report = platform.probe()
    chips = tuple(dict.fromkeys(device.chip for device in report.devices))
    own = [device.memory_bytes for device in report.devices if device.memory_bytes is not None]
    return PlatformFacts(
        id=name,
        is_available=report.is_available,
        reason=report.reason,
        chips=chips,
        memory_bytes=max(own) if own else None,
        file_patterns=platform.file_patterns,
    )


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
