"""The worker's end of the pipe."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, TypeAlias

from cardcage_sdk.errors import WorkerProtocolError
from cardcage_sdk.hookspecs import CONTRACT_VERSION
from cardcage_sdk.ipc.frames import (
    ErrorReply,
    Frame,
    FrameBuffer,
    Hello,
    Ping,
    Pong,
    WorkerStats,
    check_hello,
    encode_frame,
)
from cardcage_sdk.worker.log import log, log_exception

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

__all__ = ["Message", "PipeEnd", "PipeEndedError", "WorkerLink"]

_CLOSE_SECONDS = 2.0  # for an engine to close after the pipe ended; then the process ends with whatever it computes
_READ_BYTES = 1 << 18


class PipeEndedError(ConnectionError):
    """The server is gone: nothing can be sent any more."""


class PipeEnd:
    """Put into the inbox when the pipe ended."""


Message: TypeAlias = "Frame | PipeEnd | Callable[[], None]"
"""What the main loop gets: a frame, the end, or something that a call's thread wants to be done there."""


class WorkerLink:
    """A blocking socket with a reader thread. `send` may be called from any thread.

    Attributes:
        inbox: Frames for the main loop, pings excepted.
    """

    def __init__(self, sock: socket.socket, *, stats: Callable[[], WorkerStats]) -> None:
        """Own the socket; `stats` is called on the reader thread."""
        self.inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._sock = sock
        self._stats = stats
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, name="cardcage-reader", daemon=True)

    def start(self) -> None:
        """Say hello and read from now on."""
        self.send(Hello(contract=CONTRACT_VERSION, pid=os.getpid()))
        self._reader.start()

    def send(self, frame: Frame) -> None:
        """Send one frame; blocks while the pipe is full.

        Raises:
            WorkerProtocolError: It cannot be encoded or is too large; nothing was sent.
            PipeEndedError: The server is gone.
        """
        data = encode_frame(frame)
        with self._sending:
            try:
                self._sock.sendall(data)
            except OSError as error:
                raise PipeEndedError(str(error)) from error

    def _read(self) -> None:
        """Body of the reader thread: it outlives every other and takes the process with it."""
        code = 0
        try:
            self._read_frames()
        except (OSError, PipeEndedError):
            code = 1
        except WorkerProtocolError as error:
            code = 1
            log(f"the server sent what cannot be read: {error.message}")
            self._report(error)
        except BaseException as error:  # noqa: BLE001 - the last frame of the thread that must never just vanish
            code = 1
            log_exception("the reader thread failed", error)
        self.inbox.put(PipeEnd())
        # The main thread closes the engine and ends the process. Where it cannot, because the engine computes or hangs in
        # code that let go of the GIL, this ends it; where the GIL is held, the parent-death signal does.
        threading.Event().wait(_CLOSE_SECONDS)
        os._exit(code)

    def _read_frames(self) -> None:
        buffer = FrameBuffer()
        is_greeted = False
        while data := self._sock.recv(_READ_BYTES):
            for frame in buffer.feed(data):
                if not is_greeted:
                    check_hello(frame)
                    is_greeted = True
                elif isinstance(frame, Ping):
                    self.send(Pong(number=frame.number, stats=self._stats()))
                else:
                    self.inbox.put(frame)

    def _report(self, error: WorkerProtocolError) -> None:
        try:
            self.send(ErrorReply(about="protocol", error=error))
        except PipeEndedError:
            log("and is gone")
