"""Files that clients upload to make models of: kept by their sha256, beside the models."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
import time
from typing import TYPE_CHECKING

from cardcage_sdk.errors import InvalidRequestError, StorageFullError

if TYPE_CHECKING:
    from collections.abc import AsyncIterable
    from pathlib import Path

    from cardcage.catalog import Catalog

__all__ = ["KEPT_SECONDS", "UPLOADS", "Uploads"]

UPLOADS = ".uploads"
"""Inside the store, so that a file becomes part of a model by a hard link; the dot hides it from the catalog."""

KEPT_SECONDS = 24 * 3600.0
"""A file that no model was made of is deleted at the first start after so long."""

_WRITE_BYTES = 1 << 20
_UNFINISHED = ".part"


class Uploads:
    """The uploaded files of one store."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._folder = catalog.store / UPLOADS

    def find(self, sha256: str) -> Path | None:
        """The file of this content: an uploaded one, or one of a model of the store. Reads files; call it in a thread."""
        uploaded = self._folder / _plain(sha256)
        if uploaded.is_file():
            return uploaded
        for artifact in self._catalog.entries():
            for file in artifact.files:
                if file.sha256 == sha256:
                    return artifact.directory / file.name
        return None

    async def add(self, sha256: str, chunks: AsyncIterable[bytes]) -> bool:
        """See `cardcage_sdk.library.Library.add_file`."""
        wanted = _plain(sha256)
        if await asyncio.to_thread(self.find, wanted) is not None:
            async for _ in chunks:
                pass  # the client sees its answer only when it could send everything
            return False
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
        path = self._folder / f"{secrets.token_hex(8)}{_UNFINISHED}"
        digest = hashlib.sha256()
        failure: OSError | None = None
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            waiting = bytearray()
            async for chunk in chunks:
                waiting += chunk
                if failure is None and len(waiting) >= _WRITE_BYTES:
                    failure = await asyncio.to_thread(_write, descriptor, bytes(waiting), digest)
                    waiting.clear()
                elif failure is not None:
                    waiting.clear()
            failure = failure or await asyncio.to_thread(_write, descriptor, bytes(waiting), digest)
            if failure is not None:
                raise self._refusal(failure)
            if digest.hexdigest() != wanted:
                raise InvalidRequestError(
                    f'digest mismatch, expected "sha256:{wanted}", got "sha256:{digest.hexdigest()}"', param="digest"
                )
            await asyncio.to_thread(os.fsync, descriptor)
            path.rename(self._folder / wanted)
        finally:
            os.close(descriptor)
            path.unlink(missing_ok=True)
        return True

    def sweep(self, *, now: float | None = None) -> None:
        """Delete what was never finished, and what has lain here for a day. Call once, before anything else uses the store."""
        oldest = (time.time() if now is None else now) - KEPT_SECONDS
        for path in self._folder.glob("*"):
            if path.name.endswith(_UNFINISHED) or path.stat().st_mtime < oldest:
                path.unlink(missing_ok=True)

    def _refusal(self, failure: OSError) -> Exception:
        if failure.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            return failure
        state = os.statvfs(self._folder)
        return StorageFullError(
            needed_bytes=_WRITE_BYTES, free_bytes=state.f_bavail * state.f_frsize, path=str(self._catalog.store)
        )


def _plain(sha256: str) -> str:
    """A hash that may become a file's name."""
    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise InvalidRequestError("invalid digest format", param="digest")
    return sha256


def _write(descriptor: int, data: bytes, digest: hashlib._Hash) -> OSError | None:
    digest.update(data)
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        return error
    return None
