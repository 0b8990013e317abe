"""Alive, ready and hung: how long silence of a working engine is legitimate. Pure but for the clock that it is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.embeddings import EmbedRequest
from cardcage_sdk.events import Accepted, ChatEvent, Progress

if TYPE_CHECKING:
    from cardcage.workers.settings import SupervisionSettings
    from cardcage_sdk.engine import Request

__all__ = ["CallProgress", "expected_tokens", "progress_deadline"]

_BYTES_PER_TOKEN = 2
"""Low on purpose, where the engine cannot count: a prompt taken for longer than it is only waits longer."""


def expected_tokens(request: Request, accepted: Accepted | None) -> int:
    """Prompt tokens of a request: as `prepare` counted them, else guessed from its text, rather too many."""
    if accepted is not None and accepted.prompt_tokens is not None:
        return accepted.prompt_tokens
    if isinstance(request, ChatRequest):
        if isinstance(request.prompt, tuple):
            return len(request.prompt)
        texts = [request.prompt or "", request.suffix or "", *(message.text for message in request.messages)]
    elif isinstance(request, EmbedRequest):
        counted = sum(len(text) for text in request.inputs if not isinstance(text, str))
        return counted + _guess([text for text in request.inputs if isinstance(text, str)])
    else:
        # A cross-encoder reads the query again with every document.
        texts = [*request.documents, *(request.query for _ in request.documents)]
    return _guess(texts)


def _guess(texts: list[str]) -> int:
    return sum(len(text.encode("utf-8", "replace")) for text in texts) // _BYTES_PER_TOKEN


@dataclass(slots=True, kw_only=True)
class CallProgress:
    """What one running call has shown so far.

    Attributes:
        prompt_tokens: Length of its prompt.
        computed_tokens: How much of it is known to be computed.
        last_at: Time in seconds of its start or its last event.
    """

    prompt_tokens: int
    last_at: float
    computed_tokens: int = 0

    @property
    def remaining_tokens(self) -> int:
        """Prompt tokens that may still have to be computed before the next event."""
        return max(0, self.prompt_tokens - self.computed_tokens)

    def saw(self, event: ChatEvent, *, now: float) -> None:
        """Take an event into account."""
        self.last_at = now
        if isinstance(event, Progress):
            if event.prefill_tokens is not None:
                self.computed_tokens = max(self.computed_tokens, event.prefill_tokens)
        elif not isinstance(event, Accepted):
            self.computed_tokens = self.prompt_tokens


def progress_deadline(
    settings: SupervisionSettings, *, remaining_tokens: int, prefill_tokens_per_second: float | None
) -> float:
    """Seconds for which a worker with running requests may show no progress.

    Args:
        settings: Floor, factor, and the rate to assume.
        remaining_tokens: Prompt tokens that its requests still have to have computed, together.
        prefill_tokens_per_second: Measured rate, or None.
    """
    rate = prefill_tokens_per_second or settings.unmeasured_prefill_tokens_per_second
    return max(settings.hang_floor_seconds, remaining_tokens / rate * settings.prefill_factor)
