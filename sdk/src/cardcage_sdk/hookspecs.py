"""The hooks that a plugin may implement.

All hooks are synchronous, are called once at start-up in the server process, one plugin at a time, and only declare.
Nothing on the request path goes through pluggy, and the order of calls never matters: a name or a route claimed twice is a
start-up error that names both distributions. A plugin is a module named by an entry point of the group of its kind; it
implements the hook of that kind with `hookimpl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardcage_sdk.dialect import Dialect
    from cardcage_sdk.platform import Platform
    from cardcage_sdk.sources import Source

__all__ = ["CONTRACT_VERSION", "ENTRY_POINT_GROUPS", "PROJECT_NAME", "hookimpl", "hookspec"]

PROJECT_NAME = "cardcage"

CONTRACT_VERSION = (0, 1)
"""Major and minor version of this contract.

A plugin module may set `CARDCAGE_CONTRACT = (major, minor)`; without it the version that it was written for is taken from
the range on `cardcage-sdk` in its distribution's metadata. Another major is refused with a sentence that says what to
upgrade. While the major is 0, the minor counts as the major.
"""

ENTRY_POINT_GROUPS = {
    "platform": "cardcage.platforms",
    "dialect": "cardcage.dialects",
    "source": "cardcage.sources",
}
"""Entry-point group of each kind of plugin. The entry's name is the plugin's id, its value a module."""

hookspec = pluggy.HookspecMarker(PROJECT_NAME)
hookimpl = pluggy.HookimplMarker(PROJECT_NAME)


@hookspec
def register_platforms() -> Sequence[type[Platform]]:  # type: ignore[empty-body]
    """Declare platforms.

    Called once at start-up for each plugin of the group `cardcage.platforms`. The returned classes are constructed once
    each, with no argument. Importing the module and calling this must not import a native runtime, touch a device, start a
    thread or print.

    Returns:
        `Platform` subclasses, usually one.
    """


@hookspec
def register_dialects() -> Sequence[type[Dialect]]:  # type: ignore[empty-body]
    """Declare dialects.

    Called once at start-up for each plugin of the group `cardcage.dialects`. The returned classes are constructed once each,
    with no argument, and asked for their blueprint when the application is built.

    Returns:
        `Dialect` subclasses, usually one.
    """


@hookspec
def register_sources() -> Sequence[type[Source]]:  # type: ignore[empty-body]
    """Declare sources of models.

    Called once at start-up for each plugin of the group `cardcage.sources`. The returned classes are constructed once each,
    with no argument, and given their table of the configuration. Importing the module and calling this must not open a
    connection, start a thread or print.

    Returns:
        `Source` subclasses, usually one.
    """
