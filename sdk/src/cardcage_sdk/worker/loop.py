"""The worker's one loop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NoReturn

from cardcage_sdk.engine import BatchEngine
from cardcage_sdk.errors import CardcageError, WorkerProtocolError
from cardcage_sdk.events import Failed
from cardcage_sdk.ipc.frames import (
    Cancel,
    Close,
    ErrorReply,
    Frame,
    Load,
    Loaded,
    Prepare,
    Resize,
    Resized,
    Start,
    Threads,
    WorkerStats,
)
from cardcage_sdk.worker.batch import BatchDriver
from cardcage_sdk.worker.calls import CallDriver
from cardcage_sdk.worker.driver import DriverContext
from cardcage_sdk.worker.link import PipeEnd, PipeEndedError, WorkerLink
from cardcage_sdk.worker.loading import SELF_TEST_ID, as_load_error, import_engine, load_model, self_test_request
from cardcage_sdk.worker.log import log, log_exception
from cardcage_sdk.worker.outbox import Outbox
from cardcage_sdk.worker.runs import PrefillMeter

if TYPE_CHECKING:
    import socket

    from cardcage_sdk.worker.driver import Driver
    from cardcage_sdk.worker.link import Message

__all__ = ["WorkerLoop"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class WorkerLoop:
    """Takes frames, drives the engine, and sends one frame for what each turn brought. Main thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._link = WorkerLink(sock, stats=self._stats)
        self._outbox = Outbox()
        self._meter = PrefillMeter()
        self._driver: Driver | None = None

    def run(self) -> int:
        """Work until the server closes the engine or is gone.

        Returns:
            Exit status: 0, or 1 where the engine would not close.
        """
        try:
            self._link.start()
            while self._turn():
                pass
        except PipeEndedError:
            log("the server is gone")
        except WorkerProtocolError as error:
            log(f"the server sent a frame out of order: {error.message}")
            self._link.send(ErrorReply(about="protocol", error=error))
        return self._close()

    def _turn(self) -> bool:
        """Handle what is there, do one step, send what came of it; False at the end."""
        inbox = self._link.inbox
        driver = self._driver
        wait = driver is None or not driver.wants_turn
        while wait or not inbox.empty():
            wait = False
            if not self._handle(inbox.get()):
                return False
        if driver is not None and driver.wants_turn:
            driver.turn()
        self._flush()
        return True

    def _flush(self) -> None:
        while self._driver is not None and (failed := self._outbox.send(self._link.send)):
            for request_id in failed:
                self._driver.cancel(request_id)

    def _handle(self, message: Message) -> bool:
        """Take one message; False at the end."""
        if isinstance(message, (Close, PipeEnd)):
            return False
        if isinstance(message, Load):
            self._load(message)
            return True
        if not isinstance(message, Frame):
            message()
        elif self._driver is not None:
            self._command(self._driver, message)
        else:
            raise_unexpected(message)
        return True

    def _command(self, driver: Driver, frame: Frame) -> None:
        match frame:
            case Prepare(request=request):
                driver.prepare(request)
            case Start(request=request, accepted=accepted):
                driver.start(request, accepted)
            case Cancel(request_id=request_id):
                driver.cancel(request_id)
            case Resize(slots=slots):
                try:
                    self._link.send(Resized(slots=driver.resize(slots)))
                except CardcageError as error:
                    self._link.send(ErrorReply(about="resize", error=error))
            case Threads(threads=threads):
                driver.set_cpu_threads(threads)
            case _:
                raise_unexpected(frame)

    def _load(self, load: Load) -> None:
        if self._driver is not None:
            raise_unexpected(load)
        what = "Loading"
        try:
            engine = import_engine(load.target)()
            info = load_model(engine, load)
            capabilities = info.capabilities or load.capabilities
            context = DriverContext(
                info=info,
                output=capabilities.output,
                outbox=self._outbox,
                meter=self._meter,
                send=self._link.send,
                post=self._link.inbox.put,
                max_parallel=capabilities.max_parallel,
                cancel_seconds=capabilities.cancel_seconds,
            )
            self._driver = (
                BatchDriver(engine, context) if isinstance(engine, BatchEngine) else CallDriver(engine, context)
            )
            what = "The self-test"
            self._driver.start(self_test_request(info, capabilities), None)
            self._pass_self_test(self._driver)
        except PipeEndedError:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - boundary to a plugin's engine
            self._link.send(ErrorReply(about="load", error=as_load_error(error, what)))
        else:
            self._link.send(Loaded(info=info))

    def _pass_self_test(self, driver: Driver) -> None:
        """Run the engine until the one request has ended well.

        Raises:
            CardcageError: It has not.
            PipeEndedError: The server wants the end, or is gone.
        """
        outbox = self._outbox
        while SELF_TEST_ID not in outbox.released:
            if driver.wants_turn:
                driver.turn()
                continue
            message = self._link.inbox.get()
            if isinstance(message, (Close, PipeEnd)):
                raise PipeEndedError("the server closed the pipe during the self-test")
            if isinstance(message, Frame):
                raise_unexpected(message)
            message()
        failures = [event.error for _, event in outbox.events if isinstance(event, Failed)]
        outbox.clear()
        if failures:
            raise failures[0]

    def _close(self) -> int:
        if self._driver is None:
            return 0
        try:
            if self._driver.close():
                return 0
            log("a call did not end in time: the engine is not closed")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - boundary to a plugin's engine
            log_exception("close failed", error)
        return 1

    def _stats(self) -> WorkerStats:
        """Called on the reader thread while the engine may compute."""
        with open("/proc/self/statm", encoding="ascii") as statm:
            pages = int(statm.read().split()[1])
        driver = self._driver
        return WorkerStats(
            rss_bytes=pages * _PAGE_BYTES,
            running=0 if driver is None else driver.running,
            steps=0 if driver is None else driver.steps,
            prefill_tokens_per_second=self._meter.tokens_per_second,
        )


def raise_unexpected(message: Frame) -> NoReturn:
    """Refuse a frame out of order.

    Raises:
        WorkerProtocolError: Always.
    """
    raise WorkerProtocolError(f"{type(message).__name__} is out of order")
