"""The models on disk, and the pulls that add to them: what core gives dialects as `Service.library`."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from cardcage.catalog.resolver import parse_reference, without_secrets
from cardcage.downloads.asking import PAUSES_SECONDS, ask, sources_for
from cardcage.downloads.describing import describe, stored_model
from cardcage.downloads.fitting import Choice, choose, fits_of
from cardcage.downloads.job import SPARE_BYTES, Job, JobPlan
from cardcage.downloads.machine import read_machine
from cardcage.downloads.making import Maker
from cardcage.downloads.openers import Openers
from cardcage.downloads.partials import FILES, PARTIAL, Partial, discard, partials_of
from cardcage.downloads.placing import Naming, remove_from_store, restore_store
from cardcage.downloads.pull import Pull
from cardcage.downloads.transfer import RetryPolicy
from cardcage.downloads.uploads import Uploads
from cardcage.names import default_model_id
from cardcage_sdk.errors import (
    CardcageError,
    DrainingError,
    InternalError,
    InvalidModelError,
    ModelInUseError,
    ModelNotFoundError,
    PullCancelledError,
)
from cardcage_sdk.library import (
    CreateRequest,
    Library,
    ModelDescription,
    PullProgress,
    PullRequest,
    StoredModel,
    VariantReport,
)

if TYPE_CHECKING:
    from pathlib import Path

    from cardcage.catalog import Catalog
    from cardcage_sdk.models import ModelArtifact
    from cardcage_sdk.platform import Platform
    from cardcage_sdk.sources import ModelReference, Offer, RemoteModel, Source

__all__ = ["Downloads"]

KEPT_PULLS = 32
"""Ended pulls that `pulls` still tells of."""

PARALLEL_PULLS = 2
"""Pulls that fetch at once; the others wait."""

log = structlog.get_logger("cardcage.downloads")


class Downloads(Library):
    """Implements `Library`. One object a server, in its event loop; `close` ends it.

    Args:
        catalog: The models on disk.
        platforms: Installed platforms by id, in the order of preference.
        sources: Installed sources by id.
        allows_path: Whether a `file:` address may name this path.
        is_loaded: How many requests or instances hold the model in this directory; 0 where none.
        retries: Of broken connections. `ask_pauses_seconds`: between tries of a source's answer.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        platforms: Mapping[str, Platform],
        sources: Mapping[str, Source],
        allows_path: Callable[[Path], bool],
        is_loaded: Callable[[Path], int] = lambda _path: 0,
        user_agent: str = "cardcage",
        retries: RetryPolicy | None = None,
        ask_pauses_seconds: Sequence[float] = PAUSES_SECONDS,
        spare_bytes: int = SPARE_BYTES,
    ) -> None:
        self._catalog = catalog
        self._platforms = platforms
        self._sources = sources
        self._is_loaded = is_loaded
        self._openers = Openers(allows_path=allows_path, user_agent=user_agent)
        self._retries = retries or RetryPolicy()
        self._ask_pauses_seconds = ask_pauses_seconds
        self._spare_bytes = spare_bytes
        self._pulls: dict[str, Pull] = {}
        self._by_folder: dict[Path, Pull] = {}
        self._slots = asyncio.Semaphore(PARALLEL_PULLS)
        self._is_closing = False
        self._uploads = Uploads(catalog)
        self._maker = Maker(catalog=catalog, platforms=platforms, uploads=self._uploads, is_loaded=is_loaded)
        self._making = asyncio.Lock()

    # --- what is there ---------------------------------------------------------------------------------------------

    def stored(self) -> Sequence[StoredModel]:
        """See `Library.stored`."""
        artifacts, problems = self._catalog.scan()
        unusable = [
            StoredModel(id=problem.path.name, name=problem.path.name, path=str(problem.path), problem=problem.reason)
            for problem in problems
        ]
        return [*(stored_model(artifact) for artifact in artifacts), *unusable]

    def find(self, name: str) -> StoredModel:
        """See `Library.find`."""
        return stored_model(self._catalog.find(name))

    async def describe(self, name: str) -> ModelDescription:
        """See `Library.describe`."""
        return await asyncio.to_thread(lambda: describe(self._catalog.find(name), self._catalog, self._platforms))

    async def descriptions(self) -> Sequence[ModelDescription]:
        """See `Library.descriptions`."""

        def all_of_them() -> list[ModelDescription]:
            found: list[ModelDescription] = []
            for artifact in self._catalog.entries():
                # One that is removed, or broken, while the others are read is none to list.
                with contextlib.suppress(InvalidModelError, FileNotFoundError):
                    found.append(describe(artifact, self._catalog, self._platforms))
            return found

        return await asyncio.to_thread(all_of_them)

    # --- making ----------------------------------------------------------------------------------------------------

    async def has_file(self, sha256: str) -> bool:
        """See `Library.has_file`."""
        return await asyncio.to_thread(self._uploads.find, sha256) is not None

    async def add_file(self, sha256: str, chunks: AsyncIterable[bytes]) -> bool:
        """See `Library.add_file`."""
        return await self._uploads.add(sha256, chunks)

    async def create(self, request: CreateRequest) -> StoredModel:
        """See `Library.create`."""
        async with self._making:
            # A caller that leaves does not stop it halfway.
            return stored_model(await asyncio.shield(asyncio.to_thread(self._maker.make, request)))

    async def offers(self) -> tuple[Sequence[Offer], Sequence[CardcageError]]:
        """See `Library.offers`."""
        sources = list(self._sources.values())
        answers = await asyncio.gather(*(_offers_of(source) for source in sources))
        offered = [offer for found, _ in answers for offer in found]
        return offered, [error for _, error in answers if error is not None]

    async def variants(self, request: PullRequest) -> Sequence[VariantReport]:
        """See `Library.variants`."""
        _, model = await self._ask(request)
        machine = await asyncio.to_thread(read_machine, self._platforms)
        return [
            VariantReport(
                source=model.source,
                reference=model.reference,
                label=fit.variant.label,
                name=f"{fit.variant.name}:{fit.variant.size}" if fit.variant.size else fit.variant.name,
                size_bytes=fit.variant.size_bytes,
                chips=fit.variant.chips,
                platforms=tuple(platform for platform, _ in fit.platforms),
                reason=fit.reason,
                files=tuple(file.name for file in fit.variant.files),
            )
            for fit in fits_of(model, machine)
        ]

    # --- pulls -----------------------------------------------------------------------------------------------------

    async def pull(self, request: PullRequest) -> AsyncGenerator[PullProgress, None]:
        """See `Library.pull`."""
        async with contextlib.aclosing(self.start(request).watch()) as states:
            async for state in states:
                yield state

    def start(self, request: PullRequest) -> Pull:
        """Begin a pull, or find the one that the same wish began already.

        Raises:
            InvalidRequestError: No model can have this name.
            DrainingError: The server is ending.
        """
        if self._is_closing:
            raise DrainingError
        reference = parse_reference(request.model, self._sources)
        if request.name is not None:
            Naming.chosen(request.name)
        for pull in self._pulls.values():
            if pull.request == request and not pull.progress().is_final:
                return pull
        pull = Pull(request, shown=without_secrets(reference))
        self._pulls[pull.id] = pull
        ended = [known for known in self._pulls.values() if known.progress().is_final]
        for known in ended[:-KEPT_PULLS]:
            del self._pulls[known.id]
        pull.task = asyncio.create_task(self._run(pull), name=f"pull {pull.shown}")
        return pull

    def pulls(self) -> Sequence[PullProgress]:
        """See `Library.pulls`."""
        current = [pull.progress() for pull in self._pulls.values()]
        running = {folder.name for folder in self._by_folder}
        left = [partial for partial in partials_of(self._catalog.store) if partial.folder.name not in running]
        return [*current, *(partial.progress() for partial in left)]

    async def cancel_pull(self, pull_id: str) -> None:
        """See `Library.cancel_pull`."""
        pull = self._pulls.get(pull_id)
        if pull is None or pull.task is None or pull.progress().is_final:
            raise ModelNotFoundError(pull_id, message=f"There is no running pull '{pull_id}'")
        await self._stop(pull)
        if pull.state == "done":
            # It was moving into the store already.
            raise ModelNotFoundError(pull_id, message=f"There is no running pull '{pull_id}': it is complete")

    async def remove(self, name: str) -> StoredModel | None:
        """See `Library.remove`."""
        artifact, unfinished = await asyncio.to_thread(self._named, name)
        removed: StoredModel | None = None
        if artifact is not None:
            if holders := self._is_loaded(artifact.path):
                raise ModelInUseError(default_model_id(artifact), leases=holders)
            removed = stored_model(artifact)
        stopped = [pull for partial in unfinished if (pull := self._by_folder.get(partial.folder)) is not None]
        for pull in stopped:
            await self._stop(pull)
        if any(pull.state == "done" for pull in stopped):
            # It could not be stopped any more, so the store is another one now.
            return await self.remove(name)
        for partial in unfinished:
            if not await asyncio.to_thread(discard, partial.folder):
                raise ModelInUseError(partial.shown, leases=1)
        if artifact is not None:
            try:
                await asyncio.to_thread(remove_from_store, artifact.path, self._catalog.store)
            except OSError as error:
                raise InternalError(f"'{artifact.path}' cannot be deleted: {error.strerror}") from error
            log.info("model removed", model=removed.id if removed else name, path=str(artifact.path))
        return removed

    def _named(self, name: str) -> tuple[ModelArtifact | None, list[Partial]]:
        """The model of the store that a name means, with what is unfinished of it; else unfinished files alone.

        Raises:
            ModelNotFoundError: None has this name, or several have.
        """
        partials = partials_of(self._catalog.store)
        try:
            artifact = self._catalog.find(name)
        except ModelNotFoundError:
            unfinished = [partial for partial in partials if partial.is_named(name)]
            unfinished = unfinished or [partial for partial in partials if partial.is_perhaps_named(name)]
            meant = sorted({partial.shown for partial in unfinished})
            if not unfinished:
                raise
            if len(meant) > 1:
                raise ModelNotFoundError(
                    name,
                    message=f"'{name}' is the name of several unfinished pulls: {', '.join(meant)}; name one of these",
                ) from None
            return None, unfinished
        return artifact, [partial for partial in partials if partial.is_of(artifact)]

    def sweep(self) -> None:
        """Put right what an earlier server was killed in. Call once, before anything else uses the store."""
        self._uploads.sweep()
        self._maker.sweep()
        try:
            restore_store(self._catalog.store)
            for folder in (self._catalog.store / PARTIAL).glob("*/"):
                # The model is in the store, or no byte of it came.
                if not (folder / FILES).is_dir() and not discard(folder):
                    log.info("another server uses this store", folder=folder.name)
        except OSError as error:
            # A store that is only read is served all the same.
            log.warning("the store cannot be put in order", error=str(error))

    async def close(self) -> None:
        """Stop every pull; what they fetched stays and is continued by the next pull."""
        self._is_closing = True
        running = [pull for pull in self._pulls.values() if pull.task is not None and not pull.task.done()]
        for pull in running:
            await self._stop(pull)
        await self._openers.close()

    async def _stop(self, pull: Pull) -> None:
        if pull.task is not None:
            pull.task.cancel()
            await asyncio.wait([pull.task])

    async def _run(self, pull: Pull) -> None:
        """The task of a pull: whatever happens ends in a final state that its watchers see."""
        try:
            await self._work(pull)
        except asyncio.CancelledError:
            if self._is_closing:
                pull.end("interrupted", error=DrainingError())
            else:
                pull.end("cancelled", error=PullCancelledError(pull.shown))
        except CardcageError as error:
            log.info("pull failed", model=pull.shown, code=error.code, error=error.message)
            pull.end("failed", error=error)
        except Exception:  # named boundary: nobody awaits this task, and its watchers must learn of its end
            log.exception("pull failed", model=pull.shown)
            pull.end("failed", error=InternalError())

    async def _work(self, pull: Pull) -> None:
        request = pull.request
        reference, model = await self._ask(request)
        machine = await asyncio.to_thread(read_machine, self._platforms)
        choice = choose(
            model,
            machine,
            asked=pull.shown,
            tag="" if reference.url or self._sources[model.source].is_opaque else reference.tag,
            place=reference.place,
            platform=request.platform,
            chip=request.chip,
        )
        plan = self._plan(pull, model, choice)
        pull.origin = plan.origin
        if (there := await asyncio.to_thread(self._already_there, plan)) is not None:
            pull.end("done", result=stored_model(there), is_new=False)
            return
        leader = self._by_folder.get(plan.folder)
        if leader is not None:
            await self._follow(pull, leader)
            return
        # Before the store is looked at: a pull that ends meanwhile is then either followed or found there.
        self._by_folder[plan.folder] = pull
        try:
            if (there := await asyncio.to_thread(self._already_there, plan)) is not None:
                pull.end("done", result=stored_model(there), is_new=False)
                return
            await asyncio.to_thread(self._drop_outdated, plan)
            pull.job = Job(
                plan=plan,
                catalog=self._catalog,
                platforms=self._platforms,
                openers=self._openers,
                on_progress=pull.touch,
                retries=self._retries,
                spare_bytes=self._spare_bytes,
            )
            pull.enter("waiting")
            async with self._slots:
                pull.enter("downloading")
                artifact = await pull.job.run()
        finally:
            del self._by_folder[plan.folder]
        pull.end("done", result=stored_model(artifact))

    async def _follow(self, pull: Pull, leader: Pull) -> None:
        pull.leader = leader
        pull.enter("downloading")
        if leader.task is not None:
            # Not awaited itself: a follower that is cancelled must not cancel the one that it follows.
            await asyncio.wait([leader.task])
        end = leader.progress()
        pull.end(end.state, result=end.result, error=end.error, is_new=end.is_new)

    async def _ask(self, request: PullRequest) -> tuple[ModelReference, RemoteModel]:
        reference = parse_reference(request.model, self._sources)
        asked = sources_for(reference, self._sources, wanted=request.source)
        model = await ask(reference, asked, pauses_seconds=self._ask_pauses_seconds)
        return reference, model

    def _plan(self, pull: Pull, model: RemoteModel, choice: Choice) -> JobPlan:
        variant = choice.variant
        request = pull.request
        origin = f"{model.source}:{model.reference}"
        if variant.label:
            origin = f"{origin}:{variant.label}"
        naming = (
            Naming.chosen(request.name) if request.name is not None else Naming.of_source(variant.name, variant.size)
        )
        content = [origin, naming.name, naming.size, choice.platform, choice.chip]
        listed = [[file.name, file.size_bytes, file.sha256] for file in variant.files]
        key = hashlib.sha256(json.dumps([content, listed]).encode()).hexdigest()[:32]
        return JobPlan(
            source=self._sources[model.source],
            origin=origin,
            asked=pull.shown,
            choice=choice,
            naming=naming,
            folder=self._catalog.store / PARTIAL / key,
        )

    def _drop_outdated(self, plan: JobPlan) -> None:
        """Delete what was fetched of an older state of the same model: its files have other hashes now. In a thread."""
        for partial in partials_of(self._catalog.store):
            is_same = (partial.origin, partial.name, partial.size, partial.place) == (
                plan.origin,
                plan.naming.name,
                plan.naming.size,
                [plan.choice.platform, plan.choice.chip],
            )
            if is_same and partial.folder not in self._by_folder and discard(partial.folder):
                log.info("unfinished files are outdated", model=plan.asked, folder=partial.folder.name)

    def _already_there(self, plan: JobPlan) -> ModelArtifact | None:
        """The model in the store that has exactly the files that would be fetched, under the same name."""
        wanted = {file.name: (file.size_bytes, file.sha256) for file in plan.choice.variant.files}
        if any(file.is_archive for file in plan.choice.variant.files):
            wanted = {}
        for artifact in self._catalog.entries():
            if artifact.source != plan.origin or (artifact.name, artifact.size) != (plan.naming.name, plan.naming.size):
                continue
            if plan.choice.platform not in {None, artifact.platform}:
                continue
            here = {file.name: (file.size_bytes, file.sha256) for file in artifact.files}
            if all(_is_same(here.get(name), listed) for name, listed in wanted.items()):
                return artifact
        return None


def _is_same(here: tuple[int, str | None] | None, listed: tuple[int | None, str | None]) -> bool:
    if here is None:
        return False
    return all(want is None or have == want for have, want in zip(here, listed, strict=True))


async def _offers_of(source: Source) -> tuple[Sequence[Offer], CardcageError | None]:
    try:
        async with asyncio.timeout(source.total_seconds):
            return await source.offers(), None
    except CardcageError as error:
        return (), error
    except TimeoutError:
        return (), InternalError(f"Source '{source.name}' did not list its models in {source.total_seconds:g} seconds")
    except Exception:  # named boundary: a source is a plugin and may raise anything
        log.exception("source failed", source=source.name)
        return (), InternalError(f"Source '{source.name}' failed; the server's log has the details")
