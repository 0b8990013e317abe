"""What drives an engine: one class a shape of engine, with one set of methods for the loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cardcage_sdk.errors import CardcageError, EngineFailedError
from cardcage_sdk.ipc.frames import AcceptedReply, ErrorReply
from cardcage_sdk.worker.log import log_exception
from cardcage_sdk.worker.runs import ChatRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.engine import EngineBase, Request
    from cardcage_sdk.events import Accepted
    from cardcage_sdk.ipc.frames import Frame
    from cardcage_sdk.models import ModelInfo
    from cardcage_sdk.worker.outbox import Outbox
    from cardcage_sdk.worker.runs import PrefillMeter

__all__ = ["Driver", "DriverContext", "as_engine_error", "new_run", "send_prepared", "tell_cpu_threads"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverContext:
    """What a driver shares with the loop.

    Attributes:
        output: Kind of output that the engine declares.
        outbox: Where events go; main thread only.
        send: Sends a frame at once; any thread.
        post: Has a function called on the main thread; any thread.
        cancel_seconds: How long a call may take to end after it was cancelled.
    """

    info: ModelInfo
    output: Literal["raw", "parsed"]
    outbox: Outbox
    meter: PrefillMeter
    send: Callable[[Frame], None]
    post: Callable[[Callable[[], None]], None]
    max_parallel: int
    cancel_seconds: float


class Driver(ABC):
    """Drives one engine. Every method is called on the main thread unless it says otherwise.

    Attributes:
        steps: Engine steps, or outputs of an engine without steps, since start. Read by the reader thread.
    """

    steps: int

    @property
    @abstractmethod
    def running(self) -> int:
        """Requests in the engine. Read by the reader thread."""

    @property
    @abstractmethod
    def wants_turn(self) -> bool:
        """The engine has a step to do, so the loop must not wait for frames."""

    @abstractmethod
    def prepare(self, request: Request) -> None:
        """Have the engine validate and count, and send what it says, now or later."""

    @abstractmethod
    def start(self, request: Request, accepted: Accepted | None) -> None:
        """Run a request; what comes of it goes to the outbox."""

    @abstractmethod
    def cancel(self, request_id: str) -> None:
        """Drop a request in whatever state it is; it is released when the engine let go, at once if it is not known."""

    @abstractmethod
    def turn(self) -> None:
        """Do one step, if the engine has such."""

    @abstractmethod
    def resize(self, slots: int) -> int:
        """Change the number of slots."""

    @abstractmethod
    def set_cpu_threads(self, threads: int) -> None:
        """Pass on the number of threads when the engine may be told."""

    @abstractmethod
    def close(self) -> bool:
        """Cancel everything and close the engine; False where a call would not end, and the engine was not closed."""


def new_run(context: DriverContext, request: ChatRequest, accepted: Accepted) -> ChatRun:
    """The book-keeping of a chat request that starts now."""
    return ChatRun(request, context.info, accepted, output=context.output, meter=context.meter)


def as_engine_error(error: BaseException, what: str) -> CardcageError:
    """An error of the tree as it is, anything else as `EngineFailedError` with its text, its traceback in the log."""
    if isinstance(error, CardcageError):
        return error
    log_exception(f"{what} failed", error)
    return EngineFailedError(f"{what} failed: {type(error).__name__}: {error}")


def tell_cpu_threads(engine: EngineBase, threads: int) -> None:
    """Tell the engine; one that fails at it works on with the threads that it has, and the log says so."""
    try:
        engine.set_cpu_threads(threads)
    except Exception as error:  # noqa: BLE001 - boundary to vendor code: no request depends on it
        log_exception(f"set_cpu_threads({threads}) failed", error)


def send_prepared(context: DriverContext, request_id: str, outcome: Accepted | CardcageError) -> None:
    """Answer a prepare frame; any thread."""
    if isinstance(outcome, CardcageError):
        context.send(ErrorReply(about="prepare", request_id=request_id, error=outcome))
    else:
        context.send(AcceptedReply(request_id=request_id, accepted=outcome))
