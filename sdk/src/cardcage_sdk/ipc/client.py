"""The server's end of a worker's pipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from collections.abc import AsyncGenerator

    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
    from cardcage_sdk.engine import Request
    from cardcage_sdk.events import Accepted, ChatEvent
    from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelInfo

__all__ = ["EngineTarget", "WorkerConnection", "WorkerLostError", "WorkerStats"]


class WorkerLostError(ConnectionError):
    """The pipe ended: the worker died or was ended. Core turns it into an error that says how."""


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


class WorkerConnection:
    """One worker, as an object of the event loop.

    Every pending call raises `WorkerLostError` when the pipe ends. No method retries anything.

    Attributes:
        last_frame_at: Event-loop time, in seconds, of the last frame from the worker.
    """

    last_frame_at: float

    def __init__(self, sock: socket.socket, *, on_lost: Callable[[], None]) -> None:
        """Own the server's end of a socket pair; `on_lost` is called once, in the loop, when the pipe ends."""
        raise NotImplementedError

    async def open(self, *, timeout_seconds: float) -> int:
        """Attach to the loop and exchange hellos.

        Returns:
            The worker's process id, as it says.

        Raises:
            WorkerProtocolError: Another contract version, or no hello in time.
        """
        raise NotImplementedError

    async def load(
        self, target: EngineTarget, artifact: ModelArtifact, options: LoadOptions, capabilities: Capabilities
    ) -> ModelInfo:
        """Import the engine, load the model and run the self-test; no time-out of its own."""
        raise NotImplementedError

    async def prepare(self, request: Request) -> Accepted:
        """Validate and count; cancelling the awaiting task drops it."""
        raise NotImplementedError

    def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Start the request now; the caller holds a lease. Yields everything but `Accepted`, up to the last `Finished`.

        Closing the generator early writes a cancel frame at once, without awaiting; `released` tells when the engine let go.
        """
        raise NotImplementedError

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Run an embedding; cancelling the awaiting task cancels it in the worker."""
        raise NotImplementedError

    async def rerank(self, request: RerankRequest) -> RerankResult:
        """Run a rerank; cancelling the awaiting task cancels it in the worker."""
        raise NotImplementedError

    async def released(self, request_id: str) -> None:
        """Return when the worker has confirmed that nothing of this request runs any more (at once if nothing does)."""
        raise NotImplementedError

    async def resize(self, slots: int) -> int:
        """Change the number of slots; returns what it is now."""
        raise NotImplementedError

    async def set_cpu_threads(self, threads: int) -> None:
        """Tell the engine how many threads it may use."""
        raise NotImplementedError

    async def ping(self) -> WorkerStats:
        """Ask the worker's reader thread, which answers even while the engine computes."""
        raise NotImplementedError

    async def shutdown(self) -> None:
        """Ask the engine to close and the process to end; returns when the pipe has ended."""
        raise NotImplementedError

    def abort(self) -> None:
        """Drop the pipe at once; the worker ends itself when it sees that."""
        raise NotImplementedError
