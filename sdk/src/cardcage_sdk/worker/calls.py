"""Drives an `Engine`: each call on a thread, the outcome handed to the main thread."""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.embeddings import EmbedRequest
from cardcage_sdk.errors import CardcageError, EngineFailedError, UnsupportedError
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
    from collections.abc import Iterable, Iterator

    from cardcage_sdk.embeddings import EmbedResult, RerankResult
    from cardcage_sdk.engine import Engine, Request
    from cardcage_sdk.events import Accepted, EngineOutput
    from cardcage_sdk.ipc.frames import StepEvent

__all__ = ["CallDriver"]


class _Call:
    """One call of the engine. `is_cancelled` is set by the main thread and read by the call's thread."""

    def __init__(self, request: Request, accepted: Accepted | None) -> None:
        self.request = request
        self.accepted = accepted
        self.is_cancelled = False


class CallDriver(Driver):
    """See `Driver`. Calls run on `max_parallel` threads, `prepare` on one more."""

    def __init__(self, engine: Engine, context: DriverContext) -> None:
        self._engine = engine
        self._context = context
        self._calls: dict[str, _Call] = {}
        self._threads: int | None = None  # waits for the moment when no call runs
        self._preparing: dict[str, Future[None]] = {}
        self._preparer = ThreadPoolExecutor(1, thread_name_prefix="cardcage-prepare")
        self._callers = ThreadPoolExecutor(max(1, context.max_parallel), thread_name_prefix="cardcage-call")
        self._futures: set[Future[None]] = set()
        self.steps = 0

    @property
    def running(self) -> int:
        """Calls that have not ended."""
        return len(self._calls)

    @property
    def wants_turn(self) -> bool:
        """Never: outcomes come through the inbox."""
        return False

    def prepare(self, request: Request) -> None:
        """Ask the engine on a thread of its own, while calls run."""
        future = self._preparer.submit(self._prepare, request)
        self._preparing[request.id] = future
        future.add_done_callback(lambda _: self._context.post(lambda: self._prepared(request.id)))

    def start(self, request: Request, accepted: Accepted | None) -> None:
        """Call the engine on one of the threads."""
        call = _Call(request, accepted)
        self._calls[request.id] = call
        future = self._callers.submit(self._run, call)
        self._futures.add(future)
        future.add_done_callback(lambda done: self._context.post(lambda: self._end(request.id, done)))

    def cancel(self, request_id: str) -> None:
        """Ask the engine to stop; the release follows when its call has ended."""
        preparing = self._preparing.get(request_id)
        if preparing is not None:
            preparing.cancel()
        call = self._calls.get(request_id)
        if call is None:
            self._context.outbox.released.append(request_id)
        elif not call.is_cancelled:
            call.is_cancelled = True
            try:
                self._engine.cancel(request_id)
            except Exception as error:  # noqa: BLE001 - the call itself tells whether it stopped: core waits for its release
                log_exception(f"cancel of request {request_id} failed", error)

    def turn(self) -> None:
        """Nothing: there are no steps."""

    def resize(self, slots: int) -> int:
        """Refuse: this engine scales by process."""
        del slots
        raise UnsupportedError("resize")

    def set_cpu_threads(self, threads: int) -> None:
        """Pass it on now, or when the last call has ended."""
        if self._calls:
            self._threads = threads
        else:
            tell_cpu_threads(self._engine, threads)

    def close(self) -> bool:
        """Cancel everything, wait, and close the engine."""
        for request_id in list(self._calls):
            self.cancel(request_id)
        self._preparer.shutdown(wait=False, cancel_futures=True)
        if wait(self._futures, timeout=self._context.cancel_seconds).not_done:
            return False
        self._engine.close()
        return True

    # --- on the main thread, when a thread is done

    def _prepared(self, request_id: str) -> None:
        self._preparing.pop(request_id, None)

    def _end(self, request_id: str, future: Future[None]) -> None:
        self._futures.discard(future)
        del self._calls[request_id]
        self._context.outbox.released.append(request_id)
        if self._threads is not None and not self._calls:
            threads, self._threads = self._threads, None
            self.set_cpu_threads(threads)

    def _deliver(self, call: _Call, events: Iterable[StepEvent]) -> None:
        if not call.is_cancelled:
            self._context.outbox.add(call.request.id, events)

    def _deliver_result(self, call: _Call, result: EmbedResult | RerankResult) -> None:
        if not call.is_cancelled:
            self._context.outbox.results[call.request.id] = result

    # --- on threads of their own

    def _prepare(self, request: Request) -> None:
        outcome: Accepted | CardcageError
        try:
            outcome = self._engine.prepare(request)
        except BaseException as error:  # noqa: BLE001 - boundary to vendor code: whatever it raises is this request's failure
            outcome = as_engine_error(error, "prepare")
        send_prepared(self._context, request.id, outcome)

    def _run(self, call: _Call) -> None:
        if call.is_cancelled:
            return  # the client left while every thread was taken
        try:
            if isinstance(call.request, ChatRequest):
                self._chat(call, call.request)
            else:
                task = self._engine.embed if isinstance(call.request, EmbedRequest) else self._engine.rerank
                result = check_result(call.request, task(call.request))  # type: ignore[arg-type]  # chosen by its type
                self._context.post(functools.partial(self._deliver_result, call, result))
        except BaseException as error:  # noqa: BLE001 - boundary to vendor code: whatever it raises is this request's failure
            failure = as_engine_error(error, "The engine's call")
            self._context.post(functools.partial(self._deliver, call, [Failed(error=failure)]))

    def _chat(self, call: _Call, request: ChatRequest) -> None:
        accepted = call.accepted or self._preparer.submit(self._engine.prepare, request).result()
        run = new_run(self._context, request, accepted)
        outputs = iter(self._engine.chat(request))
        try:
            self._pump(call, run, outputs)
        finally:
            close = getattr(outputs, "close", None)
            if close is not None:
                close()
        if not run.is_done and not call.is_cancelled:
            raise EngineFailedError("The engine ended its answer without Finished")

    def _pump(self, call: _Call, run: ChatRun, outputs: Iterator[EngineOutput]) -> None:
        """Read the engine's outputs up to the last `Finished`, a stop string, or the client's leaving."""
        for output in outputs:
            self.steps += 1  # of several threads at once one may be lost: it only shows that there is progress
            if call.is_cancelled:
                return
            if isinstance(output, Failed):
                raise output.error
            events = run.feed(output)
            if events:
                self._context.post(functools.partial(self._deliver, call, events))
            if run.is_done:
                break
        if run.is_done and not run.stopped:
            extra = next(outputs, None)
            if extra is not None:
                log_breach(
                    f"chat() yielded {type(extra).__name__} after the last Finished of request {call.request.id}"
                )
