"""The service: what dialects are given, and the life cycle that the server drives."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from cardcage.downloads import build_library
from cardcage.service.counters import RequestCounters
from cardcage.service.planning import Planner
from cardcage.service.platforms import Platforms
from cardcage.service.requests import Requests
from cardcage.service.residency import Residency
from cardcage.workers.supervisor import Supervisor, WorkerCounters
from cardcage.workers.tasks import TaskSet
from cardcage_sdk.errors import CardcageError, DrainingError, ModelNotFoundError
from cardcage_sdk.service import LoadRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence

    from cardcage.catalog import Catalog
    from cardcage.config import Config, ModelEntry
    from cardcage.plugins.registry import PluginRegistry
    from cardcage.service.counters import Observer
    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
    from cardcage_sdk.events import ChatEvent
    from cardcage_sdk.library import Library
    from cardcage_sdk.service import LoadResult, ModelStatus, PlatformStatus

__all__ = ["ModelService"]

_LAST_WORDS_SECONDS = 2.0
"""Time for dialects to send the final error of requests that the end of the server cut off."""


class ModelService:
    """Implements `cardcage_sdk.service.Service` over worker processes.

    Constructed in any thread, used in one event loop. Life: `start` once; `begin_draining`, `drain` and `stop` at the end.

    Attributes:
        counters: Requests since start, for metrics.
        preload_failures: Models of the configuration that could not be loaded, with the reason.
    """

    def __init__(
        self,
        *,
        config: Config,
        registry: PluginRegistry,
        catalog: Catalog,
        supervisor: Supervisor | None = None,
    ) -> None:
        """Put the parts together; starts nothing.

        Args:
            config: What the operator decided.
            registry: The platforms.
            catalog: The models on disk.
            supervisor: With deadlines of one's own; None takes the defaults.
        """
        self.counters = RequestCounters()
        self.preload_failures: dict[str, str] = {}
        self._config = config
        self._supervisor = supervisor or Supervisor()
        self._platforms = Platforms(registry, order=config.platform_order)
        self._residency = Residency(
            config=config,
            catalog=catalog,
            planner=Planner(config=config, catalog=catalog, platforms=self._platforms),
            supervisor=self._supervisor,
        )
        self._requests = Requests(config=config, residency=self._residency, counters=self.counters)
        self._library = build_library(config, registry, catalog, is_loaded=self._residents_of)
        self._tasks = TaskSet("service")
        self._preloading: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("cardcage.service")

    # --- requests

    def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Run a chat request; see `cardcage_sdk.service.Service`."""
        return self._requests.chat(request)

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Turn texts into vectors; see `cardcage_sdk.service.Service`."""
        return await self._requests.embed(request)

    async def rerank(self, request: RerankRequest) -> RerankResult:
        """Score documents; see `cardcage_sdk.service.Service`."""
        return await self._requests.rerank(request)

    # --- models

    def models(self) -> Sequence[ModelStatus]:
        """All loaded models, those that are being loaded or unloaded included."""
        statuses = (resident.status() for resident in self._residency.residents)
        return [status for status in statuses if status is not None]

    def model(self, model_id: str) -> ModelStatus:
        """One of them.

        Raises:
            ModelNotFoundError: No model has this id, or it is not known yet what is being loaded under it.
        """
        status = self._residency.get(model_id).status()
        if status is None:
            raise ModelNotFoundError(model_id)
        return status

    async def load(self, request: LoadRequest) -> LoadResult:
        """Load a model and pin it; see `cardcage_sdk.service.Service`."""
        return await self._residency.load(request)

    async def ensure_loaded(self, name: str, *, keep_alive_seconds: float | None = None) -> ModelStatus:
        """Load a model of the catalog on demand where it is not loaded; the request that follows finds it under the status' id.

        Args:
            name: Id of a loaded model, or a name of the catalog.
            keep_alive_seconds: How long it stays after its last request; 0 unloads it then, `math.inf` keeps it, None
                takes the configuration's. A pinned model stays in any case.
        """
        resident = await self._residency.ensure_loaded(name, keep_alive_seconds=keep_alive_seconds)
        return self.model(resident.id)

    @asynccontextmanager
    async def using(
        self,
        name: str,
        *,
        keep_alive_seconds: float | None = None,
        context_tokens: int | None = None,
        is_exact_context: bool = False,
    ) -> AsyncIterator[ModelStatus]:
        """Load a model on demand where it is not loaded, and keep it; see `cardcage_sdk.service.Service`."""
        async with self._residency.using(
            name,
            keep_alive_seconds=keep_alive_seconds,
            context_tokens=context_tokens,
            is_exact_context=is_exact_context,
        ) as resident:
            yield self.model(resident.id)

    async def let_go(self, name: str) -> bool:
        """Have a model on demand unloaded when it is idle; see `cardcage_sdk.service.Service`."""
        return await self._residency.let_go(name)

    async def resize(self, model_id: str, instance_count: int) -> LoadResult:
        """Change the number of instances; see `cardcage_sdk.service.Service`."""
        return await self._residency.resize(model_id, instance_count)

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        """Unload a model; see `cardcage_sdk.service.Service`."""
        await self._residency.unload(model_id, force=force)

    async def platforms(self) -> Sequence[PlatformStatus]:
        """All installed platforms; a probe's answer is good for a few seconds."""
        return await self._platforms.statuses()

    @property
    def library(self) -> Library:
        """Models on disk and pulls; see `cardcage_sdk.library.Library`."""
        return self._library

    def _residents_of(self, path: Path) -> int:
        """How many loaded models have their files in this directory, by whatever path they were loaded."""
        folder = path.resolve()
        loaded = [Path(status.path).resolve() for status in self.models()]
        return sum(folder in {place, *place.parents} for place in loaded)

    # --- for metrics and readiness

    def observe(self, observer: Observer) -> None:
        """Tell this observer from now on what happens to requests and loads."""
        self.counters.observer = observer
        self._supervisor.on_ready = lambda worker, seconds: observer.on_loaded(worker.spec.model_id, seconds)

    @property
    def worker_counters(self) -> WorkerCounters:
        """Starts, crashes and hangs of workers since start."""
        return self._supervisor.counters

    @property
    def worker_pids(self) -> Mapping[int, str]:
        """Process id of every live worker, with its model's id."""
        return {worker.pid: worker.spec.model_id for worker in self._supervisor.workers if worker.pid is not None}

    @property
    def active_requests(self) -> int:
        """Requests that are in the service in any state."""
        return self._requests.active

    @property
    def is_preloading(self) -> bool:
        """Models of the configuration are still being loaded."""
        return self._preloading is not None and not self._preloading.done()

    # --- life cycle

    async def start(self) -> None:
        """Begin to load the configuration's models, in their order, and return at once: HTTP need not wait for them."""
        self._library.sweep()
        if self._config.models:
            self._preloading = self._tasks.spawn(self._preload(), name="preload")

    async def _preload(self) -> None:
        for entry in self._config.models:
            try:
                await self._residency.load(_load_request(entry), is_trusted=True)
            except CardcageError as error:
                self._log.error("model of the configuration not loaded", model=entry.model_id, error=error.message)
                self.preload_failures[entry.model_id] = error.message

    def begin_draining(self) -> None:
        """Refuse new requests and loads; what is in the queue or runs goes on."""
        error = DrainingError()
        self._requests.begin_ending(error)
        self._residency.begin_ending(error)

    async def drain(self, timeout_seconds: float) -> None:
        """Wait for the requests that are in here; end what is left after the time-out with `DrainingError`."""
        self.begin_draining()
        await self._tasks.cancel()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._requests.wait_none_left()
        except TimeoutError:
            self._log.warning("ending requests", active=self._requests.active)
            self._residency.interrupt(DrainingError())
            try:
                async with asyncio.timeout(_LAST_WORDS_SECONDS):
                    await self._requests.wait_none_left()
            except TimeoutError:
                self._log.warning("requests did not take their end", active=self._requests.active)

    async def stop(self) -> None:
        """End all loads, requests and workers; returns when no process is left."""
        self.begin_draining()
        await self._tasks.cancel()
        await self._library.close()
        await self._residency.close()
        await self._supervisor.stop_all()


def _load_request(entry: ModelEntry) -> LoadRequest:
    return LoadRequest(
        model_id=entry.model_id,
        model_path=entry.model_path,
        instance_count=entry.instance_count,
        request_queue_size=entry.request_queue_size,
        defaults=entry.defaults,
        platform=entry.platform,
        options=entry.options,
    )
