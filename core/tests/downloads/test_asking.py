"""How sources are asked: at once, three times, within their time, and what counts as an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from cardcage.catalog.resolver import parse_reference
from cardcage.downloads.asking import PAUSES_SECONDS, ask, sources_for
from cardcage_sdk.errors import (
    CardcageError,
    InternalError,
    InvalidRequestError,
    ModelNotFoundError,
    SourceRefusedError,
    SourceUnavailableError,
)
from cardcage_sdk.sources import Claim, ModelReference, RemoteFile, RemoteModel, RemoteVariant, Source

FOUND = RemoteVariant(name="m", files=(RemoteFile(name="m.bin", url="https://host/m.bin"),))


class Scripted(Source):
    """Answers as told, one item a try: an error to raise, an event to wait for, or None for the model."""

    def __init__(
        self, name: str, *script: CardcageError | Exception | asyncio.Event | None, claim: Claim = Claim.POSSIBLE
    ):
        self.name = name  # type: ignore[misc]  # these tests have sources with names of their own
        self.script = list(script)
        self.claim = claim
        self.tries = 0
        self.was_cancelled = False

    def claims(self, reference: ModelReference) -> Claim:
        return self.claim

    async def resolve(self, reference: ModelReference) -> RemoteModel:
        self.tries += 1
        item = self.script.pop(0) if self.script else None
        if isinstance(item, asyncio.Event):
            try:
                await item.wait()
            except asyncio.CancelledError:
                self.was_cancelled = True
                raise
        elif item is not None:
            raise item
        return RemoteModel(source=self.name, reference="m", variants=(FOUND,))


REFERENCE = parse_reference("Org/Repo")


def unavailable(after: float | None = None) -> SourceUnavailableError:
    return SourceUnavailableError("s", reason="503", retry_after_seconds=after)


class Pauses:
    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_the_times_are_llamapis() -> None:
    assert list(PAUSES_SECONDS) == [0.5, 1.0]
    assert (Source.try_seconds, Source.total_seconds) == (6.0, 20.0)


@pytest.mark.parametrize(
    ("script", "slept", "raised"),
    [
        ([None], [], None),
        ([unavailable(), None], [0.5], None),
        ([unavailable(), unavailable(), None], [0.5, 1.0], None),
        ([unavailable(7.0), None], [7.0], None),
        ([unavailable(), unavailable(), unavailable(), None], [0.5, 1.0], SourceUnavailableError),
        ([ModelNotFoundError("m"), None], [], ModelNotFoundError),
        ([SourceRefusedError("s", reason="token"), None], [], SourceRefusedError),
        ([ValueError("a plugin's own mistake"), None], [], InternalError),
    ],
)
async def test_tries(script: list[Exception | None], slept: list[float], raised: type[Exception] | None) -> None:
    source, pauses = Scripted("s", *script), Pauses()
    if raised is None:
        assert (await ask(REFERENCE, [source], sleep=pauses)).source == "s"
    else:
        with pytest.raises(raised):
            await ask(REFERENCE, [source], sleep=pauses)
    assert pauses.slept == slept


async def test_a_try_that_takes_too_long_is_given_up_and_made_again() -> None:
    source, pauses = Scripted("s", asyncio.Event(), asyncio.Event(), None), Pauses()
    source.try_seconds = 0.01  # type: ignore[misc]
    assert (await ask(REFERENCE, [source], sleep=pauses)).source == "s"
    assert (source.tries, pauses.slept) == (3, [0.5, 1.0])


async def test_all_tries_together_have_a_limit() -> None:
    source = Scripted("s", unavailable(), None)
    source.total_seconds = 0.05  # type: ignore[misc]
    never = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        await never.wait()

    with pytest.raises(SourceUnavailableError, match="503"):
        await ask(REFERENCE, [source], sleep=sleep)


async def test_the_first_answer_counts_and_the_others_are_told_to_stop() -> None:
    slow, fast = Scripted("slow", asyncio.Event()), Scripted("fast")
    assert (await ask(REFERENCE, [slow, fast])).source == "fast"
    assert slow.was_cancelled


async def test_a_refusal_does_not_end_the_race() -> None:
    gate = asyncio.Event()

    class Refusing(Scripted):
        async def resolve(self, reference: ModelReference) -> RemoteModel:
            # The other one answers only once this one has refused.
            asyncio.get_running_loop().call_soon(gate.set)
            return await super().resolve(reference)

    refusing = Refusing("refusing", SourceRefusedError("refusing", reason="token"))
    assert (await ask(REFERENCE, [refusing, Scripted("slow", gate)])).source == "slow"


@pytest.mark.parametrize(
    ("first", "second", "raised"),
    [
        (lambda: ModelNotFoundError("m"), lambda: ModelNotFoundError("m"), ModelNotFoundError),
        (lambda: ModelNotFoundError("m"), lambda: SourceRefusedError("b", reason="token"), SourceRefusedError),
    ],
)
async def test_when_nobody_has_it(
    first: Callable[[], CardcageError], second: Callable[[], CardcageError], raised: type[CardcageError]
) -> None:
    with pytest.raises(raised) as caught:
        await ask(REFERENCE, [Scripted("a", first()), Scripted("b", second())])
    if raised is ModelNotFoundError:
        assert "at a or b" in str(caught.value)


def test_who_is_asked() -> None:
    sure, perhaps, never = (
        Scripted("sure", claim=Claim.CERTAIN),
        Scripted("perhaps", claim=Claim.POSSIBLE),
        Scripted("never", claim=Claim.NO),
    )
    everybody = {source.name: source for source in (sure, perhaps, never)}
    assert sources_for(REFERENCE, everybody) == [sure]
    assert sources_for(REFERENCE, {"perhaps": perhaps, "never": never}) == [perhaps]
    assert sources_for(REFERENCE, everybody, wanted="never") == [never]
    named = parse_reference("perhaps:Org/Repo", everybody)
    assert sources_for(named, everybody) == [perhaps]
    for reference, wanted in ((named, "sure"), (REFERENCE, "nowhere")):
        with pytest.raises(InvalidRequestError):
            sources_for(reference, everybody, wanted=wanted)
    with pytest.raises(InvalidRequestError, match="installed are: never"):
        sources_for(REFERENCE, {"never": never})
