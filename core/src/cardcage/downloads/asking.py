"""Ask sources what there is under a name: all that may know it at once, the first valid answer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import structlog

from cardcage_sdk.errors import (
    CardcageError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    SourceUnavailableError,
)
from cardcage_sdk.sources import Claim, ModelReference

if TYPE_CHECKING:
    from cardcage_sdk.sources import RemoteModel, Source

__all__ = ["PAUSES_SECONDS", "ask", "sources_for"]

PAUSES_SECONDS: Sequence[float] = (0.5, 1.0)
"""Between the three tries."""

log = structlog.get_logger("cardcage.downloads")


def sources_for(reference: ModelReference, sources: Mapping[str, Source], *, wanted: str | None = None) -> list[Source]:
    """The sources to ask: the one that is named, else those that are certain, else all that may know the name.

    Raises:
        InvalidRequestError: The named source is not installed, or none knows names of this form.
    """
    named = wanted or reference.source
    installed = ", ".join(sources) or "none"
    if named is not None:
        if named not in sources:
            raise InvalidRequestError(
                f"There is no source '{named}'; installed are: {installed}", param="source" if wanted else "model"
            )
        if wanted and reference.source not in {None, wanted}:
            raise InvalidRequestError(f"'{reference.text}' is not a name of source '{wanted}'", param="source")
        return [sources[named]]
    claims = [(source.claims(reference), source) for source in sources.values()]
    certain = [source for claim, source in claims if claim is Claim.CERTAIN]
    possible = [source for claim, source in claims if claim is Claim.POSSIBLE]
    if not certain and not possible:
        raise InvalidRequestError(
            f"No source knows names like '{reference.text}'; installed are: {installed}", param="model"
        )
    return certain or possible


async def ask(
    reference: ModelReference,
    sources: Sequence[Source],
    *,
    pauses_seconds: Sequence[float] = PAUSES_SECONDS,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> RemoteModel:
    """Ask all `sources` at once; the first that has the model wins and the others are not waited for.

    Raises:
        ModelNotFoundError: None has it.
        SourceUnavailableError, SourceRefusedError: None has it, and at least one could not tell.
    """
    tasks = {asyncio.create_task(_ask_one(reference, source, pauses_seconds, sleep)): source for source in sources}
    failures: dict[str, CardcageError] = {}
    try:
        pending = set(tasks)
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            # Several may end in one step: then the order of the sources decides, not that of a set.
            for task in sorted(done, key=lambda item: list(tasks).index(item)):
                error = task.exception()
                if error is None:
                    return task.result()
                if not isinstance(error, CardcageError):
                    raise error
                failures[tasks[task].name] = error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    raise _combined(reference, failures)


async def _ask_one(
    reference: ModelReference,
    source: Source,
    pauses_seconds: Sequence[float],
    sleep: Callable[[float], Awaitable[None]],
) -> RemoteModel:
    last: SourceUnavailableError | None = None
    try:
        async with asyncio.timeout(source.total_seconds):
            for pause in (*pauses_seconds, None):
                try:
                    async with asyncio.timeout(source.try_seconds):
                        return await source.resolve(reference)
                except TimeoutError:
                    last = SourceUnavailableError(source.name, reason=f"no answer in {source.try_seconds:g} seconds")
                except SourceUnavailableError as error:
                    last = error
                except CardcageError:
                    raise
                except Exception as error:  # named boundary: a source is a plugin and may raise anything
                    log.exception("source failed", source=source.name)
                    raise InternalError(
                        f"Source '{source.name}' failed with {type(error).__name__}; the server's log has the details"
                    ) from error
                if pause is not None:
                    log.info("source is asked again", source=source.name, error=last.message)
                    await sleep(last.retry_after_seconds or pause)
    except TimeoutError:
        last = last or SourceUnavailableError(source.name, reason=f"no answer in {source.total_seconds:g} seconds")
    raise last or SourceUnavailableError(source.name, reason="no answer")


def _combined(reference: ModelReference, failures: Mapping[str, CardcageError]) -> CardcageError:
    telling = [error for error in failures.values() if not isinstance(error, ModelNotFoundError)]
    if telling:
        return telling[0]
    if len(failures) == 1:
        return next(iter(failures.values()))
    return ModelNotFoundError(
        reference.text, message=f"Model '{reference.text}' was not found at {' or '.join(failures)}"
    )
