"""The worker's own lines on standard error, between those of vendor code; the server keeps them."""

from __future__ import annotations

import sys
import traceback

__all__ = ["BREACH", "log", "log_breach", "log_exception"]

BREACH = "contract breach"
"""Begins a line about an engine that does not keep its contract; the conformance kit looks for it."""


def log(message: str) -> None:
    """Write one line."""
    sys.stderr.write(f"cardcage-worker: {message}\n")
    sys.stderr.flush()


def log_breach(message: str) -> None:
    """Write one line about an engine that does not keep its contract and that the worker could live with."""
    log(f"{BREACH}: {message}")


def log_exception(what: str, error: BaseException) -> None:
    """Write a line and the traceback."""
    log(what)
    traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()
