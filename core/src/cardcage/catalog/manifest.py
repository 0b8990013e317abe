"""`model.toml`, schema 1 (docs/reference/model-toml.md): strict in what it knows, forward-compatible in what it does not."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Literal

import structlog
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from cardcage.config.tables import GenerationTable, describe
from cardcage_sdk.chat import Message, TextPart
from cardcage_sdk.errors import InvalidModelError
from cardcage_sdk.models import ModelArtifact, ModelFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.service import GenerationDefaults

__all__ = ["MANIFEST", "SCHEMA_VERSION", "Manifest", "parse_manifest", "read_manifest"]

MANIFEST = "model.toml"
SCHEMA_VERSION = 1
MAX_MANIFEST_BYTES = 1024 * 1024
MAX_TEMPLATE_BYTES = 1024 * 1024

log = structlog.get_logger("cardcage.catalog")


def _inside(name: str) -> str:
    """A file name that cannot lead out of its directory."""
    parts = PurePosixPath(name).parts
    if (
        not parts
        or name.startswith(("/", "~"))
        or "\\" in name
        or "\0" in name
        or any(part in {"..", "."} or not part for part in name.split("/"))
    ):
        raise ValueError(f"'{name}' must be a plain relative path inside the model directory")
    return name


def _word(text: str) -> str:
    if re.search(r"[\s/:@()]", text):
        raise ValueError(f"'{text}' must hold no white space and none of / : @ ( )")
    if not text.isprintable():
        raise ValueError(f"{text!a} holds characters that cannot be shown")
    return text


InsideName = Annotated[str, AfterValidator(_inside)]
Word = Annotated[str, Field(max_length=80), AfterValidator(_word)]
Words = Annotated[tuple[Word, ...], Field(strict=False)]


class _Base(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class FileTable(_Base):
    """One `[[files]]` entry."""

    name: InsideName
    size_bytes: Annotated[int, Field(ge=0)] | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")] | None = None


class MessageTable(_Base):
    """One `[[messages]]` entry: a sample turn."""

    role: Literal["system", "user", "assistant"]
    content: Annotated[str, Field(max_length=MAX_TEMPLATE_BYTES)]


class ManifestTable(_Base):
    """The top level; the platform's table and `default_params` are read apart."""

    name: Annotated[Word, Field(min_length=1)]
    size: Word = ""
    kind: Literal["chat", "embedding"] | None = None
    platform: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")] | None = None
    chips: Words = ()
    license: str | None = None
    source: str | None = None
    context_tokens: Annotated[int, Field(ge=1)] | None = None
    chat_template: Annotated[str, Field(max_length=MAX_TEMPLATE_BYTES)] | None = None
    chat_template_file: InsideName | None = None
    system: Annotated[str, Field(max_length=MAX_TEMPLATE_BYTES)] | None = None
    messages: Annotated[tuple[MessageTable, ...], Field(strict=False)] = ()
    tool_format: str | None = None
    reasoning_tags: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)] | None = None
    files: Annotated[tuple[FileTable, ...], Field(strict=False)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A `model.toml` that was read and checked; the files that it names were not looked at yet.

    Attributes:
        extra: The table that has the platform's name.
        defaults: `[default_params]`, with `system` and `messages`.
        default_params: The same table as it is written.
    """

    file: Path
    table: ManifestTable
    extra: Mapping[str, JsonValue]
    defaults: GenerationDefaults
    default_params: Mapping[str, JsonValue]

    def artifact(self, directory: Path) -> ModelArtifact:
        """The artifact, with every file checked to exist with its size.

        Hashes are not computed here: a load must not read gigabytes twice.

        Raises:
            InvalidModelError: A file is missing, unreadable or of another size.
        """
        table = self.table
        return ModelArtifact(
            path=directory,
            name=table.name,
            size=table.size,
            kind=table.kind,
            platform=table.platform,
            chips=table.chips,
            files=self._files(directory),
            context_tokens=table.context_tokens,
            chat_template=self._template(directory),
            tool_format=table.tool_format,
            reasoning_tags=(table.reasoning_tags[0], table.reasoning_tags[1]) if table.reasoning_tags else None,
            license=table.license,
            source=table.source,
            settings_digest=self._settings_digest(),
            extra=self.extra,
        )

    def _settings_digest(self) -> str | None:
        """Stands for what makes two models of the same files different."""
        table = self.table
        said = table.model_dump(
            mode="json", include={"context_tokens", "chat_template", "chat_template_file", "system", "messages"}
        )
        said = {key: value for key, value in said.items() if value}
        if self.default_params:
            said["default_params"] = dict(self.default_params)
        if not said:
            return None
        return hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()

    def _files(self, directory: Path) -> tuple[ModelFile, ...]:
        files: list[ModelFile] = []
        for entry in self.table.files:
            path = directory / entry.name
            if not path.is_file():
                raise InvalidModelError(f"{self.file}: file '{entry.name}' is missing", param="model_path")
            if not os.access(path, os.R_OK):
                raise InvalidModelError(f"{self.file}: file '{entry.name}' is not readable", param="model_path")
            size = path.stat().st_size
            if entry.size_bytes is not None and size != entry.size_bytes:
                raise InvalidModelError(
                    f"{self.file}: file '{entry.name}' has {size} bytes instead of {entry.size_bytes}; "
                    "it is incomplete or another one",
                    param="model_path",
                )
            files.append(
                ModelFile(name=entry.name, size_bytes=size, sha256=entry.sha256.lower() if entry.sha256 else None)
            )
        if not files:
            files = [
                ModelFile(name=path.name, size_bytes=path.stat().st_size)
                for path in sorted(directory.iterdir())
                if path.is_file() and path.name != MANIFEST and not path.name.startswith(".")
            ]
        return tuple(files)

    def _template(self, directory: Path) -> str | None:
        table = self.table
        if table.chat_template_file is None:
            return table.chat_template
        path = directory / table.chat_template_file
        try:
            if path.stat().st_size > MAX_TEMPLATE_BYTES:
                raise InvalidModelError(f"{self.file}: chat_template_file is larger than {MAX_TEMPLATE_BYTES} bytes")
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidModelError(
                f"{self.file}: chat_template_file '{table.chat_template_file}' cannot be read: {error}"
            ) from error


def read_manifest(file: Path) -> Manifest:
    """Read a `model.toml`. Unknown keys are logged as warnings and left alone: a newer writer may know more.

    Raises:
        InvalidModelError: One line that names the file, the key and what is wrong.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise InvalidModelError(f"{file}: cannot be read: {error.strerror}") from error
    return parse_manifest(content, file)


def parse_manifest(content: bytes, file: Path) -> Manifest:
    """The same for what is, or is to be, in that file; reads nothing."""
    document = _parse(content, file)
    schema = document.get("schema")
    if schema is None:
        raise InvalidModelError(f"{file}: key 'schema' is missing; this version writes schema = {SCHEMA_VERSION}")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise InvalidModelError(f"{file}: schema: must be a whole number from 1 (got {schema!r})")
    if schema > SCHEMA_VERSION:
        raise InvalidModelError(
            f"{file}: has schema {schema}, this version knows up to {SCHEMA_VERSION}: upgrade cardcage"
        )
    try:
        table = ManifestTable.model_validate(document)
    except ValidationError as error:
        raise InvalidModelError(f"{file}: {describe(error)}") from error
    if table.reasoning_tags is not None and len(table.reasoning_tags) != 2:
        raise InvalidModelError(f"{file}: reasoning_tags: must be an opening and a closing tag")
    if table.chat_template is not None and table.chat_template_file is not None:
        raise InvalidModelError(f"{file}: chat_template and chat_template_file exclude each other")
    extra = document.get(table.platform, {}) if table.platform else {}
    if not isinstance(extra, dict):
        raise InvalidModelError(f"{file}: '{table.platform}' must be a table, written [{table.platform}]")
    defaults = _defaults(file, document.get("default_params", {}))
    known = {*ManifestTable.model_fields, "schema", "default_params", table.platform}
    _warn_of_unknown(file, "", {key: value for key, value in document.items() if key not in known})
    for entry in document.get("files", []):
        _warn_of_unknown(file, "files.", {key: None for key in entry if key not in FileTable.model_fields})
    defaults = replace(
        defaults,
        system=table.system,
        messages=tuple(Message(role=message.role, content=(TextPart(message.content),)) for message in table.messages),
    )
    written = document.get("default_params", {})
    return Manifest(file=file, table=table, extra=extra, defaults=defaults, default_params=written)


def _parse(content: bytes, file: Path) -> dict[str, Any]:
    if len(content) > MAX_MANIFEST_BYTES:
        raise InvalidModelError(f"{file}: is larger than {MAX_MANIFEST_BYTES} bytes")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidModelError(f"{file}: {error}") from error


def _defaults(file: Path, written: object) -> GenerationDefaults:
    if not isinstance(written, dict):
        raise InvalidModelError(f"{file}: 'default_params' must be a table, written [default_params]")
    known = {key: value for key, value in written.items() if key in GenerationTable.model_fields}
    _warn_of_unknown(file, "default_params.", {key: None for key in written if key not in known})
    try:
        return GenerationTable.model_validate(known).to_defaults()
    except ValidationError as error:
        raise InvalidModelError(f"{file}: default_params.{describe(error)}") from error


def _warn_of_unknown(file: Path, where: str, unknown: Mapping[str, object]) -> None:
    for key, value in unknown.items():
        # A table of another platform's name is how one directory serves two platforms.
        if not where and isinstance(value, dict):
            continue
        log.warning("unknown key in model.toml", file=str(file), key=f"{where}{key}")
