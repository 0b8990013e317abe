"""The vocabulary of a worker's pipe, and how a message becomes bytes.

On the wire: a little-endian unsigned 32-bit length, then that many bytes of msgpack, which hold one of the classes below. Both
ends send `Hello` first. The server then sends `Load` once, and after `Loaded` any number of `Prepare`, `Start`, `Cancel`,
`Resize`, `Threads` and `Ping`, at last `Close`. The worker answers::

    Load       Loaded, or ErrorReply(about="load")
    Prepare    AcceptedReply, or ErrorReply(about="prepare")
    Start      Step* with the request's events, its last error or `released`; Result for embeddings and rerank
    Cancel     nothing, and later Released (or `released` of a Step): the engine let go of the request
    Resize     Resized, or ErrorReply(about="resize")
    Ping       Pong, from the reader thread
    Close      the end of the pipe

One `Step` carries what all running requests got from one step of the engine.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from cardcage_sdk.capabilities import Capabilities
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
from cardcage_sdk.errors import CardcageError, WorkerProtocolError
from cardcage_sdk.events import Accepted, Failed, Finished, Progress, ReasoningDelta, TextDelta, ToolCallDelta
from cardcage_sdk.hookspecs import CONTRACT_VERSION
from cardcage_sdk.ipc.codec import VALUE_CLASSES, Codec
from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelInfo

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "FRAME_LIMIT",
    "AcceptedReply",
    "Cancel",
    "Close",
    "EngineTarget",
    "ErrorReply",
    "Frame",
    "FrameBuffer",
    "Hello",
    "Load",
    "Loaded",
    "Ping",
    "Pong",
    "Prepare",
    "Released",
    "Resize",
    "Resized",
    "Result",
    "Start",
    "Step",
    "StepEvent",
    "Threads",
    "WorkerStats",
    "check_hello",
    "decode_frame",
    "encode_frame",
]

FRAME_LIMIT: Final = 64 * 1024 * 1024
"""Most bytes of one frame, without its length. A longer one is refused before it is read."""

_HEADER = struct.Struct("<I")

_Task: TypeAlias = ChatRequest | EmbedRequest | RerankRequest

StepEvent: TypeAlias = Progress | TextDelta | ReasoningDelta | ToolCallDelta | Finished | Failed
"""What a `Step` carries for one request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTarget:
    """Where the worker finds the engine class.

    Attributes:
        path: `package.module:Class`.
        plugin_file: Source file to load the module from where it is not installed, or None.
    """

    path: str
    plugin_file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """A worker's answer to a ping.

    Attributes:
        rss_bytes: Resident memory of the process.
        running: Requests in the engine.
        steps: Engine steps (or outputs, for an engine without steps) since start.
        prefill_tokens_per_second: Measured rate of the last prompts, or None.
    """

    rss_bytes: int
    running: int
    steps: int
    prefill_tokens_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first frame of either end."""

    contract: tuple[int, int]
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Import the engine, load the model, test it."""

    target: EngineTarget
    artifact: ModelArtifact
    options: LoadOptions
    capabilities: Capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The model is loaded and the self-test passed."""

    info: ModelInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Validate and count."""

    request: _Task


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedReply:
    """The answer to `Prepare`."""

    request_id: str
    accepted: Accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Run a request now.

    Attributes:
        accepted: What `prepare` said, in this worker or another of the pool; None lets the worker ask its engine.
    """

    request: _Task
    accepted: Accepted | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """Drop a request in whatever state it is."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Nothing of this request runs any more."""

    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What came out of one engine step, in order for each request, and which requests the engine let go of after it."""

    events: tuple[tuple[str, StepEvent], ...] = ()
    released: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of an embedding or rerank; a `Step` that releases the request follows."""

    request_id: str
    result: EmbedResult | RerankResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorReply:
    """A call failed.

    Attributes:
        about: What failed; `protocol` ends the worker.
        request_id: The request, where `about` is `prepare`.
    """

    about: Literal["load", "prepare", "resize", "protocol"]
    error: CardcageError
    request_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Change the number of slots."""

    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """The number of slots now."""

    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    """Use at most so many CPU threads."""

    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Ask the reader thread for a sign of life."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pong:
    """The answer to the ping of the same number."""

    number: int
    stats: WorkerStats


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Close the engine and end."""


Frame: TypeAlias = (
    Hello
    | Load
    | Loaded
    | Prepare
    | AcceptedReply
    | Start
    | Cancel
    | Released
    | Step
    | Result
    | ErrorReply
    | Resize
    | Resized
    | Threads
    | Ping
    | Pong
    | Close
)

_FRAME_CLASSES: tuple[type, ...] = get_args(Frame)

_CODEC = Codec((*VALUE_CLASSES, EngineTarget, WorkerStats, *_FRAME_CLASSES))


def encode_frame(frame: Frame) -> bytes:
    """Length and body of one frame.

    Raises:
        WorkerProtocolError: It cannot be encoded or is over `FRAME_LIMIT`.
    """
    body = _CODEC.dumps(frame)
    if len(body) > FRAME_LIMIT:
        raise WorkerProtocolError(
            f"A {type(frame).__name__} frame of {len(body)} bytes is over the limit of {FRAME_LIMIT} bytes"
        )
    return _HEADER.pack(len(body)) + body


def decode_frame(body: bytes | bytearray | memoryview) -> Frame:
    """One frame from its body (without the length).

    Raises:
        WorkerProtocolError: It is malformed, or no frame.
    """
    value = _CODEC.loads(body)
    if not isinstance(value, Frame):
        raise WorkerProtocolError(f"Malformed frame: {type(value).__name__} is no frame")
    return value


def check_hello(frame: Frame) -> Hello:
    """Take the first frame of the other end.

    Raises:
        WorkerProtocolError: It is no hello, or of another contract version.
    """
    if not isinstance(frame, Hello):
        raise WorkerProtocolError(f"The first frame must be a hello, not {type(frame).__name__}")
    if frame.contract != CONTRACT_VERSION:
        theirs, ours = (".".join(map(str, version)) for version in (frame.contract, CONTRACT_VERSION))
        raise WorkerProtocolError(
            f"Server and worker have different versions of cardcage-sdk: contract {theirs} there, {ours} here; "
            "install the same one for the worker's Python"
        )
    return frame


class FrameBuffer:
    """Cuts a stream of bytes into frames. Not safe for use from several threads."""

    def __init__(self, *, limit: int = FRAME_LIMIT) -> None:
        self._data = bytearray()
        self._limit = limit

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Add bytes and yield each frame that is now whole. Consume it before the next `feed`.

        Raises:
            WorkerProtocolError: A frame is over the limit or malformed; the stream cannot be read on.
        """
        self._data += data
        position = 0
        try:
            while len(self._data) - position >= _HEADER.size:
                (length,) = _HEADER.unpack_from(self._data, position)
                if length > self._limit:
                    raise WorkerProtocolError(f"A frame of {length} bytes is over the limit of {self._limit} bytes")
                start, end = position + _HEADER.size, position + _HEADER.size + length
                if len(self._data) < end:
                    break
                position = end
                yield decode_frame(bytes(memoryview(self._data)[start:end]))
        finally:
            del self._data[:position]
