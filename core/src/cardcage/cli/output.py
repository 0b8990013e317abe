"""What commands print: tables and notes for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["note", "print_json", "print_table", "shown", "stdout_console"]

PIPE_WIDTH = 240
"""Columns of a table that goes to a program: wide enough that no line is broken."""


def stdout_console() -> Console:
    """Standard output, made anew because tests and pipes replace it."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=False)


def note(text: str) -> None:
    """A line on standard error that is no part of the answer."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(shown(text), style="dim", markup=False)


def shown(text: str) -> str:
    """A text that may come from elsewhere, with nothing in it that a terminal would obey."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n")


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = "") -> None:
    """A table, or the sentence `empty` on standard error where there are no rows."""
    if not rows and empty:
        note(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    stdout_console().print(table, markup=False)
