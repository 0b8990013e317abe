"""What a dialect may ask of core.

Every method is called in the server's event loop. Errors are those of `cardcage_sdk.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from cardcage_sdk.chat import JsonValue, Message, Sampling

if TYPE_CHECKING:
    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
    from cardcage_sdk.events import ChatEvent
    from cardcage_sdk.library import Library
    from cardcage_sdk.models import ModelInfo
    from cardcage_sdk.platform import Device

__all__ = ["GenerationDefaults", "LoadRequest", "LoadResult", "ModelStatus", "PlatformStatus", "Service"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Default generation parameters of a model; what is None is silent.

    Attributes:
        sampling: Includes `max_tokens` and `stop`.
        max_context_len: Context in tokens that the model is to be loaded with.
        system: Put first where a conversation begins with no system message.
        messages: Sample turns, put before the client's own but behind the system message.
    """

    sampling: Sampling = field(default_factory=Sampling)
    max_context_len: int | None = None
    enable_thinking: bool | None = None
    system: str | None = None
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRequest:
    """Load a model by name or path and pin it.

    Attributes:
        model_id: Id under which clients will ask for it.
        model_path: Model directory or file on the server; None takes `model_id` as a name of the catalog.
        instance_count: Instances wanted, at least 1.
        request_queue_size: Waiting places; None takes the configuration's.
        platform: Platform id; None lets `model.toml`, then the files decide.
        options: Load options of the platform.
    """

    model_id: str
    model_path: str | None = None
    instance_count: int = 1
    request_queue_size: int | None = None
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    platform: str | None = None
    options: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """Outcome of a load or resize that made at least one instance."""

    model_id: str
    requested_instance_count: int
    actual_instance_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A loaded model, or one that is being loaded or drained.

    Attributes:
        kind: `chat` or `embedding`.
        tasks: All tasks that it does.
        state: `loading`, `ready`, `draining` or `failed`.
        instance_count: Instances that can serve now; may be lower than `requested_instance_count`.
        running: Requests that hold a lease. `queued`: requests that wait for one.
        loaded_at: Unix time in seconds.
        pinned: Loaded by name and kept until unloaded; otherwise it goes when idle.
        name: Name with size of the model on disk, as `smollm2:135m`.
        expires_at: Unix time in seconds at which it goes if no request comes; for one that is in use, as if its last request
            ended now. None: it stays.
        host_bytes, device_bytes: Memory that its workers take, as estimated, on the host and on devices of their own memory.
    """

    id: str
    name: str
    path: str
    platform: str
    kind: Literal["chat", "embedding"]
    tasks: frozenset[str]
    state: Literal["loading", "ready", "draining", "failed"]
    instance_count: int
    requested_instance_count: int
    request_queue_size: int
    running: int
    queued: int
    loaded_at: float
    pinned: bool
    size_bytes: int
    capabilities: Capabilities
    info: ModelInfo
    defaults: GenerationDefaults
    expires_at: float | None = None
    host_bytes: int = 0
    device_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformStatus:
    """An installed platform on this machine.

    Attributes:
        available: A model of it could be loaded now; otherwise `reason` says why not.
        distribution: Name and version of the package that brings it.
    """

    id: str
    display_name: str
    available: bool
    reason: str
    devices: tuple[Device, ...]
    capabilities: Capabilities
    versions: Mapping[str, str]
    distribution: str


class Service(Protocol):
    """What a dialect may ask of core."""

    def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Run a chat request.

        The first event is `Accepted`, before any `Progress`; a dialect sends no byte before it. Errors are raised out of
        the generator: before `Accepted` they may become a status, after it an event of the dialect. Close the generator
        (`contextlib.aclosing`) or cancel the task to leave: the engine is then told at once and the lease is given back.

        Raises:
            ModelNotFoundError, WrongModelTypeError, UnsupportedError, ContextLengthExceededError, InvalidSchemaError: at fault
                is the request; before `Accepted`.
            QueueFullError, QueueTimeoutError, DrainingError: no instance; before the first delta.
            EngineCrashedError, EngineHungError, EngineFailedError: at any time.
        """
        ...

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Turn texts into vectors."""
        ...

    async def rerank(self, request: RerankRequest) -> RerankResult:
        """Score documents against a query."""
        ...

    def models(self) -> Sequence[ModelStatus]:
        """All loaded models, in the order in which they were loaded."""
        ...

    def model(self, model_id: str) -> ModelStatus:
        """One loaded model.

        Raises:
            ModelNotFoundError: No loaded model has this id.
        """
        ...

    async def ensure_loaded(self, name: str, *, keep_alive_seconds: float | None = None) -> ModelStatus:
        """Have a model of the catalog loaded for a request that follows; load it on demand, unpinned, where it is not.

        Args:
            name: Id of a loaded model, or a name of the catalog.
            keep_alive_seconds: How long it stays after its last request; 0 unloads it then, `math.inf` keeps it, None
                takes the configuration's. A pinned model stays in any case.

        Returns:
            The loaded model; the request asks for it by the status' `id`, which may differ from `name`.

        Raises:
            ModelNotFoundError: Neither a loaded model nor one of the catalog has this name.
            DrainingError: It is being unloaded, or the server is ending.
            ModelError, LoadTimeoutError: It could not be loaded.
        """
        ...

    def using(
        self,
        name: str,
        *,
        keep_alive_seconds: float | None = None,
        context_tokens: int | None = None,
        is_exact_context: bool = False,
    ) -> AbstractAsyncContextManager[ModelStatus]:
        """As `ensure_loaded`, and the model stays for as long as the context is open.

        So what lies between loading and using it cannot lose it to another model's load. Where the model is just being
        unloaded, that is waited for and it is loaded anew.

        Args:
            name: As for `ensure_loaded`.
            keep_alive_seconds: As for `ensure_loaded`; it replaces what an earlier caller said.
            context_tokens: Context that the caller needs; one that is not loaded with as much is loaded a second time, beside
                the first, with so much. None takes whatever it is, or will be, loaded with.
            is_exact_context: More than that will not do either.

        Raises:
            InvalidRequestError: The name is the id of a model that was loaded by its path, with another context.
            ModelNotFoundError, DrainingError, ModelError, BusyError, LoadTimeoutError: As `ensure_loaded`.
        """
        ...

    async def let_go(self, name: str) -> bool:
        """Have a model that was loaded on demand unloaded as soon as no request uses it, with whatever contexts it is loaded.

        Returns when those that were idle are gone. What is pinned stays.

        Returns:
            Whether there was any.
        """
        ...

    async def load(self, request: LoadRequest) -> LoadResult:
        """Load a model, pin it, and return when at least one instance serves.

        A caller that leaves does not stop the load.

        Raises:
            ModelAlreadyExistsError: The id is taken.
            InvalidInstanceCountError: Below 1, or over what the platform allows.
            UnsupportedPlatformError, PlatformDetectionError, InvalidModelError, PathNotAllowedError: It cannot be loaded.
            OutOfMemoryError, LoadFailedError, LoadTimeoutError: No instance came up.
        """
        ...

    async def resize(self, model_id: str, instance_count: int) -> LoadResult:
        """Change the number of instances of a loaded model; running requests are not ended."""
        ...

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        """Unload a model: wait for its running requests, refuse new ones meanwhile; `force` ends them with an error."""
        ...

    async def platforms(self) -> Sequence[PlatformStatus]:
        """All installed platforms, probed now."""
        ...

    @property
    def library(self) -> Library:
        """Models on disk, and the pulls that add to them."""
        ...
