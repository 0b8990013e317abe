"""For people who run hypercorn themselves: `hypercorn 'cardcage.asgi:create()'`.

The call is part of the address, so that importing this module does nothing. The configuration comes from the file and the
environment (`CARDCAGE_CONFIG` and its like); address, TLS and log of the server are hypercorn's own options. Exactly one
worker: a second one is refused by the lock on the data directory. `cardcage serve` is what we recommend: under plain
hypercorn new connections hang during the shutdown instead of being told to try again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quart import Quart

__all__ = ["create"]


def create() -> Quart:
    """Build the application from file and environment.

    Raises:
        ConfigError: The configuration is wrong.
        PluginError: Two plugins conflict, or a required one is missing.
    """
    from cardcage.app import create_app
    from cardcage.config import load_config
    from cardcage.logs import configure_logs
    from cardcage.plugins import PluginRegistry

    config = load_config()
    configure_logs(level=config.server.log_level, log_format=config.server.log_format)
    return create_app(config, PluginRegistry.discover(config))
