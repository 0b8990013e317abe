"""Where a fetched model goes in the store, and the `model.toml` that it gets there."""

from __future__ import annotations

import hashlib
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
    "OLD_PREFIX",
    "Naming",
    "check_file_name",
    "directory_files",
    "manifest_text",
    "move_into_store",
    "relative_name",
    "remove_from_store",
    "store_folder",
]

OLD_PREFIX = ".old-"
"""What is about to be deleted; a leading dot hides it from the catalog."""

_OWN_KEYS = {"schema", "name", "size", "platform", "chips", "source", "files"}
MAX_FILE_NAME = 512


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
        return cls(name=name, size=size)

    @classmethod
    def of_source(cls, name: str, size: str) -> Naming:
        """What a source calls it, made fit for the catalog."""
        cleaned = re.sub(r"[\s/:@()]+", "-", name).strip("-")[:80] or "model"
        return cls(name=cleaned, size=re.sub(r"[\s/:@()]+", "-", size).strip("-")[:80])


def check_file_name(name: str) -> None:
    """Refuse a file name that could lead out of its directory, hide, or stand for something of ours.

    Raises:
        CorruptDownloadError: The source listed it.
    """
    parts = name.split("/")
    is_plain = all(part and part not in {".", ".."} and not part.startswith(".") for part in parts)
    if not is_plain or len(name) > MAX_FILE_NAME or "\\" in name or not name.isprintable() or name == MANIFEST:
        raise CorruptDownloadError(name, reason="the source lists a file name that is not allowed")


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

    What is there now is replaced; a process that has its files open keeps them.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        old = target.with_name(f"{OLD_PREFIX}{secrets.token_hex(4)}")
        target.rename(old)
        complete.rename(target)
        _delete(old)
    else:
        complete.rename(target)


def remove_from_store(folder: Path, store: Path) -> None:
    """Delete a model's directory: it disappears in one step, then its bytes go. Empty parents go too."""
    if folder.is_symlink():
        folder.unlink()
    else:
        old = folder.with_name(f"{OLD_PREFIX}{secrets.token_hex(4)}")
        folder.rename(old)
        _delete(old)
    for parent in folder.parents:
        if parent == store or store not in parent.parents or any(parent.iterdir()):
            return
        parent.rmdir()


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
