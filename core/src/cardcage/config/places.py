"""Where configuration and data live when nobody says so."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import platformdirs

__all__ = ["SERVICE_CONFIG", "SERVICE_DATA", "Places", "default_places"]

SERVICE_CONFIG = Path("/etc/cardcage/config.toml")
SERVICE_DATA = Path("/var/lib/cardcage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Default paths; nothing is created by naming them.

    Attributes:
        config_file: Read if it exists.
        data_dir: Lock, log of a server started in the background, database; the model store is `models` below it.
    """

    config_file: Path
    data_dir: Path


def default_places(*, service_config: Path = SERVICE_CONFIG, service_data: Path = SERVICE_DATA) -> Places:
    """The service's paths for root on a machine that is set up for the service, the XDG directories otherwise.

    A service that runs as a user of its own names its paths in its unit (`examples/cardcage.service`), so that the same
    user on a shell is not mistaken for it.
    """
    if os.geteuid() == 0 and (service_config.is_file() or service_data.is_dir()):
        return Places(config_file=service_config, data_dir=service_data)
    return Places(
        config_file=platformdirs.user_config_path("cardcage") / "config.toml",
        data_dir=platformdirs.user_data_path("cardcage"),
    )
