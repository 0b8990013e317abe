"""Variants of a model out of the list of files of its repository. Pure but for `tomllib`.

Four layouts are known, looked for in this order:

1. `model.toml` files: each one's directory is a variant, described by itself.
2. `*.gguf`: one variant for each quantisation, parts (`-00001-of-00003`) together.
3. `*.rkllm`, `*.rknn`: one variant for each such file, with the chip that its name tells, and the repository's small files.
4. Anything else: the whole repository is one variant.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cardcage_sdk.errors import ModelNotFoundError
from cardcage_sdk.sources import RemoteFile, RemoteVariant
from cardcage_sources.naming import chip_of, part_of, quantisation_of, split_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["MANIFEST", "Repository", "listed_sha256", "listed_size", "manifest_names", "variants_of"]

MANIFEST = "model.toml"

BEST_QUANTISATIONS = ("Q4_K_M", "Q4_0", "Q4_1", "Q4_K_S", "Q5_K_M", "Q8_0", "Q6_K", "Q3_K_M", "F16", "BF16")
"""Asked for none, the first of these is taken: small enough for a board, good enough to talk to."""

SMALL_BYTES = 64 << 20
COMPANION_SUFFIXES = (".json", ".txt", ".model", ".jinja", ".tiktoken")
LEFT_OUT = (".gitattributes", ".gitignore", ".md", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".mp4", ".pdf")
OTHER_WEIGHTS = (".h5", ".msgpack", ".ot", ".pth", ".pt", ".ckpt", ".tflite", ".mlmodel")
"""Formats that repositories carry beside the one that is meant; no platform here reads them."""


_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What a hub tells of one repository.

    Attributes:
        name: Full name there, as `Org/Repo`.
        files: All of them.
        manifests: Text of every `model.toml` among them, by path.
        license: As the hub names it.
    """

    name: str
    files: Sequence[RemoteFile]
    manifests: Mapping[str, str]
    license: str | None = None


def listed_size(value: object) -> int | None:
    """A size as a hub lists it; anything that is none counts as not told."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def listed_sha256(value: object) -> str | None:
    """The same for a hash."""
    return value.lower() if isinstance(value, str) and _SHA256.fullmatch(value) else None


def manifest_names(files: Sequence[RemoteFile]) -> list[str]:
    """The `model.toml` files whose text `Repository.manifests` needs; few, and small."""
    names = [file.name for file in files if file.name.rpartition("/")[2] == MANIFEST]
    small = {file.name for file in files if (file.size_bytes or 0) <= 1 << 20}
    return [name for name in names if name in small][:32]


def variants_of(repository: Repository, *, tag: str = "") -> tuple[RemoteVariant, ...]:
    """The variants, preferred first.

    Args:
        repository: What the hub tells.
        tag: A file that the name asks for by its full name gets a variant of its own; empty for none.

    Raises:
        ModelNotFoundError: It holds no files of a model.
    """
    named = [file for file in repository.files if tag and tag.casefold() == file.name.casefold()]
    files = [file for file in repository.files if not _is_left_out(file.name)]
    if repository.manifests:
        found = _by_manifest(repository, files)
    elif any(file.name.lower().endswith(".gguf") for file in named or files):
        found = _by_quantisation(repository, named or files)
    elif any(file.name.lower().endswith((".rkllm", ".rknn")) for file in named or files):
        found = _by_chip(repository, named, files)
    elif named or files:
        parts = split_name(repository.name.rpartition("/")[2])
        found = [RemoteVariant(name=parts.name, size=parts.size, files=tuple(named or _one_format(files)))]
    else:
        found = []
    if not found:
        raise ModelNotFoundError(repository.name, message=f"'{repository.name}' holds no files of a model")
    if repository.license is None:
        return tuple(found)
    return tuple(replace(variant, document={"license": repository.license, **variant.document}) for variant in found)


def _is_left_out(name: str) -> bool:
    parts = name.split("/")
    return name.lower().endswith((*LEFT_OUT, *OTHER_WEIGHTS)) or any(part.startswith(".") for part in parts)


def _one_format(files: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Weights as safetensors make the same weights as `.bin` superfluous."""
    if any(file.name.lower().endswith(".safetensors") for file in files):
        return [file for file in files if not file.name.lower().endswith(".bin")]
    return list(files)


def _by_quantisation(repository: Repository, files: Sequence[RemoteFile]) -> list[RemoteVariant]:
    groups: dict[str, list[RemoteFile]] = {}
    for file in files:
        base = file.name.rpartition("/")[2]
        # A projector is a part of a vision model, not a form of the whole.
        if not base.lower().endswith(".gguf") or base.lower().startswith("mmproj"):
            continue
        part = part_of(file.name)
        groups.setdefault(part[0] if part else file.name, []).append(file)
    variants: list[RemoteVariant] = []
    for name, members in groups.items():
        quantisation = quantisation_of(name)
        base = name.rpartition("/")[2]
        parts = split_name(base.rpartition(".")[0], quantisation=quantisation)
        if not parts.size or parts.size == (quantisation or "").lower():
            # The file's name does not tell the size; the repository's often does.
            parts = split_name(repository.name.rpartition("/")[2], quantisation=quantisation)
        variants.append(
            RemoteVariant(
                label=quantisation or base,
                name=parts.name,
                size=parts.size,
                files=tuple(_flat(file) for file in sorted(members, key=lambda file: file.name)),
            )
        )
    return sorted(variants, key=_preference)


def _preference(variant: RemoteVariant) -> tuple[int, int]:
    known = variant.label in BEST_QUANTISATIONS
    return (BEST_QUANTISATIONS.index(variant.label) if known else len(BEST_QUANTISATIONS), variant.size_bytes)


def _flat(file: RemoteFile) -> RemoteFile:
    """Without the directory that the repository keeps it in."""
    return replace(file, name=file.name.rpartition("/")[2])


def _by_chip(repository: Repository, named: Sequence[RemoteFile], files: Sequence[RemoteFile]) -> list[RemoteVariant]:
    companions = [
        file
        for file in files
        if file.name.lower().endswith(COMPANION_SUFFIXES)
        and (file.size_bytes or 0) <= SMALL_BYTES
        and "/" not in file.name
    ]
    parts = split_name(repository.name.rpartition("/")[2])
    variants: list[RemoteVariant] = []
    for file in named or files:
        if not file.name.lower().endswith((".rkllm", ".rknn")):
            continue
        chip = chip_of(file.name) or chip_of(repository.name + ".x")
        variants.append(
            RemoteVariant(
                label=file.name.rpartition("/")[2],
                name=parts.name,
                size=parts.size,
                chips=(chip,) if chip else (),
                files=(_flat(file), *companions),
            )
        )
    return sorted(variants, key=lambda variant: variant.size_bytes)


def _by_manifest(repository: Repository, files: Sequence[RemoteFile]) -> list[RemoteVariant]:
    variants: list[RemoteVariant] = []
    for path, text in sorted(repository.manifests.items()):
        try:
            document: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue  # a repository's own mistake; its other variants may be fine
        prefix = path.removesuffix(MANIFEST)
        chips = document.get("chips", ())
        platform = document.get("platform")
        own = _described_files(document, files, prefix)
        name, size = document.get("name"), document.get("size", "")
        if not own or not isinstance(name, str) or not isinstance(size, str) or not isinstance(chips, list | tuple):
            continue
        variants.append(
            RemoteVariant(
                label="/".join(str(part) for part in (platform, *chips[:1]) if part),
                name=name,
                size=size,
                platform=platform if isinstance(platform, str) else None,
                chips=tuple(str(chip) for chip in chips),
                files=own,
                document=document,
            )
        )
    return variants


def _described_files(document: Mapping[str, Any], files: Sequence[RemoteFile], prefix: str) -> tuple[RemoteFile, ...]:
    """The files of one described directory, with the hashes that its `model.toml` adds; empty where one is missing."""
    inside = {
        file.name.removeprefix(prefix): file
        for file in files
        if file.name.startswith(prefix) and file.name.rpartition("/")[2] != MANIFEST
    }
    listed = document.get("files")
    if not isinstance(listed, list) or not listed:
        direct = {name: file for name, file in inside.items() if "/" not in name}
        return tuple(replace(file, name=name) for name, file in direct.items())
    found: list[RemoteFile] = []
    for entry in listed:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or name not in inside:
            return ()
        file = inside[name]
        found.append(replace(file, name=name, sha256=file.sha256 or listed_sha256(entry.get("sha256"))))
    return tuple(found)
