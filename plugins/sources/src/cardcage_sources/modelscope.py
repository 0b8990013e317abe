"""ModelScope, over its public HTTP interface."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from cardcage_sdk.errors import ModelNotFoundError, SourceUnavailableError
from cardcage_sdk.hookspecs import hookimpl
from cardcage_sdk.sources import Claim, ModelReference, RemoteFile, RemoteModel, Source
from cardcage_sources.http import endpoint_of, fetch_json, fetch_text, read_settings
from cardcage_sources.listing import Repository, listed_sha256, listed_size, manifest_names, variants_of

if TYPE_CHECKING:
    from cardcage_sdk.chat import JsonValue

__all__ = ["ModelScopeSource", "register_sources"]

DEFAULT_ENDPOINT = "https://www.modelscope.cn"
REVISION = "master"


class ModelScopeSource(Source):
    """Repositories of ModelScope.

    Settings: `endpoint` (else `MODELSCOPE_ENDPOINT`), `token` (else `MODELSCOPE_API_TOKEN`).
    """

    name = "modelscope"
    display_name = "ModelScope"
    hosts = ("modelscope.cn", "www.modelscope.cn", "modelscope.ai", "www.modelscope.ai")

    def __init__(self) -> None:
        self._settings: Mapping[str, JsonValue] = {}

    def configure(self, settings: Mapping[str, JsonValue]) -> None:
        """See `Source.configure`."""
        self._settings = read_settings(self.name, settings, {"endpoint": str, "token": str})

    def claims(self, reference: ModelReference) -> Claim:
        """`Org/Repo` may be here as well as on another hub."""
        if reference.host:
            return Claim.CERTAIN if reference.host in self.hosts else Claim.NO
        return Claim.POSSIBLE if reference.owner and not reference.url else Claim.NO

    async def resolve(self, reference: ModelReference) -> RemoteModel:
        """See `Source.resolve`."""
        if not reference.owner:
            raise ModelNotFoundError(reference.text, message=f"Names of source '{self.name}' are owner/name")
        name = f"{reference.owner}/{reference.name}"
        answer = await fetch_json(
            f"{self._endpoint()}/api/v1/models/{quote(name)}/repo/files",
            source=self.name,
            model=name,
            headers=self._headers(),
            params={"Revision": REVISION, "Recursive": "true"},
        )
        files = [self._file(name, entry) for entry in self._entries(answer, name)]
        manifests = {
            wanted: await fetch_text(
                self._address(name, wanted),
                source=self.name,
                model=name,
                headers=self._headers(),
                limit_bytes=1 << 20,
            )
            for wanted in manifest_names(files)
        }
        variants = variants_of(Repository(name=name, files=files, manifests=manifests), tag=reference.tag)
        return RemoteModel(source=self.name, reference=name, variants=variants)

    def _entries(self, answer: Any, name: str) -> list[dict[str, Any]]:
        # Failures also come as 200 with a code inside.
        code = answer.get("Code") if isinstance(answer, dict) else None
        if code == 404 or (isinstance(answer, dict) and "not exist" in str(answer.get("Message", "")).lower()):
            raise ModelNotFoundError(name, message=f"Source '{self.name}' has no '{name}'")
        data = answer.get("Data") if isinstance(answer, dict) else None
        files = data.get("Files") if isinstance(data, dict) else None
        if code != 200 or not isinstance(files, list):
            raise SourceUnavailableError(self.name, reason=f"its list of files has code {code}")
        return [entry for entry in files if isinstance(entry, dict) and entry.get("Type") != "tree"]

    def _file(self, repository: str, entry: Mapping[str, Any]) -> RemoteFile:
        path = str(entry.get("Path") or entry.get("Name") or "")
        return RemoteFile(
            name=path,
            url=self._address(repository, path),
            size_bytes=listed_size(entry.get("Size")),
            sha256=listed_sha256(entry.get("Sha256")),
            headers=self._headers(),
        )

    def _address(self, repository: str, path: str) -> str:
        query = urlencode({"Revision": REVISION, "FilePath": path})
        return f"{self._endpoint()}/api/v1/models/{quote(repository)}/repo?{query}"

    def _endpoint(self) -> str:
        return endpoint_of(self._settings.get("endpoint"), "MODELSCOPE_ENDPOINT", DEFAULT_ENDPOINT)

    def _headers(self) -> dict[str, str]:
        token = self._settings.get("token") or os.environ.get("MODELSCOPE_API_TOKEN")
        return {"authorization": f"Bearer {token}"} if token else {}


@hookimpl
def register_sources() -> Sequence[type[Source]]:
    """Declare this source."""
    return [ModelScopeSource]
