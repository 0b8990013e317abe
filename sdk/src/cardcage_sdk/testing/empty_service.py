"""A service with nothing in it, for building and testing dialects without core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cardcage_sdk.errors import ModelNotFoundError, PlatformDetectionError, StorageFullError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Sequence
    from contextlib import AbstractAsyncContextManager

    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
    from cardcage_sdk.errors import CardcageError
    from cardcage_sdk.events import ChatEvent
    from cardcage_sdk.library import (
        CreateRequest,
        Library,
        ModelDescription,
        PullProgress,
        PullRequest,
        StoredModel,
        VariantReport,
    )
    from cardcage_sdk.service import LoadRequest, LoadResult, ModelStatus, PlatformStatus
    from cardcage_sdk.sources import Offer

__all__ = ["EmptyLibrary", "EmptyService"]


class EmptyLibrary:
    """Implements `cardcage_sdk.library.Library`: no model is in the store, no source has any."""

    def stored(self) -> Sequence[StoredModel]:
        """None."""
        return ()

    def find(self, name: str) -> StoredModel:
        """Refuse: there is no such model."""
        raise ModelNotFoundError(name)

    async def pull(self, request: PullRequest) -> AsyncGenerator[PullProgress, None]:
        """Refuse: there is no such model."""
        for progress in _nothing(request.model):
            yield progress

    def pulls(self) -> Sequence[PullProgress]:
        """None."""
        return ()

    async def cancel_pull(self, pull_id: str) -> None:
        """Refuse: there is no such pull."""
        raise ModelNotFoundError(pull_id)

    async def variants(self, request: PullRequest) -> Sequence[VariantReport]:
        """Refuse: there is no such model."""
        raise ModelNotFoundError(request.model)

    async def remove(self, name: str) -> StoredModel | None:
        """Refuse: there is no such model."""
        raise ModelNotFoundError(name)

    async def describe(self, name: str) -> ModelDescription:
        """Refuse: there is no such model."""
        raise ModelNotFoundError(name)

    async def descriptions(self) -> Sequence[ModelDescription]:
        """None."""
        return ()

    async def has_file(self, sha256: str) -> bool:
        """No."""
        del sha256
        return False

    async def add_file(self, sha256: str, chunks: AsyncIterable[bytes]) -> bool:
        """Refuse: there is no room."""
        async for _ in chunks:
            pass
        raise StorageFullError(needed_bytes=1, free_bytes=0, path=sha256)

    async def create(self, request: CreateRequest) -> StoredModel:
        """Refuse: there is no model to make it from."""
        raise ModelNotFoundError(request.base or request.name)

    async def offers(self) -> tuple[Sequence[Offer], Sequence[CardcageError]]:
        """None, and no source that did not answer."""
        return (), ()


class EmptyService:
    """Implements `cardcage_sdk.service.Service`: no model is loaded, none can be, no platform is installed."""

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Refuse: there is no such model."""
        for event in _nothing(request.model):
            yield event

    async def embed(self, request: EmbedRequest) -> EmbedResult:
        """Refuse: there is no such model."""
        raise ModelNotFoundError(request.model)

    async def rerank(self, request: RerankRequest) -> RerankResult:
        """Refuse: there is no such model."""
        raise ModelNotFoundError(request.model)

    def models(self) -> Sequence[ModelStatus]:
        """None."""
        return ()

    def model(self, model_id: str) -> ModelStatus:
        """Refuse: there is no such model."""
        raise ModelNotFoundError(model_id)

    async def ensure_loaded(self, name: str, *, keep_alive_seconds: float | None = None) -> ModelStatus:
        """Refuse: there is no such model."""
        del keep_alive_seconds
        raise ModelNotFoundError(name)

    def using(
        self,
        name: str,
        *,
        keep_alive_seconds: float | None = None,
        context_tokens: int | None = None,
        is_exact_context: bool = False,
    ) -> AbstractAsyncContextManager[ModelStatus]:
        """Refuse: there is no such model."""
        del keep_alive_seconds, context_tokens, is_exact_context
        return _NoModel(name)

    async def let_go(self, name: str) -> bool:
        """There is none."""
        del name
        return False

    async def load(self, request: LoadRequest) -> LoadResult:
        """Refuse: no platform recognises the model."""
        raise PlatformDetectionError(request.model_path or request.model_id)

    async def resize(self, model_id: str, instance_count: int) -> LoadResult:
        """Refuse: there is no such model."""
        del instance_count
        raise ModelNotFoundError(model_id)

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        """Refuse: there is no such model."""
        del force
        raise ModelNotFoundError(model_id)

    async def platforms(self) -> Sequence[PlatformStatus]:
        """None."""
        return ()

    @property
    def library(self) -> Library:
        """An empty one."""
        return EmptyLibrary()


class _NoModel:
    """Cannot be entered."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __aenter__(self) -> ModelStatus:
        raise ModelNotFoundError(self._name)

    async def __aexit__(self, *_: object) -> None:
        """Never comes to this."""


def _nothing(model: str) -> list[Any]:
    raise ModelNotFoundError(model)
