"""How long to wait for workers, and how often to replace them."""

from __future__ import annotations

from dataclasses import dataclass, field

from cardcage.scheduling.plan import RestartPolicy

__all__ = ["SupervisionSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionSettings:
    """Deadlines and bounds of supervision. The defaults fit a board; tests shorten them.

    Attributes:
        hello_timeout_seconds: From the start of the process to its first frame (interpreter start and sdk import).
        stop_timeout_seconds: For an engine to close in good order; past it the process group is killed.
        exit_grace_seconds: For a process to end after its pipe has ended, and for its last output to arrive.
        hang_floor_seconds: A worker with running requests may be silent for at least so long.
        prefill_factor: A prefill may take so many times what the measured rate says.
        unmeasured_prefill_tokens_per_second: Rate taken where none was measured yet; low, so that a slow chip is not killed.
        stall_factor: One request may be silent for so many deadlines while others of its worker go on; a text pipeline may
            hold a long tool call back until it is whole.
        log_tail_lines: Last lines of a worker's output that are kept.
        log_line_bytes: A longer line of output is cut into pieces of this length.
        log_lines_per_second: Lines logged per worker; more are counted, kept in the tail and not logged.
        restart: Replacement of workers that died after they were ready.
    """

    hello_timeout_seconds: float = 60.0
    stop_timeout_seconds: float = 10.0
    exit_grace_seconds: float = 0.3
    hang_floor_seconds: float = 60.0
    prefill_factor: float = 4.0
    unmeasured_prefill_tokens_per_second: float = 4.0
    stall_factor: float = 10.0
    log_tail_lines: int = 100
    log_line_bytes: int = 4096
    log_lines_per_second: int = 100
    restart: RestartPolicy = field(default_factory=RestartPolicy)
