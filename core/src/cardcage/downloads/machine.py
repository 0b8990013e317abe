"""What this machine has, as the choice of a variant needs it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import structlog

from cardcage.downloads.fitting import Machine, PlatformFacts
from cardcage_sdk.platform import ProbeReport

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage_sdk.models import ModelArtifact
    from cardcage_sdk.platform import Platform

__all__ = ["claimants", "read_machine"]

log = structlog.get_logger("cardcage.downloads")


def read_machine(platforms: Mapping[str, Platform]) -> Machine:
    """Probe every platform, in the order given. Reads files; call it in a thread."""
    return Machine(
        platforms=tuple(_facts(name, platform) for name, platform in platforms.items()),
        memory_bytes=_memory_bytes(),
    )


def claimants(platforms: Mapping[str, Platform], artifact: ModelArtifact) -> list[str]:
    """The platforms that say that these files are theirs, in the order given. Reads files; call it in a thread."""
    found: list[str] = []
    for name, platform in platforms.items():
        try:
            is_claimed = platform.claims(artifact)
        except Exception as error:  # noqa: BLE001 - named boundary: a platform is a plugin
            log.warning("claim failed", platform=name, error=str(error))
            continue
        if is_claimed:
            found.append(name)
    return found


def _facts(name: str, platform: Platform) -> PlatformFacts:
    try:
        report = platform.probe()
    except Exception as error:  # noqa: BLE001 - named boundary: a plugin that fails is not available
        log.warning("probe failed", platform=name, error=str(error))
        report = ProbeReport.unavailable(f"its probe failed with {type(error).__name__}")
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
