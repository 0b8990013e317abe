"""Getting models: asking sources, the one downloader, and the pulls that belong to the server."""

from cardcage.downloads.assembly import build_library, configured_sources
from cardcage.downloads.library import Downloads
from cardcage.downloads.transfer import RetryPolicy

__all__ = ["Downloads", "RetryPolicy", "build_library", "configured_sources"]
