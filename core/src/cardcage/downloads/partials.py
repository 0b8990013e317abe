"""Side directories: where a pull gathers a model until it is whole, what they say of themselves, and who holds them.

Several processes may use one store (two servers, or `cardcage rm` beside a server that does not answer), so a side directory
belongs to whoever holds its lock, and nobody else writes in it or deletes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from typing import TYPE_CHECKING, BinaryIO

from cardcage.catalog.resolver import exact_names
from cardcage_sdk.library import PullProgress

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from cardcage_sdk.models import ModelArtifact

__all__ = ["FILES", "PARTIAL", "Partial", "describe", "discard", "hold", "partials_of"]

PARTIAL = ".partial"
"""Inside the store so that the last step is a rename; the dot hides it from the catalog."""

FILES = "files"
"""The model's own directory in a side directory; it is what is moved into the store."""

JOB_FILE = "job.json"
LOCK_FILE = "lock"


def hold(folder: Path) -> BinaryIO | None:
    """Make a side directory and keep others out of it until what is returned is closed. Call it in a thread.

    Returns:
        The lock, or None where another process, or another pull of this one, has it.
    """
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock = (folder / LOCK_FILE).open("wb")
        except FileNotFoundError:
            continue  # its holder deleted it between the two steps
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            return None
        except OSError:
            lock.close()
            raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), (folder / LOCK_FILE).stat()):
                return lock
        lock.close()  # it was deleted before it was ours


def discard(folder: Path) -> bool:
    """Delete a side directory, unless somebody holds it. Call it in a thread.

    Returns:
        Whether it is gone.
    """
    lock = hold(folder)
    if lock is None:
        return False
    with lock:
        shutil.rmtree(folder, ignore_errors=True)
    return True


def describe(folder: Path, values: Mapping[str, object]) -> None:
    """Say in a side directory what it is, for `partials_of`."""
    (folder / JOB_FILE).write_text(json.dumps({"schema": 1, **values}), encoding="utf-8")


def partials_of(store: Path) -> list[Partial]:
    """The side directories of a store, in a fixed order."""
    found: list[Partial] = []
    for file in sorted((store / PARTIAL).glob(f"*/{JOB_FILE}")):
        # A power cut may have left half a description; its directory is then known by its folder's name only.
        described: object = {}
        with contextlib.suppress(OSError, ValueError):
            described = json.loads(file.read_text(encoding="utf-8"))
        found.append(Partial(folder=file.parent, described=described if isinstance(described, dict) else {}))
    return found


class Partial:
    """A side directory, as its description tells.

    Attributes:
        place: Platform and chip that it was asked for, each None where the files were to decide.
    """

    def __init__(self, *, folder: Path, described: Mapping[str, object]) -> None:
        self.folder = folder
        self.model = str(described.get("model") or folder.name)
        self.origin = str(described.get("origin") or "")
        self.name = str(described.get("name") or "")
        self.size = str(described.get("size") or "")
        self.place = described.get("place")
        total = described.get("total_bytes")
        self.total_bytes = total if isinstance(total, int) else 0

    @property
    def shown(self) -> str:
        """What it is to become, as people write it."""
        return f"{self.name}:{self.size}" if self.size else self.name or self.folder.name

    def is_of(self, artifact: ModelArtifact) -> bool:
        """Whether it is to become this model."""
        return self.shown.casefold() in exact_names(artifact)

    def is_named(self, name: str) -> bool:
        """Whether someone who says `name` means exactly this: by what it was asked for, or by what it was to become."""
        own = (self.model, self.origin, self.shown, f"{self.name}-{self.size}", self.folder.name)
        return name.strip().casefold() in {text.casefold() for text in own if text}

    def is_perhaps_named(self, name: str) -> bool:
        """Whether it may be meant, where no other has this name without a size."""
        return name.strip().casefold() == self.name.casefold()

    def progress(self) -> PullProgress:
        """As an interrupted pull."""
        there = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
        return PullProgress(
            id=self.folder.name,
            model=self.model,
            state="interrupted",
            source=self.origin or None,
            completed_bytes=min(there, self.total_bytes) if self.total_bytes else there,
            total_bytes=self.total_bytes,
        )
