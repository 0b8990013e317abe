"""Models on disk and pulls: extensions in the manner of LlamaPi's management routes."""

from typing import Annotated, Literal, TypedDict

from pydantic import Field

from cardcage_dialect_openai.wire.fields import WireModel

__all__ = [
    "FileObject",
    "OfferObject",
    "PullModelRequest",
    "PullObject",
    "RemoveAnswer",
    "StoredModelObject",
    "VariantObject",
]

Text = Annotated[str, Field(min_length=1, max_length=2048)]


class PullModelRequest(WireModel):
    """Body of a pull, and of a question for variants. Without `stream` the answer comes when the pull has ended."""

    model: Text
    source: Text | None = None
    platform: Text | None = None
    chip: Text | None = None
    name: Text | None = None
    stream: bool | None = None


class StoredModelObject(TypedDict):
    """A model in the store. `id` names it in a load request; `problem` says why it cannot be used."""

    id: str
    object: Literal["stored_model"]
    name: str
    created: int
    model_path: str
    size_bytes: int
    model_kind: str | None
    platform: str | None
    chips: list[str]
    license: str | None
    source: str | None
    digest: str
    problem: str | None


class FileObject(TypedDict):
    """How far one file is."""

    name: str
    completed_bytes: int
    total_bytes: int | None
    done: bool


class PullObject(TypedDict):
    """The whole state of a pull; the last one of a stream is `done`, any other end is an error."""

    id: str
    object: Literal["pull"]
    model: str
    status: str
    source: str | None
    completed_bytes: int
    total_bytes: int
    files: list[FileObject]
    result: StoredModelObject | None
    fetched: bool


class VariantObject(TypedDict):
    """One form of a model; `platforms` of this machine that it fits, or the `reason` why none."""

    object: Literal["variant"]
    source: str
    reference: str
    label: str
    name: str
    size_bytes: int
    chips: list[str]
    platforms: list[str]
    reason: str
    files: list[str]


class OfferObject(TypedDict):
    """A model that a source lists of itself."""

    object: Literal["offer"]
    reference: str
    name: str
    model_kind: str | None
    platform: str | None
    chips: list[str]
    size_bytes: int | None
    license: str | None


class RemoveAnswer(TypedDict):
    """Answer of a removal; `removed` is null where there were unfinished files only."""

    success: Literal[True]
    message: str
    removed: StoredModelObject | None
