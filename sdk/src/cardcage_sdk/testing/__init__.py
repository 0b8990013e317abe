"""What tests are made of: engines that do as they are told, engines that fail as they are told, and the conformance kit.

- `scripted`: an engine whose answers stand in a file, in both shapes; `faulty`: the same, with any fault in any phase of its
  life; `platforms`: the platforms of both;
- `launch`: one real worker process for a test, with no pool and no server;
- `platform_suite`, `dialect_suite`: the tests that every platform and dialect passes.

All of it is product: public, documented, used by Cardcage's own tests and by authors of plugins alike. The names below are
imported when they are first used, so that a worker that runs a scripted engine does not pay for the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cardcage_sdk.testing.dialect_suite import DialectSuite
    from cardcage_sdk.testing.launch import LaunchedWorker, model_artifact
    from cardcage_sdk.testing.platform_suite import PlatformSuite
    from cardcage_sdk.testing.platforms import (
        FaultyBatchPlatform,
        FaultyPlatform,
        ScriptedBatchPlatform,
        ScriptedPlatform,
    )

__all__ = [
    "DialectSuite",
    "FaultyBatchPlatform",
    "FaultyPlatform",
    "LaunchedWorker",
    "PlatformSuite",
    "ScriptedBatchPlatform",
    "ScriptedPlatform",
    "model_artifact",
]

_HOMES = {
    "DialectSuite": "dialect_suite",
    "FaultyBatchPlatform": "platforms",
    "FaultyPlatform": "platforms",
    "LaunchedWorker": "launch",
    "PlatformSuite": "platform_suite",
    "ScriptedBatchPlatform": "platforms",
    "ScriptedPlatform": "platforms",
    "model_artifact": "launch",
}


def __getattr__(name: str) -> object:
    """Import a public name from its module."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
