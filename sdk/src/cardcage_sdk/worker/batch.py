"""Drives a `BatchEngine`: everything on the main thread, one step after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.embeddings import EmbedResult, RerankResult
from cardcage_sdk.errors import CardcageError, InvalidInstanceCountError
from cardcage_sdk.events import Failed
from cardcage_sdk.worker.driver import (
    Driver,
    DriverContext,
    as_engine_error,
    new_run,
    send_prepared,
    tell_cpu_threads,
)
from cardcage_sdk.worker.log import log_breach, log_exception
from cardcage_sdk.worker.runs import ChatRun, check_result

if TYPE_CHECKING:
    from cardcage_sdk.embeddings import EmbedRequest, RerankRequest
    from cardcage_sdk.engine import BatchEngine, BatchOutput, Request
    from cardcage_sdk.events import Accepted

__all__ = ["BatchDriver"]

# What an engine may raise besides errors of the tree and still be asked to go on: everything but the end of the process.
_ENGINE_FAULTS = (Exception, SystemExit)


class BatchDriver(Driver):
    """See `Driver`. A request that fails is also cancelled in the engine, so that it is forgotten on both sides."""

    def __init__(self, engine: BatchEngine, context: DriverContext) -> None:
        self._engine = engine
        self._context = context
        self._runs: dict[str, ChatRun | EmbedRequest | RerankRequest] = {}
        self._ended_now: set[str] = (
            set()
        )  # ended by the worker in the step being read, whose later outputs are no breach
        self.steps = 0

    @property
    def running(self) -> int:
        """Requests in the engine."""
        return len(self._runs)

    @property
    def wants_turn(self) -> bool:
        """A request runs."""
        return bool(self._runs)

    def prepare(self, request: Request) -> None:
        """Answer at once: this is between two steps."""
        outcome: Accepted | CardcageError
        try:
            outcome = self._engine.prepare(request)
        except _ENGINE_FAULTS as error:
            outcome = as_engine_error(error, "prepare")
        send_prepared(self._context, request.id, outcome)

    def start(self, request: Request, accepted: Accepted | None) -> None:
        """Add it to the batch."""
        try:
            if isinstance(request, ChatRequest):
                self._runs[request.id] = new_run(self._context, request, accepted or self._engine.prepare(request))
            else:
                self._runs[request.id] = request
            self._engine.add(request)
        except _ENGINE_FAULTS as error:
            self._runs.pop(request.id, None)
            self._fail(request.id, as_engine_error(error, "add"))

    def cancel(self, request_id: str) -> None:
        """Drop it before the next step."""
        if self._forget(request_id):
            self._context.outbox.released.append(request_id)

    def turn(self) -> None:
        """Do one step and hand out what came of it."""
        try:
            outputs = [(request_id, output) for request_id, output in self._engine.step()]
        except _ENGINE_FAULTS as error:
            failure = as_engine_error(error, "step")
            for request_id in list(self._runs):
                self._drop(request_id, failure)
            return
        finally:
            self.steps += 1
        self._ended_now.clear()
        for request_id, output in outputs:
            self._take(request_id, output)

    def resize(self, slots: int) -> int:
        """Pass it on where no more than `slots` requests run."""
        if len(self._runs) > slots:
            raise InvalidInstanceCountError(slots, reason=f"{len(self._runs)} requests run")
        try:
            return self._engine.resize(slots)
        except _ENGINE_FAULTS as error:
            raise as_engine_error(error, "resize") from error

    def set_cpu_threads(self, threads: int) -> None:
        """Pass it on: this is between two steps."""
        tell_cpu_threads(self._engine, threads)

    def close(self) -> bool:
        """Cancel everything and close the engine."""
        for request_id in list(self._runs):
            self._forget(request_id)
        self._engine.close()
        return True

    def _take(self, request_id: str, output: BatchOutput) -> None:
        run = self._runs.get(request_id)
        if run is None:
            if request_id not in self._ended_now:
                log_breach(f"step() yielded {type(output).__name__} for request {request_id}, which does not run")
            return
        outbox = self._context.outbox
        if isinstance(output, Failed):
            del self._runs[request_id]
            self._fail(request_id, output.error)
            return
        try:
            if isinstance(run, ChatRun) and not isinstance(output, (EmbedResult, RerankResult)):
                outbox.add(request_id, run.feed(output))
                self._tell(request_id, run)
                return
            outbox.results[request_id] = check_result(run, output)  # type: ignore[arg-type]  # it refuses a wrong pair
            del self._runs[request_id]
            outbox.released.append(request_id)
        except _ENGINE_FAULTS as error:
            self._drop(request_id, as_engine_error(error, "The engine's output"))

    def _tell(self, request_id: str, run: ChatRun) -> None:
        """Tell the engine what the text pipeline found, before its next step."""
        while run.reasoned:
            self._engine.reasoning_ended(request_id, run.reasoned.pop())
        if run.is_done:
            if run.stopped:
                self._ended_now.add(request_id)
                if not self._forget(request_id):
                    return
            else:
                del self._runs[request_id]
            self._context.outbox.released.append(request_id)
        else:
            while run.stopped:
                self._engine.cancel(request_id, run.stopped.pop())

    def _drop(self, request_id: str, error: CardcageError) -> None:
        """Fail a request that the engine may still hold."""
        self._ended_now.add(request_id)
        if self._forget(request_id):
            self._fail(request_id, error)
        else:
            self._context.outbox.fail(request_id, error)

    def _forget(self, request_id: str) -> bool:
        """Have the engine forget a request; False where that failed, and the request must not count as released."""
        if self._runs.pop(request_id, None) is None:
            return True
        try:
            self._engine.cancel(request_id)
        except _ENGINE_FAULTS as error:
            # Without a release core waits for its declared time, then ends this worker: nothing else is safe.
            log_exception(f"cancel of request {request_id} failed", error)
            return False
        return True

    def _fail(self, request_id: str, error: CardcageError) -> None:
        self._context.outbox.fail(request_id, error)
        self._context.outbox.released.append(request_id)
