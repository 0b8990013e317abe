"""What plugins print while they are asked."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["noise_on_stderr"]

STDOUT = 1
STDERR = 2


@contextmanager
def noise_on_stderr() -> Iterator[None]:
    """Have what this process prints on standard output come on standard error, for the output of a command is read by programs.

    Vendor libraries print past Python, so the descriptor itself is turned. That is the whole process's: for the main thread
    only, before others run.
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        kept = os.dup(STDOUT)
        os.dup2(STDERR, STDOUT)
    except OSError:  # one of them is closed: nobody reads
        yield
        return
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what C code has printed and still holds
        os.dup2(kept, STDOUT)
        os.close(kept)
