"""Exit codes, and the error that carries one."""

from __future__ import annotations

__all__ = ["CONFIGURATION", "FAILED", "OCCUPIED", "OK", "UNREACHABLE", "USAGE", "CommandError"]

OK = 0
FAILED = 1
"""The server refused or failed what was asked, or `doctor` found a fault."""
USAGE = 2
"""The command line is wrong."""
UNREACHABLE = 3
"""No server answers."""
CONFIGURATION = 4
"""The configuration is wrong, plugins conflict, or a required plugin does not load."""
OCCUPIED = 5
"""The port or the data directory is used by another program."""


class CommandError(Exception):
    """Ends the command with one line on standard error.

    Attributes:
        exit_code: One of this module's.
        code: The server's own name of the error, where it told one.
    """

    def __init__(self, message: str, *, exit_code: int = FAILED, code: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.code = code
