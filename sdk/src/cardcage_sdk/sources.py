"""A source: a place that models are fetched from, as the server process sees it.

A source only answers what there is and where its bytes lie. The bytes themselves are core's business: one downloader resumes,
checks sizes and hashes, and puts a model into the store for every source alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar

from cardcage_sdk.chat import JsonValue
from cardcage_sdk.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Claim", "ModelReference", "Offer", "RemoteFile", "RemoteModel", "RemoteVariant", "Source"]


class Claim(IntEnum):
    """Whether a name may be one of this source's models, told from the name alone."""

    NO = 0
    POSSIBLE = 1
    """It has the form of this source's names; only asking tells. Several sources are asked at once."""
    CERTAIN = 2
    """It is this source's and nobody else's; no other source is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReference:
    """A model's name as someone wrote it, taken apart by rule. No part of it may ever be joined to a path.

    Attributes:
        text: All of it, trimmed, in Unicode form NFC.
        source: Source that the name itself names (`huggingface:Org/Repo`), or None.
        host: First of three parts (`hf.co/Org/Repo`, `registry.example:5000/me/thing`), or empty. Lower case.
        owner: Organisation, user or namespace, or empty.
        name: Without tag. For a source with `is_opaque` all that follows the source's name.
        tag: What follows the name's colon: a size, a tag, a quantisation or a file; may be empty.
        place: `platform-chip` that the name asks for (`@rkllm-rk3588` or `(rkllm/rk3588)`), lower case, or empty.
        url: All of it where it is an address (`https:`, `http:`, `file:`), or empty.
    """

    text: str
    name: str
    source: str | None = None
    host: str = ""
    owner: str = ""
    tag: str = ""
    place: str = ""
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """One file that can be fetched.

    Attributes:
        name: Path relative to the model directory, with forward slashes; core refuses one that leads out of it.
        url: `https:`, `http:` or `file:` address of its bytes. Byte ranges are used where the server knows them.
        size_bytes: Exact size, or None where the source does not tell.
        sha256: Lower-case hex, or None where the source does not tell.
        headers: Request headers, as `authorization`; sent to the address's own origin only.
        is_archive: `Source.unpack` takes files of the model out of it, then it is deleted.
    """

    name: str
    url: str
    size_bytes: int | None = None
    sha256: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_archive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteVariant:
    """One form in which a model can be had: a quantisation, or a conversion for one platform and chip.

    Attributes:
        label: What tells it from the others, as `Q4_K_M` or `rkllm/rk3588`; a tag of a name is compared with it. Empty where
            there is only one.
        name: Name in the catalog, without size, as `qwen3`.
        size: Size tag, as `4b` or `4b-q4_k_m`; may be empty.
        platform: Platform id, or None where the files decide.
        chips: Chips that it was made for; empty means any.
        document: Further keys of `model.toml` (`kind`, `context_tokens`, `default_params`, the platform's table, ...).
        unpacked_bytes: Bytes that archives take once unpacked, or None to let core guess.
    """

    name: str
    files: tuple[RemoteFile, ...]
    label: str = ""
    size: str = ""
    platform: str | None = None
    chips: tuple[str, ...] = ()
    document: Mapping[str, JsonValue] = field(default_factory=dict)
    unpacked_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes to fetch, as far as the source tells them."""
        return sum(file.size_bytes or 0 for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """What a source answers for a name.

    Attributes:
        source: Id of the source.
        reference: The model's full name there, without variant, as `Org/Repo` or `library/llama3.2`.
        variants: The forms it can be had in, preferred first; at least one.
    """

    source: str
    reference: str
    variants: tuple[RemoteVariant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One model of a source's own list, for `cardcage list --online`.

    Attributes:
        reference: Name to pull it by.
        name: Name with size in the catalog, as `smollm2:135m`.
        size_bytes: Bytes to fetch, or None where the list does not tell.
    """

    reference: str
    name: str
    kind: str | None = None
    platform: str | None = None
    chips: tuple[str, ...] = ()
    size_bytes: int | None = None
    license: str | None = None


class Source(ABC):
    """One place that models come from. Constructed once at start-up, in the server process, with no argument.

    A subclass sets `name` and implements **REQUIRED** `claims` and `resolve`. Core tries a source that raises
    `SourceUnavailableError` (or is too slow) again, at most three times; every other error is final.
    """

    name: ClassVar[str]
    """**REQUIRED** Id in configuration and before a name (`huggingface:Org/Repo`); the same as the entry point's name."""

    display_name: ClassVar[str] = ""
    """Name for people; empty means `name`."""

    hosts: ClassVar[tuple[str, ...]] = ()
    """Host names whose `host/owner/name`, and whose page addresses, mean this source. Lower case."""

    is_opaque: ClassVar[bool] = False
    """What follows `name:` is no `owner/name:tag` but this source's own notation, handed over as `ModelReference.name`."""

    try_seconds: ClassVar[float] = 6.0
    """How long one try of `resolve` may take."""

    total_seconds: ClassVar[float] = 20.0
    """How long all tries may take together."""

    def configure(self, settings: Mapping[str, JsonValue]) -> None:
        """Take the table `[sources.<name>]` of the configuration; called once, before anything else.

        Raises:
            ConfigError: A wrong setting; the server does not start.
        """
        if settings:
            raise ConfigError(f"[sources.{self.name}] {next(iter(settings))}: this source has no settings")

    @abstractmethod
    def claims(self, reference: ModelReference) -> Claim:
        """Say whether this name may be mine. Asks nobody, reads nothing."""

    @abstractmethod
    async def resolve(self, reference: ModelReference) -> RemoteModel:
        """Say what there is under this name. Runs in the server's event loop: what blocks goes into a thread.

        Raises:
            ModelNotFoundError: There is no such model here.
            SourceRefusedError: It wants a key, or a licence to be accepted; the message says what to do.
            SourceUnavailableError: No answer, or one that says to come again; core does.
        """

    async def offers(self) -> Sequence[Offer]:
        """The models that this source lists of itself; none by default.

        Raises:
            SourceUnavailableError: No answer.
        """
        return ()

    def unpack(self, archive: Path, file: RemoteFile, directory: Path) -> None:
        """Put the model's files of a fetched and checked archive into `directory`. Called in a thread.

        Called for files with `is_archive` only. Core hashes what was put there and deletes the archive.

        Raises:
            InvalidModelError: It holds no model.
        """
        raise NotImplementedError(f"source '{self.name}' names archives but cannot unpack them")
