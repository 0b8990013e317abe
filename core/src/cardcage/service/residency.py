"""Which models are loaded: load, resize, unload, load on demand, keep-alive and eviction."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from cardcage.catalog.resolver import loaded_id
from cardcage.names import default_model_id
from cardcage.scheduling.pool import Pool
from cardcage.scheduling.queue import fresh_error
from cardcage.service.planning import check_instance_count, check_load_id
from cardcage.service.resident import ContextWish, Resident
from cardcage.service.room import Room
from cardcage.workers.tasks import Pulse, TaskSet, first_of
from cardcage_sdk.errors import (
    CardcageError,
    DrainingError,
    InternalError,
    InvalidRequestError,
    ModelAlreadyExistsError,
    ModelNotFoundError,
)
from cardcage_sdk.service import GenerationDefaults, LoadRequest, LoadResult

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cardcage.catalog import Catalog
    from cardcage.config import Config
    from cardcage.service.planning import Planner
    from cardcage.workers.supervisor import Supervisor
    from cardcage_sdk.models import ModelArtifact
    from cardcage_sdk.platform import Platform

__all__ = ["HOLD_SECONDS", "Residency"]

HOLD_SECONDS = 10.0
"""A model that was loaded on demand for a request is kept for so long at least until that request comes."""

_LOOK_AGAIN_SECONDS = 1.0
"""How often a request that lets another model have its turn looks whether that is over; news make it look at once."""


class Residency:
    """All models of a server, loaded or on their way in or out. One object of the event loop."""

    def __init__(self, *, config: Config, catalog: Catalog, planner: Planner, supervisor: Supervisor) -> None:
        self._config = config
        self._catalog = catalog
        self._planner = planner
        self._supervisor = supervisor
        self._residents: dict[str, Resident] = {}
        self._changed = Pulse()
        self._room = Room(
            config=config,
            memory=supervisor.memory,
            residents=lambda: self.residents,
            close=self._begin_closing,
            changed=self._changed,
        )
        self._over: CardcageError | None = None
        self._tasks = TaskSet("residency")
        self._log = structlog.get_logger("cardcage.residency")

    @property
    def residents(self) -> tuple[Resident, ...]:
        """All, in the order in which their loads were asked for."""
        return tuple(self._residents.values())

    def get(self, model_id: str) -> Resident:
        """One of them.

        Raises:
            ModelNotFoundError: No model has this id.
        """
        resident = self._residents.get(model_id)
        if resident is None:
            raise ModelNotFoundError(model_id)
        return resident

    # --- requests come and go

    def enter(self, resident: Resident) -> None:
        """A request is in here: the model does not go as idle."""
        resident.active += 1
        resident.held_until = -math.inf
        self._cancel_expiry(resident)

    def leave(self, resident: Resident) -> None:
        """The request is gone."""
        resident.active -= 1
        resident.last_used_at = asyncio.get_running_loop().time()
        self._changed.tell()
        self._schedule_expiry(resident)

    # --- load

    async def load(self, request: LoadRequest, *, is_trusted: bool = False) -> LoadResult:
        """Load by name or path, and pin.

        Args:
            request: What to load.
            is_trusted: It comes from the configuration, so that its path may lie anywhere.
        """
        self._refuse_when_over()
        check_load_id(request.model_id)
        check_instance_count(request.instance_count)
        resident = self._residents.get(request.model_id)
        while resident is not None and resident.is_loading and not resident.is_pinned:
            await asyncio.wait({resident.loaded})
            resident = self._residents.get(request.model_id)
        if resident is None:
            resident = self._begin(request, is_pinned=True, is_trusted=is_trusted, keep_alive_seconds=math.inf)
        elif not resident.is_pinned and resident.closing is None:
            return await self._tasks.see_through(self._adopt(resident, request), name=f"adopt {resident.id}")
        elif not (resident.is_loading and resident.request == request):
            raise ModelAlreadyExistsError(request.model_id)
        await asyncio.wait({resident.loaded})
        return resident.result()

    async def ensure_loaded(self, name: str, *, keep_alive_seconds: float | None = None) -> Resident:
        """Have a model of the catalog loaded for a request that follows; load it on demand where it is not.

        Args:
            name: Id of a loaded model, or a name of the catalog.
            keep_alive_seconds: How long it stays after its last request, from now on; None takes the configuration's.
                A pinned model stays whatever this says.

        Raises:
            ModelNotFoundError: Neither a loaded model nor one of the catalog has this name.
            CardcageError: The load failed.
        """
        async with self.using(name, keep_alive_seconds=keep_alive_seconds) as resident:
            resident.held_until = asyncio.get_running_loop().time() + HOLD_SECONDS
        return resident

    @asynccontextmanager
    async def using(
        self,
        name: str,
        *,
        keep_alive_seconds: float | None = None,
        context_tokens: int | None = None,
        is_exact_context: bool = False,
    ) -> AsyncIterator[Resident]:
        """See `cardcage_sdk.service.Service.using`."""
        wish = ContextWish(tokens=context_tokens, is_exact=is_exact_context)
        resident = await self._wanted(name, wish, keep_alive_seconds)
        # No await between finding it and this, so that it cannot go in between.
        resident.active += 1
        self._cancel_expiry(resident)
        try:
            await resident.wait_loaded(timeout_seconds=self._config.server.load_timeout_seconds)
            yield resident
        finally:
            self.leave(resident)

    async def _wanted(self, name: str, wish: ContextWish, keep_alive_seconds: float | None) -> Resident:
        """Find the model, or begin its load; wait where it is on its way out, and while others have their turn."""
        while True:
            self._refuse_when_over()
            resident, artifact = await self._look_up(name, wish)
            if resident is None and artifact is not None:
                # No await since the look-up, so that two requests for one model share one load.
                return self._begin_on_demand(artifact, wish, keep_alive_seconds)
            if resident is None:
                raise InternalError("neither a model nor its files were found, and nothing said so")
            if resident.closing is not None and resident.is_pinned:
                raise DrainingError(f"Model '{resident.id}' is being unloaded")
            if resident.closing is not None or self._may_try_anew(resident):
                await asyncio.shield(self._begin_closing(resident))
            elif resident.is_loading and resident.context_wanted is None and wish.tokens is not None:
                await asyncio.wait({resident.loaded})  # only then is known with how much context
            elif not resident.is_pinned and not resident.is_loading and self._room.is_turn_of_another(resident):
                await asyncio.wait([self._changed.next()], timeout=_LOOK_AGAIN_SECONDS)
            else:
                if keep_alive_seconds is not None:
                    resident.keep_alive_seconds = keep_alive_seconds
                return resident

    async def _look_up(self, name: str, wish: ContextWish) -> tuple[Resident | None, ModelArtifact | None]:
        known = self._residents.get(loaded_id(name, tuple(self._residents)) or name)
        if known is None:
            artifact = await asyncio.to_thread(self._catalog.find, name)
            return self._resident_of(artifact, wish), artifact
        if known.is_loading or known.has_context(wish):
            return known, None
        if known.plan is None or known.request.model_path is None or known.is_pinned:
            try:
                artifact = await asyncio.to_thread(self._catalog.find, name)
            except ModelNotFoundError:
                raise InvalidRequestError(
                    f"Model '{known.id}' is loaded with another context than {wish.tokens} tokens", param="num_ctx"
                ) from None
            return self._resident_of(artifact, wish), artifact
        return self._resident_of(known.plan.artifact, wish), known.plan.artifact

    def _begin_on_demand(self, artifact: ModelArtifact, wish: ContextWish, keep_alive: float | None) -> Resident:
        model_id = default_model_id(artifact)
        if wish.tokens is not None:
            model_id = f"{model_id}+{wish.tokens}"
        request = LoadRequest(
            model_id=model_id,
            model_path=str(artifact.path),
            defaults=GenerationDefaults(max_context_len=wish.tokens),
        )
        seconds = self._config.scheduling.keep_alive_seconds if keep_alive is None else keep_alive
        return self._begin(request, is_pinned=False, is_trusted=True, keep_alive_seconds=seconds)

    async def let_go(self, name: str) -> bool:
        """See `cardcage_sdk.service.Service.let_go`."""
        known = self._residents.get(loaded_id(name, tuple(self._residents)) or name)
        path = None
        if known is None or known.plan is not None:
            try:
                path = (await asyncio.to_thread(self._catalog.find, name)).path
            except CardcageError:
                path = known.plan.artifact.path if known is not None and known.plan is not None else None
        going: list[asyncio.Task[None]] = []
        found = False
        for resident in self.residents:
            if resident.is_pinned or not (resident is known or (path is not None and resident.is_of(path))):
                continue
            found = True
            resident.keep_alive_seconds = 0.0
            resident.held_until = -math.inf
            if resident.is_idle(now=asyncio.get_running_loop().time()):
                going.append(self._begin_closing(resident))
            else:
                self._schedule_expiry(resident)
        if going:
            await asyncio.wait([asyncio.shield(task) for task in going])
        return found

    def _may_try_anew(self, resident: Resident) -> bool:
        """A model on demand that has failed is loaded anew for a request, but not more often than its crashes are counted."""
        pool, window = resident.pool, self._supervisor.settings.restart.window_seconds
        if resident.is_pinned or resident.closing is not None or pool is None or pool.failed_at is None:
            return False
        return asyncio.get_running_loop().time() - pool.failed_at >= window

    def _resident_of(self, artifact: ModelArtifact, wish: ContextWish) -> Resident | None:
        """The loaded model of these files that has the context; by its own id first, then the one with the least."""
        named = self._residents.get(default_model_id(artifact))
        mine = [resident for resident in self._residents.values() if resident is named or resident.is_of(artifact.path)]
        fitting = [
            resident
            for resident in mine
            if resident.has_context(wish) or (resident.is_loading and resident.context_wanted is None)
        ]
        if named in fitting:
            return named
        return min(fitting, key=lambda resident: resident.context_tokens or 0, default=None)

    def _begin(self, request: LoadRequest, *, is_pinned: bool, is_trusted: bool, keep_alive_seconds: float) -> Resident:
        """Take the id and begin the load; synchronous, so that nobody else takes it meanwhile."""
        places = request.request_queue_size
        resident = Resident(
            id=request.model_id,
            request=request,
            places=self._config.server.request_queue_size if places is None else places,
            is_pinned=is_pinned,
            keep_alive_seconds=keep_alive_seconds,
            loaded=asyncio.get_running_loop().create_future(),
        )
        self._residents[resident.id] = resident
        resident.load_task = self._tasks.spawn(
            self._bring_up(resident, is_trusted=is_trusted), name=f"load {resident.id}"
        )
        return resident

    async def _bring_up(self, resident: Resident, *, is_trusted: bool) -> None:
        """The whole load, beside whoever asked for it."""
        began = time.monotonic()
        try:
            result = await self._load(resident, is_trusted=is_trusted)
        except CardcageError as error:
            await self._bring_down(resident, error)
        except asyncio.CancelledError:
            await self._bring_down(resident, DrainingError(f"The load of '{resident.id}' was ended"))
        except Exception as error:  # noqa: BLE001 - the boundary of a load: a plugin's fault must not leave waiters waiting
            self._log.error("load failed for a reason that is no error of the tree", model=resident.id, exc_info=error)
            await self._bring_down(resident, InternalError())
        else:
            resident.loaded_at = time.time()
            resident.last_used_at = asyncio.get_running_loop().time()
            resident.loaded.set_result(result)
            self._log.info("model loaded", model=resident.id, seconds=round(time.monotonic() - began, 3))
            self._schedule_expiry(resident)
        self._changed.tell()

    async def _bring_down(self, resident: Resident, error: CardcageError) -> None:
        """A load has failed: free the id, end what was started, tell those who wait."""
        self._log.warning("load failed", model=resident.id, error=error.message, code=error.code)
        if resident.closing is None:
            del self._residents[resident.id]
        resident.loaded.set_exception(error)
        resident.loaded.exception()  # marks it as seen: perhaps everyone who waited has left
        if resident.pool is not None:
            resident.pool.begin_closing(error)
            await resident.pool.close()

    async def _load(self, resident: Resident, *, is_trusted: bool) -> LoadResult:
        request = resident.request
        plan = await self._planner.plan(request, is_trusted=is_trusted)
        resident.plan = plan
        resident.pool = Pool(
            self._planner.worker_spec(resident.id, plan, instances=request.instance_count),
            self._supervisor,
            places=resident.places,
            admit=lambda: self._room.admission(resident, plan),
            on_change=self._changed.tell,
        )
        instances = request.instance_count
        if not resident.is_pinned:
            instances = max(instances, _slots_at_once(plan.plugin.platform))
        actual = await resident.pool.resize(instances)
        return LoadResult(
            model_id=resident.id,
            requested_instance_count=instances,
            actual_instance_count=actual,
        )

    # --- resize, pin

    async def resize(self, model_id: str, instance_count: int) -> LoadResult:
        """Change the number of instances."""
        self._refuse_when_over()
        resident = self.get(model_id)
        check_instance_count(instance_count)
        await resident.wait_loaded(timeout_seconds=self._config.server.load_timeout_seconds)
        return await self._tasks.see_through(self._resize(resident, instance_count), name=f"resize {model_id}")

    async def _resize(self, resident: Resident, instance_count: int) -> LoadResult:
        if resident.plan is None or resident.pool is None:
            raise InternalError("a loaded model has no pool")
        if resident.closing is not None:
            raise DrainingError(f"Model '{resident.id}' is being unloaded")
        check_instance_count(instance_count, resident.plan.plugin.platform)
        actual = await resident.pool.resize(instance_count)
        return LoadResult(model_id=resident.id, requested_instance_count=instance_count, actual_instance_count=actual)

    async def _adopt(self, resident: Resident, request: LoadRequest) -> LoadResult:
        """Pin a model that a request loaded on demand, where the load by name means the very same."""
        plan = await self._planner.plan(request, is_trusted=False)
        known = resident.plan
        is_same = (
            known is not None
            and (known.artifact, known.plugin.name, known.options) == (plan.artifact, plan.plugin.name, plan.options)
            and known.defaults.max_context_len == plan.defaults.max_context_len
        )
        if not is_same or resident.is_pinned or resident.closing is not None:
            raise ModelAlreadyExistsError(request.model_id)
        self._pin(resident)
        resident.plan = plan
        return await self._resize(resident, request.instance_count)

    def _pin(self, resident: Resident) -> None:
        resident.is_pinned = True
        self._cancel_expiry(resident)

    def _cancel_expiry(self, resident: Resident) -> None:
        if resident.expiry is not None:
            resident.expiry.cancel()
            resident.expiry = None

    # --- unload

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        """Unload a model; shared by all who ask, and going on when they leave."""
        resident = self.get(model_id)
        if force:
            resident.force.set()
        await asyncio.shield(self._begin_closing(resident))

    def _begin_closing(self, resident: Resident) -> asyncio.Task[None]:
        """Refuse new requests from now on; synchronous, so that none slips in between the decision and this."""
        if resident.closing is None:
            resident.closing = self._tasks.spawn(self._close(resident), name=f"unload {resident.id}")
        return resident.closing

    async def _close(self, resident: Resident) -> None:
        error = fresh_error(self._over) if self._over else DrainingError(f"Model '{resident.id}' is being unloaded")
        try:
            if resident.expiry is not None:
                resident.expiry.cancel()
            if resident.load_task is not None and resident.is_loading:
                resident.load_task.cancel()
                await asyncio.wait({resident.load_task})
            pool = resident.pool
            if pool is not None:
                pool.begin_closing(error)
                await self._until_idle(resident, pool, error)
                await pool.close()
        finally:
            del self._residents[resident.id]
            self._changed.tell()
        self._log.info("model unloaded", model=resident.id)

    async def _until_idle(self, resident: Resident, pool: Pool, error: CardcageError) -> None:
        """Wait for running requests; once the unload is forced, end them and wait for their engines a moment."""
        forced = asyncio.ensure_future(resident.force.wait())
        try:
            while pool.running and not forced.done():
                await first_of(forced, self._changed.next())
        finally:
            forced.cancel()
        if pool.running:
            pool.interrupt(error)
            try:
                async with asyncio.timeout(pool.capabilities.cancel_seconds):
                    while pool.running:
                        await self._changed.next()
            except TimeoutError:
                self._log.warning("requests did not end", model=resident.id, running=pool.running)

    # --- keep-alive

    def _schedule_expiry(self, resident: Resident) -> None:
        """Have an idle model that is not pinned unloaded in time."""
        if resident.is_pinned or resident.active or resident.closing is not None or resident.is_loading:
            return
        loop = asyncio.get_running_loop()
        at = max(resident.last_used_at + resident.keep_alive_seconds, resident.held_until)
        if resident.expiry is not None:
            resident.expiry.cancel()
        resident.expiry = None if at == math.inf else loop.call_at(at, self._expire, resident)

    def _expire(self, resident: Resident) -> None:
        resident.expiry = None
        if not resident.is_pinned and resident.is_idle(now=asyncio.get_running_loop().time()):
            self._begin_closing(resident)
        elif not resident.active:
            # Its last engine has not let go yet, or it was promised anew.
            resident.last_used_at = asyncio.get_running_loop().time()
            self._schedule_expiry(resident)

    # --- end

    def begin_ending(self, error: CardcageError) -> None:
        """Take no new load."""
        self._over = error

    def interrupt(self, error: CardcageError) -> None:
        """End all requests, running and waiting, with this error."""
        for resident in self.residents:
            if resident.is_loading and resident.load_task is not None:
                resident.load_task.cancel()
            if resident.pool is not None:
                resident.pool.seats.queue.flush(error)
                resident.pool.interrupt(error)

    async def close(self) -> None:
        """Unload everything, ending what runs."""
        await asyncio.gather(*(self.unload(resident.id, force=True) for resident in self.residents))
        await self._tasks.wait()

    def _refuse_when_over(self) -> None:
        if self._over is not None:
            raise fresh_error(self._over)


def _slots_at_once(platform: Platform) -> int:
    """Requests that a model on demand takes at once: as many as its platform suggests, where one more costs no worker."""
    scaling = platform.scaling
    if scaling.unit != "slots":
        return 1
    return max(1, min(scaling.suggested, scaling.maximum or scaling.suggested))
