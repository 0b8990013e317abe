"""One model on its way into the store. Any number of callers watch it; it belongs to none of them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import structlog

from cardcage.catalog.manifest import MANIFEST, parse_manifest
from cardcage.downloads.machine import claimants, read_machine
from cardcage.downloads.partials import FILES, describe, hold
from cardcage.downloads.placing import (
    Naming,
    check_file_names,
    directory_files,
    manifest_text,
    move_into_store,
    relative_name,
    store_folder,
    sync,
)
from cardcage.downloads.transfer import RetryPolicy, Transfer, sha256_of
from cardcage_sdk.errors import (
    InternalError,
    InvalidModelError,
    PlatformDetectionError,
    SourceUnavailableError,
    StorageFullError,
)
from cardcage_sdk.library import FileProgress
from cardcage_sdk.models import ModelArtifact, ModelFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cardcage.catalog import Catalog
    from cardcage.downloads.fitting import Choice
    from cardcage.downloads.openers import Openers
    from cardcage_sdk.platform import Platform
    from cardcage_sdk.sources import RemoteFile, Source

__all__ = ["Job", "JobPlan"]

ARCHIVE_FACTOR = 1.1
"""Weights hardly compress, so what an archive holds is about as large as itself."""

SPARE_BYTES = 64 << 20
"""Free space that a download leaves to everything else on the disk."""

log = structlog.get_logger("cardcage.downloads")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What is to be fetched, decided.

    Attributes:
        source: Where from; unpacks archives.
        origin: What `model.toml` says of where it came from, as `huggingface:Org/Repo:Q4_K_M`.
        asked: The name as it was asked for.
        folder: The side directory, on the store's file system; its name stands for exactly this content.
    """

    source: Source
    origin: str
    asked: str
    choice: Choice
    naming: Naming
    folder: Path


class _GivenUpError(Exception):
    """The pull was cancelled while a thread worked for it."""


class Job:
    """Fetches all files of a model, checks them, and makes the model appear in the store. One use.

    Attributes:
        is_checking: All bytes are there.
    """

    def __init__(
        self,
        *,
        plan: JobPlan,
        catalog: Catalog,
        platforms: Mapping[str, Platform],
        openers: Openers,
        on_progress: Callable[[], None],
        retries: RetryPolicy,
        spare_bytes: int = SPARE_BYTES,
    ) -> None:
        """Look at what is listed; nothing is fetched or written yet.

        Raises:
            CorruptDownloadError: The names of its files cannot be.
            InvalidModelError: What the source says of it is nothing that a load would take.
        """
        for is_archive in (False, True):
            check_file_names([file.name for file in plan.choice.variant.files if file.is_archive is is_archive])
        self.plan = plan
        self.is_checking = False
        self._catalog = catalog
        self._platforms = platforms
        self._spare_bytes = spare_bytes
        self._is_given_up = threading.Event()
        self._files_dir = plan.folder / FILES
        self._archives_dir = plan.folder / "archives"
        self._transfers = [
            (
                file,
                Transfer(
                    openers=openers,
                    file=file,
                    source=plan.source.name,
                    path=(self._archives_dir if file.is_archive else self._files_dir) / file.name,
                    on_progress=on_progress,
                    on_size=partial(self._check_late_space, file),
                    retries=retries,
                ),
            )
            for file in plan.choice.variant.files
        ]
        self._on_progress = on_progress
        self._check_description()

    def progress(self) -> tuple[FileProgress, ...]:
        """How far each file is."""
        return tuple(
            FileProgress(
                name=file.name,
                completed_bytes=transfer.completed_bytes,
                total_bytes=transfer.total_bytes,
                is_done=transfer.is_done,
                sha256=file.sha256,
            )
            for file, transfer in self._transfers
        )

    async def run(self) -> ModelArtifact:
        """Do all of it.

        Raises:
            SourceError: And its kin; what was fetched stays in the side directory, but for what was corrupt.
            ModelError: The files are no model that an installed platform takes.
            InternalError: The store cannot be written.
        """
        try:
            lock = await asyncio.to_thread(self._prepare)
            try:
                await asyncio.to_thread(self._check_space)
                fetched = {file.name: await transfer.run() for file, transfer in self._transfers}
                self.is_checking = True
                self._on_progress()
                return await self._finish_whole(fetched)
            finally:
                lock.close()
        except OSError as error:
            raise self._store_error(error) from error

    async def _finish_whole(self, fetched: Mapping[str, ModelFile]) -> ModelArtifact:
        """Finish in a thread, which goes on when its waiter is cancelled: so it is waited for, and told to give up.

        A cancel that comes too late for that changes nothing: the model is there.
        """
        finishing = asyncio.ensure_future(asyncio.to_thread(self._finish, fetched))
        is_cancelled = False
        while not finishing.done():
            try:
                await asyncio.wait([finishing])
            except asyncio.CancelledError:
                is_cancelled = True
                self._is_given_up.set()
        if is_cancelled and finishing.exception() is not None:
            raise asyncio.CancelledError
        return finishing.result()

    def _go_on(self) -> None:
        if self._is_given_up.is_set():
            raise _GivenUpError

    def _store_error(self, error: OSError) -> Exception:
        store = self._catalog.store
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            return InternalError(f"The store '{store}' cannot be used: {error.strerror or error}")
        state = os.statvfs(store)
        return StorageFullError(
            needed_bytes=self._missing_bytes(), free_bytes=state.f_bavail * state.f_frsize, path=str(store)
        )

    def _prepare(self) -> BinaryIO:
        """Make the side directory, say in it what it is, and keep other servers out of it."""
        folder = self.plan.folder
        lock = hold(folder)
        if lock is None:
            raise SourceUnavailableError(
                self.plan.source.name, reason="another server is fetching this model into the same store"
            )
        try:
            self._files_dir.mkdir(exist_ok=True)
            describe(
                folder,
                {
                    "model": self.plan.asked,
                    "origin": self.plan.origin,
                    "name": self.plan.naming.name,
                    "size": self.plan.naming.size,
                    "place": [self.plan.choice.platform, self.plan.choice.chip],
                    "total_bytes": self.plan.choice.variant.size_bytes,
                },
            )
        except OSError:
            lock.close()
            raise
        return lock

    def _check_description(self) -> None:
        """What no load would take must be found before hours of fetching, not after."""
        listed = [
            ModelFile(name=file.name, size_bytes=file.size_bytes or 0, sha256=file.sha256)
            for file in self.plan.choice.variant.files
            if not file.is_archive
        ]
        try:
            text = self._description(listed, platform=self.plan.choice.platform or "any", chip=self.plan.choice.chip)
            parse_manifest(text.encode(), Path(MANIFEST))
        except (InvalidModelError, ValueError, TypeError) as error:
            raise InvalidModelError(f"What the source says of '{self.plan.asked}' is of no use: {error}") from error

    def _description(self, files: Sequence[ModelFile], *, platform: str, chip: str | None) -> str:
        variant = self.plan.choice.variant
        return manifest_text(
            naming=self.plan.naming,
            platform=platform,
            chips=[name.lower() for name in variant.chips or ([chip] if chip else [])],
            source=self.plan.origin,
            files=files,
            document=variant.document,
        )

    def _check_space(self) -> None:
        """Before a byte is fetched."""
        self._require(self._missing_bytes())

    def _missing_bytes(self) -> int:
        """Room for what is missing, and for what comes out of archives."""
        variant = self.plan.choice.variant
        missing = variant.unpacked_bytes or 0
        for file, transfer in self._transfers:
            missing += max((file.size_bytes or 0) - transfer.bytes_on_disk(), 0)
            if file.is_archive and variant.unpacked_bytes is None:
                missing += int((file.size_bytes or 0) * ARCHIVE_FACTOR)
        return missing

    def _check_late_space(self, file: RemoteFile, missing: int) -> None:
        """The same for a file whose size nobody told before. In a thread."""
        unpacked = self.plan.choice.variant.unpacked_bytes
        if file.is_archive:
            missing += int(missing * ARCHIVE_FACTOR) if unpacked is None else unpacked
        self._require(missing)

    def _require(self, missing: int) -> None:
        state = os.statvfs(self.plan.folder)
        free = state.f_bavail * state.f_frsize
        if missing + self._spare_bytes > free:
            raise StorageFullError(
                needed_bytes=missing + self._spare_bytes, free_bytes=free, path=str(self._catalog.store)
            )

    def _finish(self, fetched: Mapping[str, ModelFile]) -> ModelArtifact:
        """Unpack, describe, check as a load would, and rename. In a thread."""
        files = [fetched[file.name] for file in self.plan.choice.variant.files if not file.is_archive]
        files += self._unpack({file.name for file in self.plan.choice.variant.files if not file.is_archive})
        if not files:
            raise InvalidModelError(f"'{self.plan.asked}' holds no files of a model")
        platform = self.plan.choice.platform or self._platform_of(files)
        chip = self.plan.choice.chip or self._chip_of(platform)
        manifest = self._files_dir / MANIFEST
        manifest.write_text(self._description(files, platform=platform, chip=chip), encoding="utf-8")
        sync(manifest)
        sync(self._files_dir)
        self._catalog.artifact(self._files_dir)
        target = store_folder(self._catalog.store, platform=platform, chip=chip, naming=self.plan.naming)
        self._check_free(target)
        self._go_on()
        move_into_store(self._files_dir, target)
        shutil.rmtree(self.plan.folder)
        log.info("model fetched", model=self.plan.asked, source=self.plan.origin, path=str(target))
        return self._catalog.artifact(target)

    def _check_free(self, target: Path) -> None:
        """Only an older state of the same model is replaced; an unusable directory is nobody's."""
        try:
            current = self._catalog.artifact(target)
        except InvalidModelError:
            return
        if current.source != self.plan.origin:
            raise InvalidModelError(
                f"The store has another model, from {current.source or 'elsewhere'}, under this name at '{target}'; "
                "remove it, or choose another name",
                param="name",
            )

    def _unpack(self, taken: set[str]) -> list[ModelFile]:
        found: list[ModelFile] = []
        unpacked = self.plan.folder / "unpacked"
        for file, _ in self._transfers:
            if not file.is_archive:
                continue
            shutil.rmtree(unpacked, ignore_errors=True)
            unpacked.mkdir()
            self._go_on()
            self.plan.source.unpack(self._archives_dir / file.name, file, unpacked)
            for path in directory_files(unpacked):
                self._go_on()
                name = relative_name(path, unpacked)
                if name in taken:
                    raise InvalidModelError(f"'{name}' is in the model twice")
                taken.add(name)
                sync(path)
                size = path.stat().st_size
                found.append(ModelFile(name=name, size_bytes=size, sha256=sha256_of(path)))
                target = self._files_dir / name
                target.parent.mkdir(parents=True, exist_ok=True)
                path.rename(target)
        check_file_names(sorted(taken))
        return found

    def _platform_of(self, files: list[ModelFile]) -> str:
        artifact = ModelArtifact(path=self._files_dir, name=self.plan.naming.name, files=tuple(files))
        claiming = claimants(self._platforms, artifact)
        if not claiming:
            raise PlatformDetectionError(
                self.plan.asked,
                message=f"No installed platform takes the files of '{self.plan.asked}'; name one to fetch it all the same",
            )
        return claiming[0]

    def _chip_of(self, platform: str) -> str | None:
        wanted = {name: found for name, found in self._platforms.items() if name == platform}
        chips = [chip for facts in read_machine(wanted).platforms for chip in facts.chips]
        return chips[0].lower() if chips else None
