"""One worker: a process, its pipe and the calls that run on it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, TypeVar

import structlog

from cardcage.workers.calls import Call, Calls
from cardcage.workers.life import Death, EndCause, WorkerSpec, WorkerState
from cardcage.workers.process import ExitStatus, WorkerProcess, worker_command
from cardcage.workers.tasks import TaskSet, first_of
from cardcage.workers.watchdog import expected_tokens
from cardcage_sdk.errors import (
    CardcageError,
    DrainingError,
    EngineCrashedError,
    EngineHungError,
    InternalError,
    LoadFailedError,
    LoadTimeoutError,
    WorkerProtocolError,
)
from cardcage_sdk.ipc.client import WorkerConnection, WorkerLostError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from cardcage.workers.settings import SupervisionSettings
    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
    from cardcage_sdk.engine import Request
    from cardcage_sdk.events import Accepted, ChatEvent
    from cardcage_sdk.models import ModelInfo

__all__ = ["Worker"]

ResultT = TypeVar("ResultT")


class Worker:
    """A worker process and what runs on it, as an object of the event loop.

    Life: constructed, `start` once, then any number of calls, then `stop` or `kill`, or its own death. `death` resolves
    exactly once in every case, after the process was reaped.

    Attributes:
        number: Tells workers of one server apart, in logs.
        spec: What it loads.
        info: What its engine said of the model; set when it is ready.
        death: Resolves when the process has ended and was reaped.
        is_retiring: It takes no new request.
        cpu_threads: Threads that it was last told to use, or None.
    """

    def __init__(self, number: int, spec: WorkerSpec, settings: SupervisionSettings) -> None:
        self.number = number
        self.spec = spec
        self.info: ModelInfo | None = None
        self.is_retiring = False
        self.cpu_threads = spec.options.cpu_threads
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.death: asyncio.Future[Death] = self._loop.create_future()
        self._log = structlog.get_logger("cardcage.worker").bind(model=spec.model_id, worker=number)
        self._process: WorkerProcess | None = None
        self._connection: WorkerConnection | None = None
        self._pipe_ended = asyncio.Event()
        self._cause: EndCause | None = None
        self._silent_seconds = 0.0
        self._calls = Calls(spec.model_id, settings)
        self._tasks = TaskSet(f"worker {number}")

    def __repr__(self) -> str:
        return (
            f"Worker({self.number}, model={self.spec.model_id!r}, state={self.state.value}, calls={len(self._calls)})"
        )

    @property
    def state(self) -> WorkerState:
        """Where it is in its life."""
        if self.death.done():
            return WorkerState.DEAD
        if self.info is None:
            return WorkerState.STARTING
        if self.is_retiring or self._cause is not None:
            return WorkerState.DRAINING
        return WorkerState.BUSY if self._calls else WorkerState.READY

    @property
    def takes_requests(self) -> bool:
        """It is ready, not retiring, and nothing says that it is about to die."""
        return self.state in {WorkerState.READY, WorkerState.BUSY} and not self._pipe_ended.is_set()

    @property
    def pid(self) -> int | None:
        """Its process id; None before it was started."""
        return None if self._process is None else self._process.pid

    @property
    def log_tail(self) -> str:
        """The last lines that it printed."""
        return "" if self._process is None else self._process.logs.tail

    # --- start

    async def start(self) -> ModelInfo:
        """Start the process and load the model; return when it is ready.

        Whatever goes wrong, the process is gone and reaped before this raises.

        Raises:
            LoadFailedError: It died, or could not be started, before it was ready.
            LoadTimeoutError: It was not ready in time.
            CardcageError: What the engine said.
        """
        try:
            async with asyncio.timeout(self.spec.load_timeout_seconds):
                self.info = await self._load(self._spawn())
        except TimeoutError:
            await self.kill(EndCause.FORCED)
            raise LoadTimeoutError(self.spec.model_id, waited_seconds=self.spec.load_timeout_seconds) from None
        except WorkerLostError:
            raise self._startup_error(await self._dead()) from None
        except OSError as error:
            await self.kill(EndCause.FORCED)
            raise LoadFailedError(f"The worker of '{self.spec.model_id}' could not be started: {error}") from error
        except BaseException as error:
            # Not handled here, only cleaned up after: a cancelled load, too, must leave no process behind.
            await self.kill(EndCause.FORCED)
            if isinstance(error, WorkerProtocolError):
                message = f"The worker of '{self.spec.model_id}' was of no use: {error.message}"
                raise LoadFailedError(message, log_tail=self.log_tail) from error
            if isinstance(error, LoadFailedError) and not error.log_tail:
                error.log_tail = self.log_tail
            raise
        self._tasks.spawn(self._watch(), name="watchdog")
        self._log.info("worker ready", pid=self.pid, slots=self.info.slots)
        return self.info

    def _spawn(self) -> WorkerConnection:
        """Start the process; synchronous, so that it happens in the event loop's thread."""
        spec, platform = self.spec, self.spec.platform
        ours, theirs = socket.socketpair()
        try:
            self._process = WorkerProcess(
                worker_command(platform.worker_python(), theirs.fileno()),
                pipe_fd=theirs.fileno(),
                environment=platform.worker_environment(spec.options.options),
                settings=self._settings,
                model=spec.model_id,
                worker=self.number,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._log.info("worker started", pid=self._process.pid, platform=platform.name)
        self._connection = WorkerConnection(ours, on_lost=self._pipe_ended.set)
        self._tasks.spawn(self._bury(self._process, self._connection), name="bury")
        return self._connection

    async def _load(self, connection: WorkerConnection) -> ModelInfo:
        await connection.open(timeout_seconds=self._settings.hello_timeout_seconds)
        spec = self.spec
        return await connection.load(spec.target, spec.artifact, spec.options, spec.capabilities)

    def _startup_error(self, death: Death) -> CardcageError:
        if death.cause is not EndCause.CRASHED:
            return DrainingError(f"The load of '{self.spec.model_id}' was ended")
        message = f"The worker of '{self.spec.model_id}' ended {death.status} before it was ready"
        last = death.log_tail.rsplit("\n", 1)[-1]
        return LoadFailedError(
            f"{message}; its last words: {last}" if last else message,
            signal=death.status.signal,
            exit_code=death.status.exit_code,
            log_tail=death.log_tail,
        )

    # --- end

    async def stop(self) -> Death:
        """Ask the engine to close and wait for the process to end; kill it when that takes too long."""
        self.is_retiring = True
        if self.info is None:
            # It is loading: an engine can be asked to close only after that, which may be minutes.
            return await self.kill(EndCause.FORCED)
        if self._connection is not None and not self.death.done():
            self._cause = self._cause or EndCause.CLOSED
            try:
                async with asyncio.timeout(self._settings.stop_timeout_seconds):
                    await self._connection.shutdown()
            except TimeoutError:
                self._log.warning("worker did not close in time", seconds=self._settings.stop_timeout_seconds)
                self._kill_process()
        return await self._dead()

    async def kill(self, cause: EndCause, *, silent_seconds: float = 0.0) -> Death:
        """End the whole process group now, and wait until it is gone."""
        self.condemn(cause, silent_seconds=silent_seconds)
        return await self._dead()

    def condemn(self, cause: EndCause, *, silent_seconds: float = 0.0) -> None:
        """The same without waiting."""
        if self._cause is None:
            self._cause, self._silent_seconds = cause, silent_seconds
        self._kill_process()

    def interrupt_all(self, error: CardcageError) -> None:
        """End every call that runs with this error; the engine is told as when a client leaves."""
        self._calls.interrupt_all(error)

    def _kill_process(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def _dead(self) -> Death:
        if self._process is None and not self.death.done():
            # Nothing was ever started, so nothing will report an end.
            status = ExitStatus(exit_code=0)
            self.death.set_result(
                Death(cause=self._cause or EndCause.CLOSED, status=status, log_tail="", was_ready=False)
            )
        # Shielded: a caller that leaves must not cancel what others wait for.
        return await asyncio.shield(self.death)

    async def _bury(self, process: WorkerProcess, connection: WorkerConnection) -> None:
        """Wait for the end of the pipe or of the process, whichever is first, and see the other one through."""
        grace = self._settings.exit_grace_seconds
        pipe = asyncio.ensure_future(self._pipe_ended.wait())
        await first_of(pipe, process.ended)
        if not process.ended.done():
            # The pipe ended first: a worker that is orderly, or crashed, ends within milliseconds.
            await first_of(process.ended, timeout_seconds=grace)
            process.kill()
            await process.ended
        # A grandchild that left the process group may hold the pipe's other end for ever.
        await first_of(pipe, timeout_seconds=grace)
        if not pipe.done():
            connection.abort()
            await pipe
        await process.logs.wait_ended(timeout_seconds=grace)
        process.logs.close()
        death = Death(
            cause=self._cause or EndCause.CRASHED,
            status=process.ended.result(),
            log_tail=process.logs.tail,
            was_ready=self.info is not None,
            seconds=self._silent_seconds,
        )
        orderly = death.cause is EndCause.CLOSED and death.status.exit_code == 0
        (self._log.info if orderly else self._log.warning)(
            "worker ended", cause=death.cause.value, how=str(death.status)
        )
        self.death.set_result(death)

    async def _lost_error(self) -> CardcageError:
        """What a request that ran here is told; waits until it is known how the worker ended."""
        death = await self._dead()
        model = self.spec.model_id
        if death.cause in {EndCause.HUNG, EndCause.CANCEL_OVERDUE}:
            return EngineHungError(model, seconds=round(death.seconds, 3))
        if death.cause in {EndCause.FORCED, EndCause.CLOSED}:
            return DrainingError(f"Model '{model}' was unloaded while the request ran")
        return EngineCrashedError(
            model, signal=death.status.signal, exit_code=death.status.exit_code, log_tail=death.log_tail
        )

    # --- calls

    @property
    def _pipe(self) -> WorkerConnection:
        if self._connection is None:
            raise InternalError("a worker was asked to work before it was started")
        return self._connection

    async def prepare(self, request: Request) -> Accepted:
        """Have the engine validate and count a request; raises what it says, or how the worker ended."""
        return await self._run(expected_tokens(request, None), lambda: self._pipe.prepare(request))

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Run an embedding."""
        return await self._run(expected_tokens(request, None), lambda: self._pipe.embed(request))

    async def rerank(self, request: RerankRequest) -> RerankResult:
        """Run a rerank."""
        return await self._run(expected_tokens(request, None), lambda: self._pipe.rerank(request))

    async def chat(self, request: ChatRequest, accepted: Accepted) -> AsyncGenerator[ChatEvent, None]:
        """Run a chat request; closing the generator tells the engine at once.

        Raises:
            EngineCrashedError, EngineHungError: How the worker ended under it.
            CardcageError: What the engine said of this request, or what `interrupt_all` was called with.
        """
        call = self._calls.begin(prompt_tokens=expected_tokens(request, accepted))
        events = self._pipe.chat(request, accepted=accepted)
        try:
            while (event := await self._wait(call, lambda: anext(events, None))) is not None:
                self._calls.saw(call, event)
                yield event
        finally:
            try:
                await events.aclose()
            finally:
                self._calls.finish(call)

    def holds(self, request_id: str) -> bool:
        """Whether something of this request may still run in the engine."""
        return self._pipe.holds(request_id)

    async def released(self, request_id: str) -> None:
        """Return when the engine has let go of a request, or the worker is lost."""
        with contextlib.suppress(WorkerLostError, WorkerProtocolError):
            await self._pipe.released(request_id)

    async def resize(self, slots: int) -> int:
        """Change the number of slots; returns what it is now."""
        return await self._run(0, lambda: self._pipe.resize(slots))

    async def set_cpu_threads(self, threads: int) -> None:
        """Tell the engine how many threads it may use; a worker that is lost needs none."""
        self.cpu_threads = threads
        with contextlib.suppress(WorkerLostError, WorkerProtocolError):
            await self._pipe.set_cpu_threads(threads)

    async def _run(self, prompt_tokens: int, start: Callable[[], Awaitable[ResultT]]) -> ResultT:
        call = self._calls.begin(prompt_tokens=prompt_tokens)
        try:
            return await self._wait(call, start)
        finally:
            self._calls.finish(call)

    async def _wait(self, call: Call, start: Callable[[], Awaitable[ResultT]]) -> ResultT:
        try:
            return await self._calls.wait(call, start)
        except WorkerLostError:
            raise await self._lost_error() from None

    async def _watch(self) -> None:
        silent = await self._calls.watch(ping=self._pipe.ping, end=self.death)
        if silent is not None:
            self._log.error("worker hung", silent_seconds=round(silent, 3), calls=len(self._calls))
            self.condemn(EndCause.HUNG, silent_seconds=silent)
