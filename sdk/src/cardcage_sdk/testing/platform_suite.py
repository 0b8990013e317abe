"""The conformance suite of platforms, for pytest."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest

from cardcage_sdk.models import LoadOptions, ModelArtifact
from cardcage_sdk.testing.conformance import CHECKS, Check, DoesNotApplyError, Subject
from cardcage_sdk.testing.launch import launch, model_artifact

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.platform import Platform

__all__ = ["Bench", "PlatformSuite"]


class Bench:
    """A loaded model with an event loop of its own, in the thread of the test."""

    def __init__(self, suite: type[PlatformSuite], model: str | Path | ModelArtifact) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._stack = contextlib.AsyncExitStack()
        self._suite = suite
        self._model = model
        self.subject: Subject

    def __enter__(self) -> Self:
        self._runner.run(self._open())
        return self

    def __exit__(self, *exception: object) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def run(self, check: Check) -> None:
        """Run one check; what does not apply is a skip with its reason."""
        try:
            self._runner.run(self._run(check))
        except DoesNotApplyError as reason:
            pytest.skip(str(reason))

    async def _run(self, check: Check) -> None:
        await check.run(self.subject)

    async def _open(self) -> None:
        suite = self._suite
        platform = suite.platform() if isinstance(suite.platform, type) else suite.platform
        artifact = self._model if isinstance(self._model, ModelArtifact) else model_artifact(self._model)
        worker = await self._stack.enter_async_context(
            launch(platform, artifact, options=suite.options, load_options=suite.load_options)
        )
        self.subject = Subject(
            platform=platform,
            artifact=artifact,
            worker=worker,
            options=suite.options,
            load_options=suite.load_options,
            prompt=suite.prompt,
        )


class PlatformSuite:
    """Proves that a platform does what it declares, and that what it does not declare is refused.

    In a test module of your own::

        class TestMine(PlatformSuite):
            platform = MyPlatform
            model = "models/tiny.mine"

    The model is loaded once, in a real worker process, as core does it. Each check is a test; one that looks at something that
    the platform does not declare is skipped and says so. Override the fixture `model_path` where the model is made by a fixture.

    Attributes:
        platform: The class, or an instance.
        model: Path of a model that the platform runs, or an artifact.
        options: Load options of the platform.
        load_options: Slots, context and threads to load with.
        prompt: What is asked where the words do not matter; its greedy answer should be longer than ten tokens.
    """

    platform: ClassVar[type[Platform] | Platform]
    model: ClassVar[str | Path | ModelArtifact]
    options: ClassVar[Mapping[str, JsonValue]] = {}
    load_options: ClassVar[LoadOptions] = LoadOptions(slots=2, max_slots=4)
    prompt: ClassVar[str] = "Tell me a long story about the sea."

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls) -> Any:
        """Path of the model, or the artifact."""
        if not hasattr(cls, "model"):
            raise NotImplementedError("set `model`, or override the fixture `model_path`")
        return cls.model

    @pytest.fixture(scope="class")
    @classmethod
    def bench(cls, model_path: Any) -> Iterator[Bench]:
        """The model, loaded for all tests of this class."""
        with Bench(cls, model_path) as bench:
            yield bench

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
    def test_conformance(self, bench: Bench, check: Check) -> None:
        """One check of `cardcage_sdk.testing.conformance`."""
        bench.run(check)
