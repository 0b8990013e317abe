"""Options that several commands share, and the text below every command's help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["EPILOG", "ConfigOption", "JsonOption", "PlatformOption", "PluginOption", "UrlOption"]

EPILOG = (
    "Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 no server answers, 4 wrong configuration or plugins, "
    "5 port or data directory in use."
)

ConfigOption = Annotated[Path | None, typer.Option("--config", "-c", help="Configuration file.", show_default=False)]
UrlOption = Annotated[str | None, typer.Option("--url", help="The server, if not this machine's.", show_default=False)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PluginOption = Annotated[
    list[Path] | None, typer.Option("--plugin", help="Source file of an unpackaged plugin; may be repeated.")
]
PlatformOption = Annotated[
    str | None, typer.Option("--platform", "-p", help="PLATFORM or PLATFORM/CHIP, to choose between variants.")
]
