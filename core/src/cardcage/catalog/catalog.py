"""The model store, and any other model directory or file."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cardcage.catalog.manifest import MANIFEST, Manifest, read_manifest
from cardcage.catalog.resolver import matching_artifacts
from cardcage.names import default_model_id
from cardcage_sdk.errors import InvalidModelError, InvalidRequestError, ModelNotFoundError
from cardcage_sdk.models import ModelArtifact, ModelFile
from cardcage_sdk.service import GenerationDefaults

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cardcage.catalog.resolver import SourceNaming

__all__ = ["Catalog", "CatalogProblem"]

STORE_DEPTH = 3
"""`<platform>/<chip>/<name-size>` below the store; a shallower directory counts as a model where it has a `model.toml`."""

MAX_FILES = 4096
"""Files of a model directory without `model.toml`; more is surely not a model directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogProblem:
    """A directory of the store that cannot be used, and why."""

    path: Path
    reason: str


class Catalog:
    """Reads the store anew at each call, so that a model that was just put there is found. Thread-safe: it holds no models.

    No name of a client is ever joined to a path: names are compared with what the store's own directories say.
    """

    def __init__(self, store: Path, sources: Mapping[str, SourceNaming] | None = None) -> None:
        """Look at nothing yet.

        Args:
            store: The model store; it need not exist.
            sources: See `learn`.
        """
        self.store = store
        self._sources = sources

    def learn(self, sources: Mapping[str, SourceNaming]) -> None:
        """Take the sources by id, so that a model is also found by the name that it was fetched by. Call it at start."""
        self._sources = sources

    def artifact(self, path: Path) -> ModelArtifact:
        """Read one model: a directory with `model.toml`, a directory without one, or a single file.

        Raises:
            InvalidModelError: It does not exist, is not readable, is incomplete, or its `model.toml` is wrong.
        """
        place = Path(os.path.abspath(path))
        try:
            if place.is_file():
                return ModelArtifact(path=place, name=_name_of(place.stem), files=(_file(place, place.name),))
            if not place.is_dir():
                raise InvalidModelError(f"There is no model at '{path}'", param="model_path")
            manifest = _manifest(place)
            if manifest is not None:
                return manifest.artifact(place)
            files = tuple(_file(file, file.relative_to(place).as_posix()) for file in _walk(place))
        except OSError as error:
            raise InvalidModelError(f"'{path}' cannot be read: {error.strerror}", param="model_path") from error
        if not files:
            raise InvalidModelError(f"'{path}' holds no files", param="model_path")
        if len(files) > MAX_FILES:
            raise InvalidModelError(
                f"'{path}' has no {MANIFEST} and more than {MAX_FILES} files; is it a model directory?",
                param="model_path",
            )
        return ModelArtifact(path=place, name=_name_of(place.name), files=files)

    def defaults(self, artifact: ModelArtifact) -> GenerationDefaults:
        """Generation defaults that the model's `model.toml` gives; all silent where it gives none.

        Raises:
            InvalidModelError: The `model.toml` was broken meanwhile.
        """
        manifest = _manifest(artifact.path) if artifact.path.is_dir() else None
        return manifest.defaults if manifest is not None else GenerationDefaults()

    def find(self, name: str, *, platform: str | None = None, chip: str | None = None) -> ModelArtifact:
        """Look a model of the store up.

        Args:
            name: Any form that `cardcage.catalog.resolver` knows, or the directory's own name, as `qwen3-4b`. Upper and
                lower case are one.
            platform: Only variants of this platform.
            chip: Only variants for this chip.

        Raises:
            ModelNotFoundError: None has this name, or several have; then the message names them.
            InvalidModelError: The one that has it is incomplete.
        """
        artifacts, problems = self.scan()
        candidates = [
            artifact
            for artifact in artifacts
            if platform in {None, artifact.platform} and (chip is None or chip in artifact.chips)
        ]
        try:
            matches = matching_artifacts(name, candidates, self._sources)
        except InvalidRequestError as error:
            raise ModelNotFoundError(name, message=error.message) from error
        if len(matches) == 1:
            return matches[0]
        if matches:
            ids = ", ".join(default_model_id(artifact) for artifact in matches)
            raise ModelNotFoundError(name, message=f"'{name}' is the name of several models: {ids}; name one of these")
        for problem in problems:
            if problem.path.name.casefold() == name.strip().casefold().replace(":", "-"):
                raise InvalidModelError(problem.reason, param="model")
        raise ModelNotFoundError(name)

    def entries(self) -> list[ModelArtifact]:
        """The usable models of the store, by path."""
        return self.scan()[0]

    def scan(self) -> tuple[list[ModelArtifact], list[CatalogProblem]]:
        """The usable models of the store and the directories that cannot be used."""
        artifacts: list[ModelArtifact] = []
        problems: list[CatalogProblem] = []
        for directory in self._model_directories():
            try:
                artifacts.append(self.artifact(directory))
            except InvalidModelError as error:
                problems.append(CatalogProblem(path=directory, reason=error.message))
        return artifacts, problems

    def _model_directories(self) -> Iterator[Path]:
        def below(directory: Path, depth: int) -> Iterator[Path]:
            try:
                children = sorted(directory.iterdir())
            except OSError:
                return  # not readable for this user: nothing to offer here, and `doctor` says so of the store itself
            for child in children:
                # A name with a dot in front is a download that is not complete yet.
                if child.name.startswith("."):
                    continue
                try:
                    is_directory, has_manifest = child.is_dir(), (child / MANIFEST).is_file()
                except OSError:
                    # Closed to this user, or on a disk that is gone: a problem where a model is expected, else as above.
                    is_directory, has_manifest = depth == STORE_DEPTH, False
                if not is_directory:
                    continue
                if depth == STORE_DEPTH or has_manifest:
                    yield child
                else:
                    yield from below(child, depth + 1)

        yield from below(self.store, 1)


def _manifest(directory: Path) -> Manifest | None:
    file = directory / MANIFEST
    return read_manifest(file) if file.is_file() else None


def _file(path: Path, name: str) -> ModelFile:
    if not os.access(path, os.R_OK):
        raise InvalidModelError(f"'{path}' is not readable", param="model_path")
    return ModelFile(name=name, size_bytes=path.stat().st_size)


def _walk(directory: Path) -> list[Path]:
    found: list[Path] = []
    for folder, folders, files in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found.extend(Path(folder) / name for name in sorted(files) if not name.startswith("."))
        if len(found) > MAX_FILES:
            break
    return found


def _name_of(text: str) -> str:
    """A model's name from a file name: no white space, no character that an id must not hold."""
    return re.sub(r"[\s/:@]+", "-", text.strip()) or "model"
