"""A library over the real sources, each pointed at a hub of this process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from board import GgufPlatform, NpuPlatform
from hubs import Hub

from cardcage.catalog import Catalog
from cardcage.downloads import Downloads, RetryPolicy
from cardcage_sdk.library import PullProgress, PullRequest
from cardcage_sdk.sources import Source
from cardcage_sources.huggingface import HuggingFaceSource
from cardcage_sources.modelscope import ModelScopeSource
from cardcage_sources.ollama import OllamaSource
from cardcage_sources.pypi import PypiSource
from cardcage_sources.url import UrlSource


class Pulls:
    """Libraries over one store, and what the tests do with them.

    Attributes:
        slept: Nothing here waits: pauses between tries are of no length.
    """

    def __init__(self, store: Path, hubs: dict[str, Hub]) -> None:
        self.store = store
        self.hubs = hubs
        self.opened: list[Downloads] = []

    def library(
        self,
        *,
        is_loaded: Callable[[Path], int] = lambda _path: 0,
        spare_bytes: int = 0,
        allows: bool = True,
        catalog: Catalog | None = None,
        more: Sequence[Source] = (),
    ) -> Downloads:
        huggingface, modelscope, ollama = HuggingFaceSource(), ModelScopeSource(), OllamaSource()
        huggingface.configure({"endpoint": self.hubs["huggingface"].url, "token": "hf_secret"})
        modelscope.configure({"endpoint": self.hubs["modelscope"].url})
        ollama.configure({"registry": self.hubs["ollama"].url})
        own = (huggingface, modelscope, ollama, UrlSource(), PypiSource())
        sources: dict[str, Source] = {source.name: source for source in (*own, *more)}
        library = Downloads(
            catalog=catalog or Catalog(self.store, sources),
            platforms={"gguf": GgufPlatform(), "npu": NpuPlatform()},
            sources=sources,
            allows_path=lambda _path: allows,
            is_loaded=is_loaded,
            retries=RetryPolicy(pauses_seconds=(0.0, 0.0), longest_pause_seconds=0.0),
            ask_pauses_seconds=(0.0, 0.0),
            spare_bytes=spare_bytes,
        )
        self.opened.append(library)
        return library

    def partial_files(self) -> list[Path]:
        return list((self.store / ".partial").rglob("*.part"))

    def everything(self) -> list[str]:
        """Every path below the store, hidden ones too."""
        return sorted(path.relative_to(self.store).as_posix() for path in self.store.rglob("*"))


async def run(library: Downloads, model: str, **options: str) -> PullProgress:
    """Pull and follow to the end."""
    states = [state async for state in library.pull(PullRequest(model=model, **options))]
    assert states[-1].is_final
    assert not any(state.is_final for state in states[:-1])
    return states[-1]


async def first_bytes(library: Downloads, model: str) -> PullProgress:
    """Join a pull, and leave it as soon as something came."""
    async with contextlib.aclosing(library.pull(PullRequest(model=model))) as states:
        async for state in states:
            if state.completed_bytes:
                return state
    raise AssertionError(f"the pull of {model} ended without a byte")


def content_of(end: PullProgress, name: str) -> bytes:
    assert end.result is not None, end.error
    return (Path(end.result.path) / name).read_bytes()


def names_of(end: PullProgress, pattern: str = "*") -> list[str]:
    assert end.result is not None, end.error
    return sorted(path.name for path in Path(end.result.path).glob(pattern))
