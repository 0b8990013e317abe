"""The server's end of a worker's pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any, TypeAlias

from cardcage_sdk.errors import InvalidRequestError, WorkerProtocolError
from cardcage_sdk.events import Failed, Finished
from cardcage_sdk.hookspecs import CONTRACT_VERSION
from cardcage_sdk.ipc.frames import (
    AcceptedReply,
    Cancel,
    Close,
    EngineTarget,
    ErrorReply,
    Frame,
    FrameBuffer,
    Hello,
    Load,
    Loaded,
    Ping,
    Pong,
    Prepare,
    Released,
    Resize,
    Resized,
    Result,
    Start,
    Step,
    Threads,
    WorkerStats,
    check_hello,
    encode_frame,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator, Callable, Iterator

    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
    from cardcage_sdk.engine import Request
    from cardcage_sdk.events import Accepted, ChatEvent
    from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelInfo

__all__ = ["EngineTarget", "WorkerConnection", "WorkerLostError", "WorkerStats"]


class WorkerLostError(ConnectionError):
    """The pipe ended: the worker died or was ended. Core turns it into an error that says how."""


class WorkerConnection:
    """One worker, as an object of the event loop.

    Every pending call raises `WorkerLostError` when the pipe ends, or `WorkerProtocolError` when it had to be dropped because
    of a frame that cannot be read. No method retries anything.

    Attributes:
        last_frame_at: Event-loop time, in seconds, of the last frame from the worker.
    """

    last_frame_at: float

    def __init__(self, sock: socket.socket, *, on_lost: Callable[[], None]) -> None:
        """Own the server's end of a socket pair; `on_lost` is called once, in the loop, when the pipe ends."""
        self.last_frame_at = 0.0
        self._sock = sock
        self._on_lost = on_lost
        self._transport: asyncio.WriteTransport | None = None
        self._loss: Exception | None = None
        self._hello: asyncio.Future[Hello] | None = None
        self._loaded: asyncio.Future[ModelInfo] | None = None
        self._prepared: dict[str, asyncio.Future[Accepted]] = {}
        self._streams: dict[str, asyncio.Queue[_StreamItem]] = {}
        self._results: dict[str, asyncio.Future[EmbedResult | RerankResult]] = {}
        self._held: dict[str, asyncio.Event] = {}
        self._resized: list[asyncio.Future[int]] = []
        self._pings: dict[int, asyncio.Future[WorkerStats]] = {}
        self._ping_number = 0
        self._ended = asyncio.Event()

    async def open(self, *, timeout_seconds: float) -> int:
        """Attach to the loop and exchange hellos.

        Returns:
            The worker's process id, as it says.

        Raises:
            WorkerProtocolError: Another contract version, or no hello in time.
        """
        loop = asyncio.get_running_loop()
        self._hello = loop.create_future()
        self.last_frame_at = loop.time()
        self._transport, _ = await loop.create_connection(lambda: _PipeProtocol(self), sock=self._sock)
        self._send(Hello(contract=CONTRACT_VERSION, pid=os.getpid()))
        try:
            async with asyncio.timeout(timeout_seconds):
                return (await self._hello).pid
        except TimeoutError:
            self._drop(WorkerProtocolError(f"The worker did not say hello within {timeout_seconds:g} seconds"))
            raise self._loss_error() from None

    async def load(
        self, target: EngineTarget, artifact: ModelArtifact, options: LoadOptions, capabilities: Capabilities
    ) -> ModelInfo:
        """Import the engine, load the model and run the self-test; no time-out of its own."""
        self._loaded = asyncio.get_running_loop().create_future()
        self._send(Load(target=target, artifact=artifact, options=options, capabilities=capabilities))
        return await self._loaded

    async def prepare(self, request: Request) -> Accepted:
        """Validate and count; cancelling the awaiting task drops it."""
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        if request.id in self._prepared:
            raise ValueError(f"request '{request.id}' is being prepared already")
        self._send_request(Prepare(request=request))
        self._prepared[request.id] = future
        try:
            return await future
        except asyncio.CancelledError:
            self._send_quietly(Cancel(request_id=request.id))
            raise
        finally:
            del self._prepared[request.id]

    async def chat(self, request: ChatRequest, *, accepted: Accepted | None = None) -> AsyncGenerator[ChatEvent, None]:
        """Start the request now; the caller holds a lease. Yields everything but `Accepted`, up to the last `Finished`.

        The request starts with the first item asked for. Closing the generator early writes a cancel frame at once, without
        awaiting; `released` tells when the engine let go.

        Args:
            request: Whole, defaults merged in.
            accepted: What `prepare` said, perhaps on another worker of the pool: the text pipeline needs to know whether the
                prompt opened the reasoning, and usage the prompt's length. Without it the worker asks its engine again.
        """
        stream: asyncio.Queue[_StreamItem] = asyncio.Queue()
        self._hold(request, accepted)
        self._streams[request.id] = stream
        choices = max(1, request.n)
        try:
            while choices:
                item = await stream.get()
                if isinstance(item, Exception):
                    choices = 0
                    raise item
                if isinstance(item, Finished):
                    choices -= 1
                yield item
        finally:
            del self._streams[request.id]
            if choices:
                self._send_quietly(Cancel(request_id=request.id))

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Run an embedding; cancelling the awaiting task cancels it in the worker."""
        result: EmbedResult = await self._run(request)
        return result

    async def rerank(self, request: RerankRequest) -> RerankResult:
        """Run a rerank; cancelling the awaiting task cancels it in the worker."""
        result: RerankResult = await self._run(request)
        return result

    def holds(self, request_id: str) -> bool:
        """Whether something of this request may still run in the worker: started, and neither released nor lost."""
        return request_id in self._held

    async def released(self, request_id: str) -> None:
        """Return when the worker has confirmed that nothing of this request runs any more (at once if nothing does)."""
        event = self._held.get(request_id)
        if event is not None:
            await event.wait()
            if self._loss is not None:
                raise self._loss_error()

    async def resize(self, slots: int) -> int:
        """Change the number of slots; returns what it is now."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._send(Resize(slots=slots))
        self._resized.append(future)
        return await future

    async def set_cpu_threads(self, threads: int) -> None:
        """Tell the engine how many threads it may use."""
        self._send(Threads(threads=threads))

    async def ping(self) -> WorkerStats:
        """Ask the worker's reader thread, which answers even while the engine computes."""
        self._ping_number += 1
        number = self._ping_number
        future: asyncio.Future[WorkerStats] = asyncio.get_running_loop().create_future()
        self._send(Ping(number=number))
        self._pings[number] = future
        try:
            return await future
        finally:
            self._pings.pop(number, None)

    async def shutdown(self) -> None:
        """Ask the engine to close and the process to end; returns when the pipe has ended."""
        self._send_quietly(Close())
        if self._transport is not None:
            await self._ended.wait()

    def abort(self) -> None:
        """Drop the pipe at once; the worker ends itself when it sees that."""
        self._drop(WorkerLostError("The server dropped the worker's pipe"))

    # --- sending

    def _send(self, frame: Frame) -> None:
        if self._loss is not None:
            raise self._loss_error()
        if self._transport is None:
            raise WorkerLostError("The worker's pipe is not open")
        self._transport.write(encode_frame(frame))

    def _send_quietly(self, frame: Frame) -> None:
        """Send what needs no answer when the pipe has ended: the end of the pipe says as much."""
        with contextlib.suppress(WorkerLostError, WorkerProtocolError):
            self._send(frame)

    def _send_request(self, frame: Prepare | Start) -> None:
        """Send a frame with a client's request in it; one that no frame can carry is the client's fault."""
        if self._loss is not None:
            raise self._loss_error()
        try:
            self._send(frame)
        except WorkerProtocolError as error:
            raise InvalidRequestError(f"The request is too large or too deep: {error.message}") from error

    def _hold(self, request: Request, accepted: Accepted | None = None) -> None:
        if request.id in self._held:
            raise ValueError(f"request '{request.id}' runs already")
        self._send_request(Start(request=request, accepted=accepted))
        self._held[request.id] = asyncio.Event()

    async def _run(self, request: EmbedRequest | RerankRequest) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._hold(request)
        self._results[request.id] = future
        try:
            return await future
        except asyncio.CancelledError:
            self._send_quietly(Cancel(request_id=request.id))
            raise
        finally:
            del self._results[request.id]

    # --- receiving; called by the protocol, in the loop

    def _received(self, frames: Iterator[Frame]) -> None:
        try:
            for frame in frames:
                self.last_frame_at = asyncio.get_running_loop().time()
                if self._hello is not None and not self._hello.done():
                    self._hello.set_result(check_hello(frame))
                else:
                    self._dispatch(frame)
        except WorkerProtocolError as error:
            self._drop(error)

    def _dispatch(self, frame: Frame) -> None:
        match frame:
            case Step(events=events, released=released):
                for request_id, event in events:
                    self._deliver(request_id, event.error if isinstance(event, Failed) else event)
                for request_id in released:
                    self._release(request_id)
            case Released(request_id=request_id):
                self._release(request_id)
            case Result(request_id=request_id, result=result):
                _resolve(self._results.get(request_id), result)
            case AcceptedReply(request_id=request_id, accepted=accepted):
                _resolve(self._prepared.get(request_id), accepted)
            case Loaded(info=info):
                _resolve(self._loaded, info)
            case Resized(slots=slots):
                _resolve(self._resized.pop(0) if self._resized else None, slots)
            case Pong(number=number, stats=stats):
                _resolve(self._pings.get(number), stats)
            case ErrorReply(about="protocol", error=error):
                raise WorkerProtocolError(f"The worker refused a frame: {error.message}")
            case ErrorReply(about="load", error=error):
                _fail(self._loaded, error)
            case ErrorReply(about="resize", error=error):
                _fail(self._resized.pop(0) if self._resized else None, error)
            case ErrorReply(error=error, request_id=request_id):
                _fail(self._prepared.get(request_id or ""), error)
            case _:
                raise WorkerProtocolError(f"A worker must not send {type(frame).__name__}")

    def _deliver(self, request_id: str, item: _StreamItem) -> None:
        """Hand an event to its stream; what comes for a request that its client has left is dropped on purpose."""
        stream = self._streams.get(request_id)
        if stream is not None:
            stream.put_nowait(item)
        elif isinstance(item, Exception):
            _fail(self._results.get(request_id), item)

    def _release(self, request_id: str) -> None:
        event = self._held.pop(request_id, None)
        if event is not None:
            event.set()

    def _drop(self, reason: Exception) -> None:
        """End the pipe from this side, for a reason that every pending call is given."""
        if self._loss is None:
            self._loss = reason
        if self._transport is not None:
            self._transport.abort()
        else:
            self._sock.close()

    def _lost(self, reason: Exception | None) -> None:
        if self._loss is None:
            self._loss = WorkerLostError(f"The worker's pipe ended{f': {reason}' if reason else ''}")
        pending: list[asyncio.Future[Any] | None] = [
            self._hello,
            self._loaded,
            *self._prepared.values(),
            *self._results.values(),
            *self._resized,
            *self._pings.values(),
        ]
        for future in pending:
            _fail(future, self._loss_error())
        for stream in self._streams.values():
            stream.put_nowait(self._loss_error())
        for event in self._held.values():
            event.set()
        self._held.clear()
        self._ended.set()
        self._on_lost()

    def _loss_error(self) -> Exception:
        """The reason of the loss as a new exception: one object raised in many tasks would collect all their tracebacks."""
        if isinstance(self._loss, WorkerProtocolError):
            return WorkerProtocolError(self._loss.message)
        return WorkerLostError(str(self._loss))


_StreamItem: TypeAlias = "ChatEvent | Exception"


class _PipeProtocol(asyncio.Protocol):
    """Bytes from the transport to frames for the connection."""

    def __init__(self, connection: WorkerConnection) -> None:
        self._connection = connection
        self._buffer = FrameBuffer()

    def data_received(self, data: bytes) -> None:
        self._connection._received(self._buffer.feed(data))  # noqa: SLF001 - one object in two classes

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection._lost(exc)  # noqa: SLF001 - one object in two classes


def _resolve(future: asyncio.Future[Any] | None, value: object) -> None:
    """Give a pending call its answer; one that was cancelled meanwhile is gone, and its answer is of no use."""
    if future is not None and not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any] | None, error: Exception) -> None:
    if future is not None and not future.done():
        future.set_exception(error)
