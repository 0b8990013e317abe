"""One file, fetched so that it can be interrupted at any byte: side name, size, sha256, rename."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import structlog

from cardcage.downloads.openers import CHUNK_BYTES
from cardcage.downloads.placing import SIDE_SUFFIXES
from cardcage_sdk.errors import (
    CorruptDownloadError,
    ModelNotFoundError,
    SourceRefusedError,
    SourceUnavailableError,
    StorageFullError,
)
from cardcage_sdk.models import ModelFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cardcage.downloads.openers import Opened, Openers
    from cardcage_sdk.sources import RemoteFile

__all__ = ["PART_SUFFIX", "RetryPolicy", "Transfer", "sha256_of"]

PART_SUFFIX, ETAG_SUFFIX = SIDE_SUFFIXES

MAX_BLOCK_BYTES = 4 << 20
"""What may wait for the disk; then nothing more is read."""

log = structlog.get_logger("cardcage.downloads")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a connection that breaks is made again.

    Attributes:
        pauses_seconds: Between the tries; one try more than pauses.
        progress_bytes: A try that brought this many bytes starts the count again.
        longest_pause_seconds: The most that a source's own `Retry-After` is waited for.
    """

    pauses_seconds: Sequence[float] = (0.5, 1.0)
    progress_bytes: int = CHUNK_BYTES
    longest_pause_seconds: float = 60.0


class _RestartError(Exception):
    """What is there cannot be continued; begin at byte 0."""


class Transfer:
    """Fetches one file into a directory. One use; all methods in the event loop, disk and hashing in threads.

    Attributes:
        completed_bytes: Bytes that are on the disk.
        total_bytes: Size, as soon as anybody told it.
    """

    def __init__(
        self,
        *,
        openers: Openers,
        file: RemoteFile,
        source: str,
        path: Path,
        on_progress: Callable[[], None],
        on_size: Callable[[int], None],
        retries: RetryPolicy,
    ) -> None:
        """Nothing is opened yet.

        Args:
            openers: Open the address.
            file: What is to be fetched.
            source: Its source, for messages.
            path: Where it goes; the part lies beside it.
            on_progress: Called when bytes were written.
            on_size: Called with the bytes still missing, when the first answer tells a size that the source did not; may
                raise.
            retries: Of broken connections.
        """
        self._openers = openers
        self._file = file
        self._source = source
        self._path = path
        self._part = path.with_name(path.name + PART_SUFFIX)
        self._etag_file = path.with_name(path.name + ETAG_SUFFIX)
        self._on_progress = on_progress
        self._on_size = on_size
        self._retries = retries
        self.completed_bytes = 0
        self.total_bytes = file.size_bytes
        self.is_done = False

    def bytes_on_disk(self) -> int:
        """What an earlier try left, whole or in part."""
        for path in (self._path, self._part):
            if path.is_file():
                return path.stat().st_size
        return 0

    async def run(self) -> ModelFile:
        """Fetch what is missing, check all of it, and give it its name.

        Raises:
            SourceUnavailableError: It broke off too often; what came stays on the disk.
            CorruptDownloadError: Wrong size or hash, also after starting anew; nothing stays.
            ModelNotFoundError, SourceRefusedError: The address says so.
            StorageFullError: The disk is full; what came stays.
        """
        if await asyncio.to_thread(self._path.is_file):
            # It has its name, so an earlier try checked it; but disks forget too.
            digest = await asyncio.to_thread(sha256_of, self._path)
            if self._file.sha256 is None or self._file.sha256.lower() == digest:
                return await self._finished(digest)
            await asyncio.to_thread(self._path.unlink)
        await asyncio.to_thread(self._path.parent.mkdir, parents=True, exist_ok=True)
        is_fresh = not await asyncio.to_thread(self._part.is_file)
        try:
            digest = await self._fetch_all()
        except CorruptDownloadError:
            await asyncio.to_thread(self._discard)
            if is_fresh:
                raise
            # What an earlier try left may be at fault; only what comes in one piece counts against the source.
            log.warning("resumed file is corrupt, starting anew", file=self._file.name)
            digest = await self._fetch_anew()
        await asyncio.to_thread(self._commit)
        return await self._finished(digest)

    async def _fetch_anew(self) -> str:
        try:
            return await self._fetch_all()
        except CorruptDownloadError:
            await asyncio.to_thread(self._discard)
            raise

    async def _finished(self, digest: str) -> ModelFile:
        size = (await asyncio.to_thread(self._path.stat)).st_size
        self.completed_bytes = self.total_bytes = size
        self.is_done = True
        self._on_progress()
        return ModelFile(name=self._file.name, size_bytes=size, sha256=digest)

    async def _fetch_all(self) -> str:
        """Connect as often as it takes; returns the checked sha256."""
        failures = 0
        sink = await asyncio.to_thread(_Sink.open, self._part)
        furthest = sink.size
        try:
            while True:
                self.completed_bytes = sink.size
                try:
                    await self._fetch_once(sink)
                    return self._checked(sink)
                except _RestartError as error:
                    log.info("download starts anew", file=self._file.name, reason=str(error))
                    failures += 1
                    if failures > len(self._retries.pauses_seconds):
                        raise SourceUnavailableError(self._source, reason=str(error)) from None
                    await asyncio.to_thread(self._begin_anew, sink)
                except SourceUnavailableError as error:
                    # Bytes that an earlier try had brought already are no progress: they could come for ever.
                    failures = 1 if sink.size - furthest >= self._retries.progress_bytes else failures + 1
                    furthest = max(furthest, sink.size)
                    if failures > len(self._retries.pauses_seconds):
                        raise
                    pause = error.retry_after_seconds or self._retries.pauses_seconds[failures - 1]
                    log.info("download broke off", file=self._file.name, at_byte=sink.size, error=error.message)
                    await asyncio.sleep(min(pause, self._retries.longest_pause_seconds))
        except OSError as error:
            raise self._disk_error(error) from error
        finally:
            await asyncio.to_thread(sink.close)

    async def _fetch_once(self, sink: _Sink) -> None:
        wanted = self._file.size_bytes
        if wanted is not None and sink.size == wanted:
            return
        if wanted is not None and sink.size > wanted:
            raise _RestartError(f"{sink.size} bytes are there, of {wanted}")
        etag = await asyncio.to_thread(self._read_etag)
        if sink.size and etag is None and self._file.sha256 is None:
            # Nothing would tell whether the rest belongs to the part that is there.
            raise _RestartError("what is there cannot be told from another version of the file")
        async with self._openers.open(
            self._file.url, headers=self._file.headers, start_byte=sink.size, etag=etag
        ) as opened:
            self._check_status(opened)
            if opened.start_byte != sink.size:
                if opened.status != 200:
                    raise _RestartError("the source answered with another range than was asked for")
                # It knows no ranges, or the content changed: all of it comes.
                await asyncio.to_thread(self._begin_anew, sink)
            elif sink.size and None not in {etag, opened.etag} and etag != opened.etag:
                raise _RestartError("the content changed")
            self._check_total(opened)
            if self._file.size_bytes is None and self.total_bytes is not None:
                await asyncio.to_thread(self._on_size, self.total_bytes - sink.size)
            await asyncio.to_thread(self._write_etag, opened.etag)
            await self._receive(opened, sink)
        if self.total_bytes is not None and sink.size < self.total_bytes:
            raise SourceUnavailableError(
                self._source, reason=f"'{self._file.name}' ended after {sink.size} of {self.total_bytes} bytes"
            )

    async def _receive(self, opened: Opened, sink: _Sink) -> None:
        """Write what comes as it comes: beside the reading, and in larger blocks where the disk is slower than the net.

        What came before a break or a cancel is on the disk when this ends.
        """
        limit = self.total_bytes
        received = sink.size
        block = bytearray()
        writer: asyncio.Task[None] | None = None
        try:
            async for chunk in opened.chunks:
                received += len(chunk)
                if limit is not None and received > limit:
                    raise CorruptDownloadError(self._file.name, reason=f"more than {limit} bytes came")
                block += chunk
                if writer is not None and (writer.done() or len(block) >= MAX_BLOCK_BYTES):
                    await writer
                    writer = None
                if writer is None:
                    writer = asyncio.create_task(self._write_all(sink, block))
        finally:
            if writer is not None:
                await asyncio.wait([writer])
                # Looked at, so that a disk that failed beside the connection is not told of as forgotten.
                writer.exception()
        if writer is not None:
            await writer
        await self._write_all(sink, block)

    async def _write_all(self, sink: _Sink, block: bytearray) -> None:
        while block:
            content = bytes(block)
            block.clear()
            await asyncio.to_thread(sink.write, content)
            self.completed_bytes = sink.size
            self._on_progress()

    def _check_status(self, opened: Opened) -> None:
        name = self._file.name
        match opened.status:
            case 200 | 206:
                return
            case 416:
                raise _RestartError("the source does not have the range that is missing")
            case 401 | 403:
                raise SourceRefusedError(self._source, reason=f"'{name}' was answered with {opened.status}")
            case 404 | 410:
                raise ModelNotFoundError(name, message=f"Source '{self._source}' no longer has the file '{name}'")
            case 408 | 425 | 429 | 500 | 502 | 503 | 504:
                raise SourceUnavailableError(
                    self._source,
                    reason=f"'{name}' was answered with {opened.status}",
                    retry_after_seconds=opened.retry_after_seconds,
                )
            case status:
                raise CorruptDownloadError(name, reason=f"the source answered with status {status}")

    def _check_total(self, opened: Opened) -> None:
        if opened.total_bytes is None:
            return
        if self._file.size_bytes is not None and opened.total_bytes != self._file.size_bytes:
            raise CorruptDownloadError(
                self._file.name,
                reason=f"it has {opened.total_bytes} bytes, the source listed {self._file.size_bytes}",
            )
        self.total_bytes = opened.total_bytes

    def _checked(self, sink: _Sink) -> str:
        digest = sink.digest.hexdigest()
        if self._file.sha256 is not None and digest != self._file.sha256.lower():
            raise CorruptDownloadError(
                self._file.name, reason=f"its sha256 is {digest}, the source listed {self._file.sha256}"
            )
        return digest

    def _disk_error(self, error: OSError) -> Exception:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
            return error
        state = os.statvfs(self._part.parent)
        missing = (self.total_bytes or 0) - self.completed_bytes
        return StorageFullError(
            needed_bytes=max(missing, 0), free_bytes=state.f_bavail * state.f_frsize, path=str(self._part.parent)
        )

    def _read_etag(self) -> str | None:
        return self._etag_file.read_text(encoding="utf-8") if self._etag_file.is_file() else None

    def _write_etag(self, etag: str | None) -> None:
        if etag is None:
            self._etag_file.unlink(missing_ok=True)
        else:
            self._etag_file.write_text(etag, encoding="utf-8")

    def _begin_anew(self, sink: _Sink) -> None:
        self._etag_file.unlink(missing_ok=True)
        sink.restart()
        self.completed_bytes = 0

    def _discard(self) -> None:
        self._part.unlink(missing_ok=True)
        self._etag_file.unlink(missing_ok=True)

    def _commit(self) -> None:
        """Give the checked file its name, durably: a name never stands for bytes that a power cut can take back."""
        with self._part.open("rb") as file:
            os.fsync(file.fileno())
        self._part.rename(self._path)
        self._etag_file.unlink(missing_ok=True)


@dataclass(slots=True)
class _Sink:
    """The part file and the hash of what is in it. Used by one thread at a time."""

    file: BinaryIO
    digest: hashlib._Hash
    size: int

    @classmethod
    def open(cls, path: Path) -> _Sink:
        digest = hashlib.sha256()
        size = 0
        file = path.open("a+b")
        file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
        return cls(file=file, digest=digest, size=size)

    def write(self, chunk: bytes) -> None:
        self.file.write(chunk)
        # Not left in a buffer: what counts as there is what a killed server leaves behind, and a full disk is noticed here.
        self.file.flush()
        self.digest.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        self.file.truncate(0)
        self.digest = hashlib.sha256()
        self.size = 0

    def close(self) -> None:
        self.file.close()


def sha256_of(path: Path) -> str:
    """Hash of a file, read once."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
