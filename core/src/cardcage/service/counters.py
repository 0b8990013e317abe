"""What happened since the server started, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["RequestCounters"]


@dataclass(slots=True)
class RequestCounters:
    """Counts of requests; plain numbers that only grow.

    Attributes:
        finished: Ended whole.
        left: Their client went away first.
        failed: Ended with an error, by its code.
        prompt_tokens: Of requests that ended whole.
        completion_tokens: Of requests that ended whole.
        queue_seconds: Time that requests with a lease had waited for it, added up.
    """

    finished: int = 0
    left: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float = 0.0
