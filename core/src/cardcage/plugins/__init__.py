"""Which platforms, dialects and sources are installed, which of them work, and why the others do not."""

from cardcage.plugins.records import DialectPlugin, Kind, PlatformPlugin, PluginRecord, SourcePlugin, State
from cardcage.plugins.registry import PluginRegistry

__all__ = ["DialectPlugin", "Kind", "PlatformPlugin", "PluginRecord", "PluginRegistry", "SourcePlugin", "State"]
