"""Configuration: command line over environment over file over built-in, with where each value came from."""

from cardcage.config.load import ENVIRONMENT, load_config
from cardcage.config.places import Places, default_places
from cardcage.config.values import (
    Config,
    ListenEntry,
    ModelEntry,
    PluginsConfig,
    SchedulingConfig,
    SecurityConfig,
    ServerConfig,
    is_loopback,
)

__all__ = [
    "ENVIRONMENT",
    "Config",
    "ListenEntry",
    "ModelEntry",
    "Places",
    "PluginsConfig",
    "SchedulingConfig",
    "SecurityConfig",
    "ServerConfig",
    "default_places",
    "is_loopback",
    "load_config",
]
