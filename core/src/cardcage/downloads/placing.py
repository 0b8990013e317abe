"""Where a fetched model goes in the store, and the `model.toml` that it gets there."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import unicodedata
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import tomlkit

from cardcage.catalog.manifest import MANIFEST, SCHEMA_VERSION
from cardcage_sdk.errors import CorruptDownloadError, InvalidModelError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.models import ModelFile

__all__ = [
    "SIDE_SUFFIXES",
    "Naming",
    "check_file_name",
    "check_file_names",
    "directory_files",
    "manifest_text",
    "move_into_store",
    "relative_name",
    "remove_from_store",
    "restore_store",
    "store_folder",
    "sync",
]

OLD_PREFIX = ".old-"
"""What is about to be deleted; a leading dot hides it from the catalog."""

REPLACED_PREFIX = ".replaced-"
"""An older state of a model, for the moment until the newer one has its name, which follows."""

_OWN_KEYS = {"schema", "name", "size", "platform", "chips", "source", "files"}
SIDE_SUFFIXES = (".part", ".etag")
"""After the name of a file that is not whole: its bytes, and the validator of its content."""

MAX_NAMED = 100
"""Characters of `name:size`; with more, the id that the model gets by default would be none."""

MAX_FILE_NAME = 512
MAX_FILE_NAME_PART_BYTES = 240
"""Nearly every file system takes 255 bytes; the name that a file has until it is whole is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Name and size in the catalog."""

    name: str
    size: str

    @classmethod
    def chosen(cls, text: str) -> Naming:
        """What a caller wants the model to be called: `name` or `name:size`, any script.

        Raises:
            InvalidRequestError: It cannot be a name of the catalog.
        """
        name, _, size = unicodedata.normalize("NFC", text).strip().partition(":")
        for part in (name, size):
            if len(part) > 80 or re.search(r"[\s/:@()]", part) or not part.isprintable():
                raise InvalidRequestError(
                    f"'{text}' cannot be a name: at most 80 characters, no white space and none of / : @ ( )",
                    param="name",
                )
        if not name:
            raise InvalidRequestError("The name must not be empty", param="name")
        if len(f"{name}:{size}") > MAX_NAMED:
            raise InvalidRequestError(f"Name and size together must be at most {MAX_NAMED} characters", param="name")
        return cls(name=name, size=size)

    @classmethod
    def of_source(cls, name: str, size: str) -> Naming:
        """What a source calls it, made fit for the catalog."""
        name, size = (_plain(text) for text in (name, size))
        name = name or "model"
        return cls(name=name, size=size[: MAX_NAMED - len(f"{name}:")].strip("-"))


def _plain(text: str) -> str:
    shown = "".join(char if char.isprintable() else "-" for char in unicodedata.normalize("NFC", text))
    return re.sub(r"[\s/:@()]+", "-", shown).strip("-")[:80]


def check_file_name(name: str) -> None:
    """Refuse a file name that could lead out of its directory, hide, or stand for something of ours.

    Raises:
        CorruptDownloadError: The source listed it.
    """
    parts = name.split("/")
    is_plain = all(part and part not in {".", ".."} and not part.startswith(".") for part in parts)
    if not is_plain or len(name) > MAX_FILE_NAME or "\\" in name or not name.isprintable() or name == MANIFEST:
        raise CorruptDownloadError(_shown(name), reason="the source lists a file name that is not allowed")
    if any(len(part.encode()) > MAX_FILE_NAME_PART_BYTES for part in parts):
        raise CorruptDownloadError(_shown(name), reason="the source lists a file name that is too long")


def check_file_names(names: Sequence[str]) -> None:
    """Refuse names that could not all stand in one directory, on any file system.

    Raises:
        CorruptDownloadError: One is not allowed, or two would be one file, or one both a file and a directory.
    """
    taken: dict[str, str] = {}
    for name in names:
        check_file_name(name)
        key = _folded(name)
        if key in taken:
            raise CorruptDownloadError(name, reason=f"the source also lists '{taken[key]}'")
        taken[key] = name
    for key, name in taken.items():
        above = [key[:at] for at, char in enumerate(key) if char == "/"]
        for other in (*above, *(key.removesuffix(suffix) for suffix in SIDE_SUFFIXES if key.endswith(suffix))):
            if other in taken:
                raise CorruptDownloadError(name, reason=f"the source also lists '{taken[other]}'")


def _folded(name: str) -> str:
    """One text for all names that some file system takes for the same."""
    return unicodedata.normalize("NFC", name).casefold()


def _shown(name: str) -> str:
    shown = name if name.isprintable() else ascii(name)[1:-1]
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def store_folder(store: Path, *, platform: str, chip: str | None, naming: Naming) -> Path:
    """`<store>/<platform>/<chip>/<name-size>`. Every part is made anew from letters and digits, so none can lead elsewhere."""
    named = f"{naming.name}-{naming.size}" if naming.size else naming.name
    return store / _folder(platform) / _folder(chip or "any") / _folder(named)


def _folder(text: str) -> str:
    plain = re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-.")
    if plain and plain == text.lower() and len(plain) <= 120:
        return plain
    # Another script, or a long name: what is left of it may be another model's name too.
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{plain[:100]}-{mark}" if plain else f"model-{mark}"


def manifest_text(
    *,
    naming: Naming,
    platform: str,
    chips: Sequence[str],
    source: str,
    files: Sequence[ModelFile],
    document: Mapping[str, JsonValue],
) -> str:
    """The text of `model.toml`: what is known for sure, then what the source says further."""
    toml = tomlkit.document()
    toml["schema"] = SCHEMA_VERSION
    toml["name"] = naming.name
    if naming.size:
        toml["size"] = naming.size
    toml["platform"] = platform
    if chips:
        toml["chips"] = list(chips)
    toml["source"] = source
    further = {key: value for key, value in document.items() if key not in _OWN_KEYS and value is not None}
    # Plain keys first: in TOML everything after a table belongs to the table.
    for key, value in sorted(further.items(), key=lambda item: isinstance(item[1], dict)):
        toml[key] = value
    entries = tomlkit.aot()
    for file in files:
        entry = tomlkit.table()
        entry["name"] = file.name
        entry["size_bytes"] = file.size_bytes
        if file.sha256 is not None:
            entry["sha256"] = file.sha256
        entries.append(entry)
    toml["files"] = entries
    return tomlkit.dumps(toml)


def move_into_store(complete: Path, target: Path) -> None:
    """Make a complete directory, on the store's file system, appear under its final name in one step.

    What is there now is replaced; a process that has its files open keeps them. Killed in between, `restore_store` puts back
    what was there.
    """
    old = target.with_name(f"{REPLACED_PREFIX}{target.name}")
    target.parent.mkdir(parents=True, exist_ok=True)
    _delete(old)
    try:
        target.rename(old)
    except FileNotFoundError:
        _rename(complete, target)
        return
    try:
        _rename(complete, target)
    except OSError:
        old.rename(target)
        raise
    _delete(old)


def _rename(complete: Path, target: Path) -> None:
    while True:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            complete.rename(target)
        except FileNotFoundError:
            if not complete.exists():
                raise
            continue  # the last other model of this platform was removed this moment, and the directory with it
        sync(target.parent)
        return


def restore_store(store: Path) -> None:
    """Put right what a process was killed in: a model that was being replaced is back, what was being deleted goes."""
    for left in store.glob(f"*/*/{OLD_PREFIX}*"):
        _delete(left)
    for left in store.glob(f"*/*/{REPLACED_PREFIX}*"):
        target = left.with_name(left.name.removeprefix(REPLACED_PREFIX))
        if target.exists():
            _delete(left)
        else:
            left.rename(target)


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems have nothing to do for a directory, and say so in this way.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def remove_from_store(folder: Path, store: Path) -> None:
    """Delete a model's directory: it disappears in one step, then its bytes go. Empty parents go too."""
    if folder.is_symlink():
        folder.unlink()
    else:
        old = folder.with_name(f"{OLD_PREFIX}{secrets.token_hex(4)}")
        folder.rename(old)
        _delete(old)
    for parent in folder.parents:
        if parent == store or store not in parent.parents:
            return
        try:
            parent.rmdir()
        except OSError:
            return  # another model is in it, perhaps since this moment


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def directory_files(directory: Path) -> list[Path]:
    """Every file below, in order.

    Raises:
        InvalidModelError: One is no plain file.
    """
    found: list[Path] = []
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise InvalidModelError(f"'{path.name}' is no plain file")
        if path.is_file():
            found.append(path)
    return found


def relative_name(path: Path, directory: Path) -> str:
    """Name of a file in its model's directory, with forward slashes."""
    return PurePosixPath(path.relative_to(directory)).as_posix()
