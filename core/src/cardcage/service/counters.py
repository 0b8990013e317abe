"""What happened since the server started, for metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from cardcage_sdk.capabilities import Task
    from cardcage_sdk.events import Finished

__all__ = ["NoObserver", "Observer", "RequestCounters"]


class Observer(Protocol):
    """Is told what happens to requests and loads, in the event loop's thread, as it happens; must not raise or wait.

    Models are named only when they are loaded, so that a client cannot make names up.
    """

    def on_queued(self, model: str, seconds: float) -> None:
        """A request has got its lease after so long a wait."""
        ...

    def on_first_token(self, model: str, seconds: float) -> None:
        """An answer has begun, so long after its request came: load, preparation, queue and prefill included."""
        ...

    def on_choice(self, model: str, finished: Finished) -> None:
        """One choice of an answer has ended whole."""
        ...

    def on_prompt(self, model: str, tokens: int) -> None:
        """An embedding or rerank request of so many tokens has ended whole."""
        ...

    def on_end(self, task: Task, outcome: str) -> None:
        """A request has ended: `finished`, `left` where its client went away, or the code of its error."""
        ...

    def on_loaded(self, model: str, seconds: float) -> None:
        """A worker was ready, so long after its start."""
        ...


class NoObserver:
    """Nobody looks."""

    def on_queued(self, model: str, seconds: float) -> None:
        """Do nothing, as the others."""

    def on_first_token(self, model: str, seconds: float) -> None:
        """Do nothing."""

    def on_choice(self, model: str, finished: Finished) -> None:
        """Do nothing."""

    def on_prompt(self, model: str, tokens: int) -> None:
        """Do nothing."""

    def on_end(self, task: Task, outcome: str) -> None:
        """Do nothing."""

    def on_loaded(self, model: str, seconds: float) -> None:
        """Do nothing."""


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
        observer: Is told each of them by itself.
    """

    finished: int = 0
    left: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float = 0.0
    observer: Observer = field(default_factory=NoObserver)
