"""The ways in which a worker can go wrong, each done for real. Bounded: nothing here takes a machine down."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias, get_args

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["FAULT_KINDS", "FAULT_PHASES", "IMPORT_VARIABLE", "FaultKind", "FaultPhase", "commit_fault"]

FaultKind: TypeAlias = Literal[
    "segfault",
    "sigkill",
    "abort",
    "exit",
    "hang",
    "hang_gil",
    "noise",
    "memory",
    "leak",
    "exception",
    "lie_frame",
    "lie_no_finished",
    "lie_after_finished",
    "lie_parsed",
    "lie_choice",
]
"""What goes wrong.

`segfault`, `sigkill`, `abort`: death by SIGSEGV, SIGKILL, SIGABRT. `exit`: the process exits with status 3. `hang`: the call
never returns, but lets go of the GIL. `hang_gil`: it never returns and holds the GIL. `noise`: text, bytes and a partial line on
descriptors 1 and 2, then all goes on. `memory`: takes memory up to a bound, then MemoryError. `leak`: keeps memory for good and
goes on. `exception`: a RuntimeError. The lies break the contract: `lie_frame` writes bytes into the pipe that are no frame;
`lie_no_finished` ends an answer without its `Finished` (a step loop just never ends it); `lie_after_finished` goes on after it;
`lie_parsed` yields a kind of output that is not declared; `lie_choice` answers for a choice that nobody asked for.
"""

FaultPhase: TypeAlias = Literal["import", "load", "self_test", "prepare", "prefill", "decode", "cancel", "close"]
"""When it goes wrong. The `lie_...` kinds but for `lie_frame` are about `decode` only."""

FAULT_KINDS: Final[tuple[str, ...]] = get_args(FaultKind)
FAULT_PHASES: Final[tuple[str, ...]] = get_args(FaultPhase)

IMPORT_VARIABLE: Final = "CARDCAGE_FAULT_AT_IMPORT"
"""Environment variable that names the kind of a fault at import."""

_LEAKED: list[bytearray] = []
_CHUNK_BYTES: Final = 16 << 20


def commit_fault(kind: str, *, amount_bytes: int = 256 << 20) -> None:
    """Go wrong now; returns only after `noise` and `leak` (and `lie_frame`, when the pipe is broken).

    Args:
        kind: Of `FaultKind`; the lies that an engine has to tell itself do nothing here.
        amount_bytes: How much memory `memory` takes at most, and `leak` each time.
    """
    if kind in _DEATHS:
        _DEATHS[kind]()
    elif kind == "noise":
        _make_noise()
    elif kind == "memory":
        _fill_memory(amount_bytes)
    elif kind == "leak":
        _LEAKED.append(_touched(amount_bytes))
    elif kind == "exception":
        raise RuntimeError("this engine was told to raise")
    elif kind == "lie_frame":
        _break_pipe()


def _segfault() -> NoReturn:
    # The interpreter's own handler would print a long traceback of it first, as it does for real crashes.
    ctypes.string_at(0)
    raise AssertionError("address 0 could be read")


def _sigkill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()
    raise AssertionError("SIGKILL was survived")


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)


def _hang_holding_gil() -> NoReturn:
    libc = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL during the call
    while True:
        libc.sleep(3600)


_DEATHS: Final[dict[str, Callable[[], NoReturn]]] = {
    "segfault": _segfault,
    "sigkill": _sigkill,
    "abort": os.abort,
    "exit": lambda: os._exit(3),
    "hang": _hang,
    "hang_gil": _hang_holding_gil,
}


def _make_noise() -> None:
    """What vendor libraries do: C and Python, text and bytes that are none, more than a pipe holds, no last newline."""
    libc = ctypes.CDLL(None)
    libc.puts(b"I rkllm: vendor library speaking on descriptor 1")
    print("a line by print()")
    for _ in range(64):
        os.write(1, b"x" * 2047 + b"\n")
        os.write(2, b"\xff\x00\xfe" * 341 + b"\n")
    os.write(1, b"half a line")


def _touched(amount_bytes: int) -> bytearray:
    block = bytearray(amount_bytes)
    for offset in range(0, amount_bytes, 4096):
        block[offset] = 1
    return block


def _fill_memory(bound_bytes: int) -> NoReturn:
    blocks = [_touched(_CHUNK_BYTES) for _ in range(0, bound_bytes, _CHUNK_BYTES)]
    raise MemoryError(f"{len(blocks) * _CHUNK_BYTES} bytes taken and the bound reached")


def _break_pipe() -> None:
    """Write into the worker's own pipe, as a stray pointer or a wrong descriptor would."""
    descriptor = int(sys.argv[sys.argv.index("--fd") + 1])
    os.write(descriptor, b"\xff" * 64)
