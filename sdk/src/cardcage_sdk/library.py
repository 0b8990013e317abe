"""What a dialect may ask of core about models on disk, and about getting more of them.

Every method is called in the server's event loop. Errors are those of `cardcage_sdk.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from cardcage_sdk.models import ModelFacts, ModelFile
from cardcage_sdk.service import GenerationDefaults

if TYPE_CHECKING:
    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.errors import CardcageError
    from cardcage_sdk.sources import Offer

__all__ = [
    "CreateRequest",
    "FileProgress",
    "Library",
    "ModelDescription",
    "PullProgress",
    "PullRequest",
    "PullState",
    "StoredModel",
    "VariantReport",
]

PullState = Literal["resolving", "waiting", "downloading", "checking", "done", "failed", "cancelled", "interrupted"]
"""`waiting`: for another pull to end. `checking`: all bytes are there and are looked at before they appear in the store.
`interrupted`: the server ended in the middle; the next pull of the same model goes on from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """Get a model.

    Attributes:
        model: Its name, in any form that the resolver knows.
        source: Id of the one source to ask; None lets the name decide, and asks all that may know it at once.
        platform: Platform that it is for; None takes what fits this machine.
        chip: Chip that it is for; None takes what fits this machine.
        name: `name` or `name:size` under which the catalog is to show it; None takes the source's.
    """

    model: str
    source: str | None = None
    platform: str | None = None
    chip: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProgress:
    """How far one file is.

    Attributes:
        total_bytes: None where the source does not tell, until the first answer came.
        sha256: Lower-case hex, or None where the source does not tell.
    """

    name: str
    completed_bytes: int
    total_bytes: int | None
    is_done: bool
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """How far a pull is.

    Attributes:
        id: Names the pull in this server; several callers that pull one model see the same files move.
        model: The name as it was asked for.
        source: Source that it comes from, once that is known, as `huggingface:Org/Repo:Q4_K_M`.
        files: In the order in which they are fetched; empty while the source is being asked.
        total_bytes: Of all files, as far as known.
        result: The model in the catalog, once done.
        is_new: Something was fetched; False where the store had the very same model already.
        error: Why it failed.
    """

    id: str
    model: str
    state: PullState
    source: str | None = None
    files: tuple[FileProgress, ...] = ()
    completed_bytes: int = 0
    total_bytes: int = 0
    result: StoredModel | None = None
    is_new: bool = True
    error: CardcageError | None = None

    @property
    def is_final(self) -> bool:
        """Nothing more will happen to it."""
        return self.state in {"done", "failed", "cancelled", "interrupted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A model in the store.

    Attributes:
        id: Default runtime id, `name:size@platform-chip`; a load request takes it as a name.
        name: Name with size, as `smollm2:135m`.
        path: Its directory.
        modified_at: When it came into the store, Unix time in seconds.
        digest: Stands for the exact content: sha256 over names, sizes and hashes of its files and what its `model.toml` sets,
            lower-case hex.
        files: Its files.
        problem: Why it cannot be used, or None.
    """

    id: str
    name: str
    path: str
    size_bytes: int = 0
    kind: str | None = None
    platform: str | None = None
    chips: tuple[str, ...] = ()
    license: str | None = None
    source: str | None = None
    modified_at: float = 0.0
    digest: str = ""
    problem: str | None = None
    files: tuple[ModelFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantReport:
    """One form in which a source has a model, and whether this machine can run it.

    Attributes:
        platforms: Platforms of this machine that it fits.
        reason: Why it fits none; empty where it fits.
    """

    source: str
    reference: str
    label: str
    name: str
    size_bytes: int
    chips: tuple[str, ...] = ()
    platforms: tuple[str, ...] = ()
    reason: str = ""
    files: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """A model of the store, and what is known of it without loading it.

    Attributes:
        capabilities: What it will be able to do; None where no platform of this installation takes it.
        defaults: What its `model.toml` sets.
    """

    model: StoredModel
    facts: ModelFacts = field(default_factory=ModelFacts)
    capabilities: Capabilities | None = None
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """Make a model of the store from another one, or from files that were uploaded.

    What is None or empty is taken from `base`. Files are shared with it where the file system can (hard links), so that a model
    costs no second copy, and outlives the one that it was made from.

    Attributes:
        name: `name`, `name:size` or `owner/name:size`. A model of this name is replaced.
        base: Any name of a model of the store; None takes `files`.
        files: sha256 in lower-case hex of an uploaded file, by its name in the model.
        chat_template: Jinja source.
        defaults: Over those of the base, one by one.
        license: Text or name of the licence.
    """

    name: str
    base: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    chat_template: str | None = None
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)
    license: str | None = None


class Library(Protocol):
    """The models on disk and the pulls that add to them. Pulls belong to the server, not to who asked for them."""

    def stored(self) -> Sequence[StoredModel]:
        """All models of the store, unusable ones with their `problem`; never one that is not complete."""
        ...

    def find(self, name: str) -> StoredModel:
        """One model of the store, by any name that the resolver knows.

        Raises:
            ModelNotFoundError: None has this name, or several have.
            InvalidModelError: The one that has it cannot be used.
        """
        ...

    def pull(self, request: PullRequest) -> AsyncGenerator[PullProgress, None]:
        """Start a pull, or join the one that runs, and follow it.

        Each value is the whole state; the last one `is_final`, and its `error` is not raised. Leaving stops nothing.

        Raises:
            InvalidRequestError: No name has this form; before the first value.
            DrainingError: The server is ending; before the first value.
        """
        ...

    def pulls(self) -> Sequence[PullProgress]:
        """Pulls that run, that ended lately, and that an earlier server was interrupted in."""
        ...

    async def cancel_pull(self, pull_id: str) -> None:
        """Stop a pull for everybody who follows it. What was fetched stays for the next try, until it is removed.

        Raises:
            ModelNotFoundError: No running pull has this id.
        """
        ...

    async def variants(self, request: PullRequest) -> Sequence[VariantReport]:
        """What a pull could get, and which of it fits this machine; fetches nothing.

        Raises:
            ModelNotFoundError, SourceUnavailableError, SourceRefusedError: As a pull would end.
        """
        ...

    async def remove(self, name: str) -> StoredModel | None:
        """Delete a model from the store, and what was fetched of it by a pull that did not end well.

        Returns:
            What was deleted, or None where there were unfinished files only.

        Raises:
            ModelNotFoundError: There is neither.
            ModelInUseError: It is loaded.
        """
        ...

    async def describe(self, name: str) -> ModelDescription:
        """A model of the store, with what can be read of it without loading it.

        Raises:
            ModelNotFoundError, InvalidModelError: As `find`.
        """
        ...

    async def descriptions(self) -> Sequence[ModelDescription]:
        """The same of every usable model of the store."""
        ...

    async def has_file(self, sha256: str) -> bool:
        """Whether a file of this content (lower-case hex) was uploaded, or is part of a model of the store."""
        ...

    async def add_file(self, sha256: str, chunks: AsyncIterable[bytes]) -> bool:
        """Take an uploaded file for `create`; it is kept for a day.

        Args:
            sha256: What its content must have, lower-case hex.
            chunks: Its bytes. They are read to the end in any case.

        Returns:
            Whether it is new.

        Raises:
            InvalidRequestError: The content has another sha256.
            StorageFullError: It does not fit.
        """
        ...

    async def create(self, request: CreateRequest) -> StoredModel:
        """Make a model; see `CreateRequest`.

        Raises:
            ModelNotFoundError: There is no such base, or no file of such content.
            InvalidRequestError: No model can have this name, or a file this one.
            InvalidModelError, PlatformDetectionError: The files are no model that an installed platform takes.
            ModelInUseError: A model of this name lies elsewhere in the store and is loaded.
            StorageFullError: A file had to be copied and does not fit.
        """
        ...

    async def offers(self) -> tuple[Sequence[Offer], Sequence[CardcageError]]:
        """What the sources list of themselves, and the errors of those that did not answer."""
        ...
