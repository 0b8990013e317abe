"""One resolver for every form of a model's name: LlamaPi's, Ollama's, Hugging Face's, addresses, and those of any source.

A name is text. It is taken apart here, compared with what the store and the sources say of themselves, and never joined to
a path.

| written | is |
|---|---|
| `qwen3`, `qwen3:4b`, `qwen3:latest` | a name with an optional size or tag |
| `qwen3:4b@rkllm-rk3588`, `qwen3:4b(rkllm/rk3588)` | the same, for one platform and chip |
| `Org/Repo`, `Org/Repo:Q4_K_M`, `Org/Repo:file.gguf` | a repository of a hub |
| `hf.co/Org/Repo:Q4_K_M`, `registry.example:5000/me/thing:v1` | with the host that has it |
| `https://...`, `file:///...` | an address |
| `pypi:package==1.0`, `huggingface:Org/Repo` | with the source that has it |
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from cardcage_sdk.errors import InvalidRequestError
from cardcage_sdk.sources import ModelReference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cardcage_sdk.models import ModelArtifact

__all__ = [
    "MAX_NAME_LENGTH",
    "SourceNaming",
    "exact_names",
    "loaded_id",
    "matching_artifacts",
    "parse_reference",
    "without_secrets",
]

MAX_NAME_LENGTH = 1024
"""Characters of a whole name; addresses are the longest."""

MAX_PART_LENGTH = 256

LATEST = "latest"
"""Ollama's tag of a name without one."""

_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?::\d{1,5})?", re.IGNORECASE)
_ADDRESS = re.compile(r"(?:https?|file)://", re.IGNORECASE)
_WITH_SOURCE = re.compile(r"([a-z0-9][a-z0-9_-]*):(.+)", re.IGNORECASE)
_SHOWN_PLACE = re.compile(r"(.+)\(([^()/@]+)/([^()/@]+)\)")
_PLACE = re.compile(r"(.+)@([^@/:()]+)")
_PARTS = re.compile(
    r"(?:(?P<host>[^/]+)/(?=[^/:]+/[^/:]+))?(?:(?P<owner>[^/:]+)/)?(?P<name>[^/:]+)(?::(?P<tag>[^:]+))?"
)


class SourceNaming(Protocol):
    """What the resolver must know of a source; `Source` has it."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts that mean this source."""

    @property
    def is_opaque(self) -> bool:
        """Its own notation follows `name:`."""


def parse_reference(text: str, sources: Mapping[str, SourceNaming] | None = None) -> ModelReference:
    """Take a name apart. Pure: asks no store and no source.

    Args:
        text: What someone wrote; blanks around it do not count.
        sources: Sources by id, so that `id:rest` is told from `name:tag`.

    Raises:
        InvalidRequestError: No model can have this name; with the reason, for people.
    """
    known = sources or {}
    written = unicodedata.normalize("NFC", text).strip()
    _check_characters(written)
    if _ADDRESS.match(written):
        return _address(written, known)
    prefix = _WITH_SOURCE.fullmatch(written)
    if prefix is not None and prefix[1].lower() in known:
        source = prefix[1].lower()
        rest = prefix[2].strip()
        if known[source].is_opaque:
            return ModelReference(text=written, source=source, name=rest)
        if _ADDRESS.match(rest):
            return replace(_address(rest, known), text=written, source=source)
        return replace(_plain(rest, whole=written), source=source)
    return _by_host(_plain(written, whole=written), known)


def without_secrets(reference: ModelReference) -> str:
    """The name for lists, logs and `model.toml`: an address without user, query and fragment, which may hold keys."""
    if not reference.url:
        return reference.text
    parts = urlsplit(reference.url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _refuse(text: str, reason: str) -> InvalidRequestError:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return InvalidRequestError(f"'{shown}' is no model's name: {reason}", param="model")


def _check_characters(text: str) -> None:
    if not text:
        raise InvalidRequestError("A model's name must not be empty", param="model")
    if len(text) > MAX_NAME_LENGTH:
        raise _refuse(text, f"it is longer than {MAX_NAME_LENGTH} characters")
    if any(not char.isprintable() or char.isspace() for char in text):
        raise _refuse(ascii(text)[1:-1], "it holds white space or unprintable characters")
    if "\\" in text:
        raise _refuse(text, "it holds a backslash")


def _address(text: str, known: Mapping[str, SourceNaming]) -> ModelReference:
    try:
        parts = urlsplit(text)
        host = (parts.hostname or "").lower()
        _ = parts.port
    except ValueError as error:
        raise _refuse(text, "it is no valid address") from error
    if parts.scheme.lower() != "file" and not host:
        raise _refuse(text, "the address has no host")
    segments = [unquote(segment) for segment in parts.path.split("/") if segment]
    if any(segment in {".", ".."} or "\0" in segment for segment in segments):
        raise _refuse(text, "the address leads upwards")
    if not segments:
        raise _refuse(text, "the address has no path")
    pages = segments[1:] if segments[0] == "models" else segments
    if len(pages) == 2 and any(host in source.hosts for source in known.values()):
        # The page of a model, as copied from a browser.
        return _by_host(ModelReference(text=text, host=host, owner=pages[0], name=pages[1]), known)
    return ModelReference(text=text, name=segments[-1], url=text)


def _by_host(reference: ModelReference, known: Mapping[str, SourceNaming]) -> ModelReference:
    if not reference.host:
        return reference
    owners = [source for source, naming in known.items() if reference.host in naming.hosts]
    return replace(reference, source=owners[0]) if len(owners) == 1 else reference


def _plain(text: str, *, whole: str) -> ModelReference:
    if text.startswith(("/", "~", ".")):
        raise _refuse(whole, "it begins like a path; a model outside the store is named by its address (file:///...)")
    place = ""
    if shown := _SHOWN_PLACE.fullmatch(text):
        text, place = shown[1], f"{shown[2]}-{shown[3]}"
    elif at := _PLACE.fullmatch(text):
        text, place = at[1], at[2]
    parts = _PARTS.fullmatch(text)
    if parts is None:
        raise _refuse(whole, "it is none of name:tag, owner/name:tag and host/owner/name:tag")
    host, owner, name, tag = (parts[group] or "" for group in ("host", "owner", "name", "tag"))
    if host and not (_HOST.fullmatch(host) and (set(host) & {".", ":"} or host.lower() == "localhost")):
        raise _refuse(whole, f"'{host}' is no host; a file of a repository is written owner/name:file")
    for part in (*([owner] if owner else ()), name, *(tag.split("/") if tag else ())):
        _check_part(part, whole=whole)
    return ModelReference(text=whole, host=host.lower(), owner=owner, name=name, tag=tag, place=place.lower())


def _check_part(part: str, *, whole: str) -> None:
    if not part:
        raise _refuse(whole, "a part of it is empty")
    if part in {".", ".."}:
        raise _refuse(whole, "a part of it leads upwards")
    if part.startswith("-"):
        raise _refuse(whole, "a part of it begins with '-'")
    if len(part) > MAX_PART_LENGTH:
        raise _refuse(whole, f"a part of it is longer than {MAX_PART_LENGTH} characters")
    if any(char in "@()%?#*<>|\"'`$&;" for char in part):
        raise _refuse(whole, "it holds a character that no name has")


def matching_artifacts(
    text: str,
    artifacts: Iterable[ModelArtifact],
    sources: Mapping[str, SourceNaming] | None = None,
) -> list[ModelArtifact]:
    """The models of the store that a name means; upper and lower case are one.

    An exact name wins over a looser reading: `qwen3` is the model of that name and size-less, before it is the only size of
    `qwen3` in the store.

    Raises:
        InvalidRequestError: No model can have this name.
    """
    candidates = list(artifacts)
    wanted = unicodedata.normalize("NFC", text).strip().casefold()
    exact = [artifact for artifact in candidates if wanted in exact_names(artifact)]
    if exact:
        return exact
    reference = parse_reference(text, sources)
    return [artifact for artifact in candidates if _is_meant(reference, artifact, sources)]


def exact_names(artifact: ModelArtifact) -> set[str]:
    """Every name by which exactly this model, on exactly this platform, is known; case-folded."""
    named = f"{artifact.name}:{artifact.size}" if artifact.size else artifact.name
    names = {named, artifact.path.name}
    for place in _places(artifact):
        names.add(f"{named}@{'-'.join(place)}")
        names.add(f"{named}({'/'.join(place)})")
    if artifact.source:
        names.add(artifact.source)
    return {unicodedata.normalize("NFC", name).casefold() for name in names}


def _places(artifact: ModelArtifact) -> list[list[str]]:
    places = [[part for part in (artifact.platform, chip) if part] for chip in artifact.chips or ("",)]
    return [place for place in places if place]


def _is_meant(reference: ModelReference, artifact: ModelArtifact, sources: Mapping[str, SourceNaming] | None) -> bool:
    if reference.place and reference.place not in {"-".join(place).lower() for place in _places(artifact)}:
        return False
    if not (reference.source or reference.host or reference.url) and reference.owner.casefold() in {"", "library"}:
        return _same(reference.name, artifact.name) and _is_size(reference.tag, artifact.size)
    if not artifact.source:
        return False
    try:
        origin = parse_reference(artifact.source, sources)
    except InvalidRequestError:
        return False  # another version's or a person's free text: it is no name that anybody could mean
    if reference.source and reference.source != origin.source:
        return False
    if reference.url:
        return without_secrets(reference) == origin.url
    if reference.host and not reference.source and reference.host != origin.host:
        return False
    same = _same(reference.name, origin.name) and _same(reference.owner or "library", origin.owner or "library")
    return same and (_is_latest(reference.tag) or _same(reference.tag, origin.tag))


def _same(left: str, right: str) -> bool:
    return left.casefold() == right.casefold()


def _is_latest(tag: str) -> bool:
    return tag == "" or _same(tag, LATEST)


def _is_size(tag: str, size: str) -> bool:
    """Whether a tag means this size: it is the size, its first part (`0.5b` of `0.5b-q4_k_m`), or says nothing."""
    return _is_latest(tag) or _same(tag, size) or size.casefold().startswith(f"{tag.casefold()}-")


def loaded_id(text: str, ids: Sequence[str]) -> str | None:
    """The id of a loaded model that a name means: as it is, without regard to case, or without Ollama's `:latest`.

    Returns:
        The id, or None where no id, or no single one, is meant.
    """
    wanted = unicodedata.normalize("NFC", text).strip()
    if wanted in ids:
        return wanted
    folded = wanted.casefold()
    for form in (folded, folded.removesuffix(f":{LATEST}"), f"{folded}:{LATEST}"):
        found = [model_id for model_id in ids if model_id.casefold() == form]
        if len(found) == 1:
            return found[0]
    return None
