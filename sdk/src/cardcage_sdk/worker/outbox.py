"""What waits to be sent to the server, gathered into one frame a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardcage_sdk.errors import EngineFailedError, WorkerProtocolError
from cardcage_sdk.events import Failed
from cardcage_sdk.ipc.frames import Frame, Result, Step, encode_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cardcage_sdk.embeddings import EmbedResult, RerankResult
    from cardcage_sdk.errors import CardcageError
    from cardcage_sdk.ipc.frames import StepEvent

__all__ = ["Outbox"]


class Outbox:
    """Events, results and releases since the last `send`. Main thread only.

    Attributes:
        events: Pairs of request id and event, in order.
        released: Requests that the engine let go of.
        results: Results of embeddings and rerank by request.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, StepEvent]] = []
        self.released: list[str] = []
        self.results: dict[str, EmbedResult | RerankResult] = {}

    def add(self, request_id: str, events: Iterable[StepEvent]) -> None:
        """Append events of a request."""
        self.events += [(request_id, event) for event in events]

    def fail(self, request_id: str, error: CardcageError) -> None:
        """Append the error that ends a request."""
        self.events.append((request_id, Failed(error=error)))

    def clear(self) -> None:
        """Forget everything."""
        self.events, self.released, self.results = [], [], {}

    def send(self, send: Callable[[Frame], None]) -> list[str]:
        """Send everything and start anew.

        Returns:
            Requests of which the engine made something that no frame can carry; they were sent that error instead, and the
            engine is to drop them.
        """
        failed: list[str] = []
        for request_id, result in self.results.items():
            try:
                send(Result(request_id=request_id, result=result))
            except WorkerProtocolError as error:
                failed.append(request_id)
                self.fail(request_id, _unsendable(error))
        if self.events or self.released:
            step = Step(events=tuple(self.events), released=tuple(self.released))
            try:
                send(step)
            except WorkerProtocolError:
                failed += self._send_one_by_one(send)
        self.clear()
        return failed

    def _send_one_by_one(self, send: Callable[[Frame], None]) -> list[str]:
        """Find which event cannot be sent, so that only its request fails."""
        failed: list[str] = []
        for pair in self.events:
            request_id = pair[0]
            if request_id in failed:
                continue
            step = Step(events=(pair,))
            try:
                encode_frame(step)
            except WorkerProtocolError as error:
                failed.append(request_id)
                step = Step(events=((request_id, Failed(error=_unsendable(error))),))
            send(step)
        send(Step(released=tuple(self.released)))
        return failed


def _unsendable(error: WorkerProtocolError) -> EngineFailedError:
    return EngineFailedError(f"The engine's output cannot be sent: {error.message}")
