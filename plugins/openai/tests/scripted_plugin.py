"""Loaded by the servers of these tests with `--plugin`: platforms whose answers, and faults, stand in a file."""

from __future__ import annotations

from collections.abc import Sequence

from cardcage_sdk.hookspecs import hookimpl
from cardcage_sdk.platform import Platform
from cardcage_sdk.testing.platforms import FaultyPlatform, ScriptedBatchPlatform, ScriptedPlatform


@hookimpl
def register_platforms() -> Sequence[type[Platform]]:
    """Declare them."""
    return [ScriptedPlatform, ScriptedBatchPlatform, FaultyPlatform]
