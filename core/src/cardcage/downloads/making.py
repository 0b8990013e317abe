"""Models made from models: a directory of its own with its own `model.toml`, its files shared with those of its base."""

from __future__ import annotations

import dataclasses
import errno
import os
import secrets
import shutil
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from cardcage.catalog.manifest import MANIFEST
from cardcage.catalog.resolver import parse_reference
from cardcage.downloads.machine import claimants, read_machine
from cardcage.downloads.placing import (
    Naming,
    check_file_name,
    manifest_text,
    move_into_store,
    remove_from_store,
    store_folder,
)
from cardcage.downloads.transfer import sha256_of
from cardcage.names import default_model_id
from cardcage_sdk.errors import (
    CorruptDownloadError,
    InvalidRequestError,
    ModelInUseError,
    ModelNotFoundError,
    PlatformDetectionError,
    StorageFullError,
)
from cardcage_sdk.models import ModelArtifact, ModelFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from cardcage.catalog import Catalog
    from cardcage.downloads.uploads import Uploads
    from cardcage_sdk.library import CreateRequest
    from cardcage_sdk.platform import Platform
    from cardcage_sdk.service import GenerationDefaults

__all__ = ["MAKING", "Maker"]

MAKING = ".making"
"""Side directories of models that are being made, inside the store so that files can be linked and the last step is a rename."""

log = structlog.get_logger("cardcage.downloads")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A file that becomes part of the model."""

    name: str
    path: Path
    sha256: str | None


class Maker:
    """Makes models. Every method reads and writes files; call it in a thread, one at a time."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        platforms: Mapping[str, Platform],
        uploads: Uploads,
        is_loaded: Callable[[Path], int],
    ) -> None:
        """Take what it needs; touches nothing.

        Args:
            catalog: The store.
            platforms: Installed platforms by id, in the order of preference.
            uploads: Where files of requests lie.
            is_loaded: How many loaded models have their files in this directory.
        """
        self._catalog = catalog
        self._platforms = platforms
        self._uploads = uploads
        self._side = catalog.store / MAKING
        self._is_loaded = is_loaded

    def make(self, request: CreateRequest) -> ModelArtifact:
        """See `cardcage_sdk.library.Library.create`."""
        naming, source_name = _named(request.name)
        base = self._catalog.find(request.base) if request.base is not None else None
        document = _document(base)
        sources = self._sources(request, base)
        _apply(document, request)
        folder = self._side / secrets.token_hex(8)
        files = folder / "files"
        files.mkdir(parents=True)
        try:
            listed = [self._place(source, files) for source in sources]
            platform = (base.platform if base is not None else None) or self._platform_of(files, naming, listed)
            chips = base.chips if base is not None else self._chips_of(platform)
            text = manifest_text(
                naming=naming,
                platform=platform,
                chips=chips,
                source=source_name,
                files=listed,
                document=document,
            )
            (files / MANIFEST).write_text(text, encoding="utf-8")
            self._catalog.artifact(files)
            target = store_folder(
                self._catalog.store, platform=platform, chip=chips[0] if chips else None, naming=naming
            )
            self._drop_others(request.name, target)
            move_into_store(files, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        log.info("model made", model=request.name, base=request.base, path=str(target))
        return self._catalog.artifact(target)

    def sweep(self) -> None:
        """Delete what an earlier server was killed while making."""
        shutil.rmtree(self._side, ignore_errors=True)

    def _sources(self, request: CreateRequest, base: ModelArtifact | None) -> list[_Source]:
        sources: dict[str, _Source] = {}
        for file in base.files if base is not None else ():
            assert base is not None
            sources[file.name] = _Source(name=file.name, path=base.directory / file.name, sha256=file.sha256)
        for name, sha256 in request.files.items():
            try:
                check_file_name(name)
            except CorruptDownloadError:
                raise InvalidRequestError("file path must be relative", param="files") from None
            path = self._uploads.find(sha256)
            if path is None:
                raise ModelNotFoundError(name, message=f"blob 'sha256:{sha256}' not found")
            sources[name] = _Source(name=name, path=path, sha256=sha256)
        if not sources:
            raise InvalidRequestError("neither 'from' or 'files' was specified", param="files")
        return list(sources.values())

    def _place(self, source: _Source, folder: Path) -> ModelFile:
        target = folder / source.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source.path, target)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise self._full(source.path) from error
            self._copy(source.path, target)
        return ModelFile(name=source.name, size_bytes=target.stat().st_size, sha256=source.sha256 or sha256_of(target))

    def _copy(self, source: Path, target: Path) -> None:
        """For file systems without hard links, and bases outside of the store's."""
        state = os.statvfs(target.parent)
        if source.stat().st_size > state.f_bavail * state.f_frsize:
            raise self._full(source)
        shutil.copyfile(source, target)

    def _full(self, source: Path) -> StorageFullError:
        state = os.statvfs(self._catalog.store)
        return StorageFullError(
            needed_bytes=source.stat().st_size,
            free_bytes=state.f_bavail * state.f_frsize,
            path=str(self._catalog.store),
        )

    def _platform_of(self, folder: Path, naming: Naming, files: Sequence[ModelFile]) -> str:
        artifact = ModelArtifact(path=folder, name=naming.name, files=tuple(files))
        claiming = claimants(self._platforms, artifact)
        if not claiming:
            raise PlatformDetectionError(
                naming.name, message=f"No installed platform takes the files of '{naming.name}'"
            )
        return claiming[0]

    def _chips_of(self, platform: str) -> tuple[str, ...]:
        wanted = {name: found for name, found in self._platforms.items() if name == platform}
        chips = [chip.lower() for facts in read_machine(wanted).platforms for chip in facts.chips]
        return tuple(chips[:1])

    def _drop_others(self, name: str, target: Path) -> None:
        """A model of this very name that lies elsewhere, made from a base of another platform, would make it ambiguous."""
        try:
            other = self._catalog.find(name)
        except ModelNotFoundError:
            return
        if other.path == target or _named(name)[0] != Naming(name=other.name, size=other.size):
            return
        if holders := self._is_loaded(other.path):
            raise ModelInUseError(default_model_id(other), leases=holders)
        remove_from_store(other.path, self._catalog.store)


def _named(text: str) -> tuple[Naming, str]:
    """Name and size in the catalog, and what `model.toml` says of where it is from: its whole name, so that it is found by it.

    Raises:
        InvalidRequestError: No model can be made under this name.
    """
    reference = parse_reference(text)
    if reference.host or reference.url or reference.place or reference.source:
        raise InvalidRequestError(
            f"'{text}' is the name of a model elsewhere; one here is owner/name:size", param="name"
        )
    owner = "" if reference.owner.casefold() == "library" else reference.owner
    size = "" if reference.tag.casefold() == "latest" else reference.tag
    if "/" in size:
        raise InvalidRequestError(f"'{text}' cannot be made: a size holds no '/'", param="name")
    naming = Naming.of_source(f"{owner}-{reference.name}" if owner else reference.name, size)
    source = f"{owner}/{reference.name}" if owner else reference.name
    return naming, f"{source}:{size or 'latest'}"


def _document(base: ModelArtifact | None) -> dict[str, Any]:
    if base is None or not (base.directory / MANIFEST).is_file() or not base.path.is_dir():
        return {}
    with (base.directory / MANIFEST).open("rb") as file:
        document: dict[str, Any] = tomllib.load(file)
    if base.chat_template is not None:
        # The template's file may be no file of the model.
        document.pop("chat_template_file", None)
        document["chat_template"] = base.chat_template
    return document


def _apply(document: dict[str, Any], request: CreateRequest) -> None:
    if request.chat_template is not None:
        document["chat_template"] = request.chat_template
    if request.license is not None:
        document["license"] = request.license
    defaults = request.defaults
    if defaults.system is not None:
        document["system"] = defaults.system
    if defaults.messages:
        document["messages"] = [{"role": message.role, "content": message.text} for message in defaults.messages]
    params = {**document.get("default_params", {}), **_params(defaults)}
    if params:
        document["default_params"] = params


def _params(defaults: GenerationDefaults) -> dict[str, Any]:
    params: dict[str, Any] = {
        field.name: getattr(defaults.sampling, field.name)
        for field in dataclasses.fields(defaults.sampling)
        if field.name != "logit_bias" and getattr(defaults.sampling, field.name) is not None
    }
    if "stop" in params:
        params["stop"] = list(params["stop"])
    if defaults.max_context_len is not None:
        params["max_context_len"] = defaults.max_context_len
    if defaults.enable_thinking is not None:
        params["enable_thinking"] = defaults.enable_thinking
    return params
