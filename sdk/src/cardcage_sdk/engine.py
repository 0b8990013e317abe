"""The two shapes of an engine: one loaded model inside one worker process.

Both are synchronous, because vendor runtimes block and call back from C. An engine is imported, constructed and called in
the worker process only, never in the server. A crash is expected in the field: the worker dies, the server lives and the
running requests end with `EngineCrashedError`. So never catch what you cannot handle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias

from cardcage_sdk.capabilities import Task
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
from cardcage_sdk.errors import UnsupportedError
from cardcage_sdk.events import Accepted, EngineOutput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelInfo

__all__ = ["BatchEngine", "BatchOutput", "Engine", "EngineBase", "Request"]

Request: TypeAlias = ChatRequest | EmbedRequest | RerankRequest
"""A request of any task."""

BatchOutput: TypeAlias = EngineOutput | EmbedResult | RerankResult
"""What one step yields for one request."""


class EngineBase(ABC):
    """What both shapes share: load, prepare, cancel, close."""

    @abstractmethod
    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Load the model; return only when the first request could run at full speed.

        Called once, on the worker's main thread, before anything else. The worker then runs a one-token (or one-vector)
        self-test through `chat`/`add`, and only when that succeeds is the instance ready.

        Args:
            artifact: Files on disk. `artifact.path` exists and is readable.
            options: `options.options` is already validated by the platform's option model.

        Raises:
            UnsupportedModelError: Wrong kind or version of file. The pool is not retried.
            OutOfMemoryError: It did not fit. Core may free memory and try again.
            LoadFailedError: Anything else, with the runtime's own words.
        """

    def prepare(self, request: Request) -> Accepted:
        """Validate, render and count a request before it queues for an instance; start nothing.

        Called at most once for a request, before `chat`/`add` and perhaps in another worker of the same pool, so it must
        not be relied on: `chat`/`add` gets the whole request again. In an `Engine` it runs on a thread of its own while
        calls run; in a `BatchEngine` between two steps, so it should take no longer than a step.

        Returns:
            The prompt's length in tokens where the engine can tell. The default knows nothing.

        Raises:
            ContextLengthExceededError: The prompt leaves no room for one token.
            InvalidSchemaError: A schema or grammar that does not compile.
            UnsupportedError: This model cannot do it.
        """
        del request
        return Accepted()

    def set_cpu_threads(self, threads: int) -> None:
        """Use at most so many threads from now on. Called between calls or steps when core shares the cores out anew.

        The default does nothing, for engines that use no CPU to speak of.
        """

    def close(self) -> None:
        """Free everything. Called once, on the main thread, when no call runs; the process ends right after."""


class Engine(EngineBase):
    """For runtimes whose call blocks until the answer is done (RKLLM, ONNX Runtime embeddings).

    Life cycle: constructed once, `load` once, then any number of `chat`/`embed`/`rerank` calls, at most
    `Capabilities.max_parallel` at once, each on a worker thread; `close` once. `cancel` comes from another thread.
    """

    def chat(self, request: ChatRequest) -> Iterator[EngineOutput]:
        """Generate an answer, yielding each piece as soon as it exists.

        The last output is exactly one `Finished` for each choice. The worker closes the iterator early when a stop string
        was found or the client left; that must stop the generation within the declared `cancel_seconds`. Raise an error of
        the tree to fail the request. Not implementing this means that `Task.CHAT` is not declared.
        """
        raise UnsupportedError(Task.CHAT.value)

    def embed(self, request: EmbedRequest) -> EmbedResult:
        """Turn texts into vectors. Not implementing this means that `Task.EMBED` is not declared.

        Raises:
            ContextLengthExceededError: An input is too long and `request.truncate` is False.
        """
        raise UnsupportedError(Task.EMBED.value)

    def rerank(self, request: RerankRequest) -> RerankResult:
        """Score documents against a query. Not implementing this means that `Task.RERANK` is not declared."""
        raise UnsupportedError(Task.RERANK.value)

    def cancel(self, request_id: str) -> None:
        """Ask the running request to stop. Called from another thread, at most once a request; must not block.

        The request's iterator should then end soon, with `Finished` or without. An unknown id is ignored: the request may
        have ended a moment ago. The default does nothing; then only closing the iterator between two pieces stops it.
        """


class BatchEngine(EngineBase):
    """For runtimes with a real step loop (llama.cpp's batch API): all running requests advance in one `step`.

    Every method is called on the worker's main thread, so nothing here needs a lock. The worker calls `step` as long as any
    added request has not ended.
    """

    @abstractmethod
    def add(self, request: Request) -> None:
        """Take a request into the batch; its first output comes from a later `step`.

        Core never adds more than the current number of slots (each of a request's `n` choices counts its own way inside
        the engine: `n` sequences of one request are the engine's business).

        Raises:
            The same as `prepare`, if that was not called or can no longer be trusted.
        """

    @abstractmethod
    def step(self) -> Sequence[tuple[str, BatchOutput]]:
        """Advance every running request once, and say what came out.

        Returns:
            Pairs of request id and output, in order for each request; empty while only prefill ran. A chat request ends with
            one `Finished` for each choice, an embedding or rerank with its one result, any with `Failed`. After that the id
            is forgotten.

        Raises:
            Any error of the tree: every running request fails with it, the engine stays loaded.
        """

    @abstractmethod
    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Forget a request, or one choice of it, before the next step; no further output of it may come.

        An unknown id is ignored: the request may have ended in the last step.
        """

    def resize(self, slots: int) -> int:
        """Change how many requests may run at once, within `ModelInfo.max_slots`.

        Called only when no more than `slots` requests run.

        Returns:
            The number that now can.
        """
        raise UnsupportedError("resize")

    def reasoning_ended(self, request_id: str, choice: int) -> None:
        """Told when the text pipeline saw the end of reasoning, so that a grammar may take hold from here.

        Called between steps. The default does nothing.
        """
