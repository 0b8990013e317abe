"""Ask a person at a terminal which one of several is meant."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cardcage.cli.exits import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["can_ask", "choose"]


def can_ask() -> bool:
    """Whether somebody sees a question and can answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def choose(lines: Sequence[str]) -> int:
    """Show the choices on standard error and read one.

    Returns:
        Its index.

    Raises:
        CommandError: The input ended instead.
    """
    for number, line in enumerate(lines, start=1):
        sys.stderr.write(f"{number}  {line}\n")
    while True:
        sys.stderr.write(f"Which one? [1-{len(lines)}] ")
        sys.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:
            raise CommandError("nothing was chosen")
        if answer.strip().isdecimal() and 1 <= int(answer) <= len(lines):
            return int(answer) - 1
