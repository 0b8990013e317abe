"""Hugging Face. `huggingface_hub` lists and knows where tokens are; it fetches no byte of a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from cardcage_sdk.errors import ModelNotFoundError, SourceRefusedError, SourceUnavailableError
from cardcage_sdk.hookspecs import hookimpl
from cardcage_sdk.sources import Claim, ModelReference, Offer, RemoteFile, RemoteModel, Source
from cardcage_sources.http import REQUEST_SECONDS, endpoint_of, fetch_text, read_settings
from cardcage_sources.listing import Repository, listed_sha256, listed_size, manifest_names, variants_of
from cardcage_sources.naming import split_name

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo, RepoSibling

    from cardcage_sdk.chat import JsonValue

__all__ = ["HuggingFaceSource", "register_sources"]

DEFAULT_ENDPOINT = "https://huggingface.co"
MAX_OFFERS = 200

UNKNOWN_FORM = "its answer has an unknown form"
_NOT_AS_KNOWN = (ValueError, LookupError, TypeError, AttributeError)
"""What the hub's own library raises where the answer is not what it knows: a page of HTML, half an answer, other types."""


class HuggingFaceSource(Source):
    """Repositories of Hugging Face, or of a mirror that speaks its protocol.

    Settings: `endpoint` (else `HF_ENDPOINT`), `token` (else what the hub's own tools use), `owners` (whose models
    `cardcage list --online` shows).
    """

    name = "huggingface"
    display_name = "Hugging Face"
    hosts = ("huggingface.co", "hf.co", "www.huggingface.co")

    def __init__(self) -> None:
        self._settings: Mapping[str, JsonValue] = {}

    def configure(self, settings: Mapping[str, JsonValue]) -> None:
        """See `Source.configure`."""
        self._settings = read_settings(self.name, settings, {"endpoint": str, "token": str, "owners": list})

    def claims(self, reference: ModelReference) -> Claim:
        """`Org/Repo` may be here as well as on another hub."""
        if reference.host:
            return Claim.CERTAIN if reference.host in self.hosts else Claim.NO
        return Claim.POSSIBLE if reference.owner and not reference.url else Claim.NO

    async def resolve(self, reference: ModelReference) -> RemoteModel:
        """See `Source.resolve`."""
        repository_name = f"{reference.owner}/{reference.name}" if reference.owner else reference.name
        info = await asyncio.to_thread(self._model_info, repository_name)
        revision = info.sha or "main"
        try:
            files = [self._file(repository_name, revision, sibling) for sibling in info.siblings or []]
        except _NOT_AS_KNOWN as error:
            raise SourceUnavailableError(self.name, reason=UNKNOWN_FORM) from error
        manifests = {name: await self._text(repository_name, revision, name) for name in manifest_names(files)}
        repository = Repository(
            name=repository_name, files=files, manifests=manifests, license=_license_of(info.tags or [])
        )
        variants = variants_of(repository, tag=reference.tag)
        return RemoteModel(source=self.name, reference=repository_name, variants=variants)

    async def offers(self) -> Sequence[Offer]:
        """Models of the configured owners, newest first."""
        owners: Sequence[str] = self._settings.get("owners") or ()
        found: list[Offer] = []
        for owner in owners:
            found.extend(await asyncio.to_thread(self._models_of, owner))
        return found

    # --- the hub's own library; blocking -----------------------------------------------------------------------------

    def _endpoint(self) -> str:
        return endpoint_of(self._settings.get("endpoint"), "HF_ENDPOINT", DEFAULT_ENDPOINT)

    def _api(self) -> HfApi:
        from huggingface_hub import HfApi

        return HfApi(endpoint=self._endpoint(), token=self._settings.get("token"))

    def _token(self) -> str | None:
        from huggingface_hub import get_token

        configured = self._settings.get("token")
        return str(configured) if configured else get_token()

    def _model_info(self, name: str) -> ModelInfo:
        from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

        try:
            return self._api().model_info(name, files_metadata=True, timeout=REQUEST_SECONDS)
        except GatedRepoError as error:
            raise SourceRefusedError(
                self.name, reason=f"'{name}' asks to accept its terms: do so on its page, then give a token (HF_TOKEN)"
            ) from error
        except (RepositoryNotFoundError, HFValidationError) as error:
            raise ModelNotFoundError(name, message=f"Source '{self.name}' has no '{name}'") from error
        except Exception as error:  # named boundary: the library raises those of whichever HTTP client it was built on
            raise self._translated(error, name) from error

    def _models_of(self, owner: str) -> list[Offer]:
        try:
            models = list(self._api().list_models(author=owner, sort="created_at", limit=MAX_OFFERS))
        except Exception as error:  # named boundary: as above
            raise self._translated(error, owner) from error
        offers: list[Offer] = []
        for model in models:
            parts = split_name(model.id.rpartition("/")[2])
            shown = f"{parts.name}:{parts.size}" if parts.size else parts.name
            offers.append(Offer(reference=model.id, name=shown, license=_license_of(model.tags or [])))
        return offers

    def _translated(self, error: Exception, name: str) -> Exception:
        response: Any = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        if status in {401, 403}:
            return SourceRefusedError(self.name, reason=f"'{name}' was answered with {status}; it may need a token")
        if isinstance(status, int) and 400 <= status < 500 and status != 429:
            return ModelNotFoundError(name, message=f"Source '{self.name}' has no '{name}'")
        if isinstance(error, _NOT_AS_KNOWN) and status is None:
            return SourceUnavailableError(self.name, reason=UNKNOWN_FORM)
        if isinstance(error, (OSError, RuntimeError)) or status is not None or _is_transport(error):
            after = str(response.headers.get("retry-after", "")) if response is not None else ""
            return SourceUnavailableError(
                self.name,
                reason=str(error).splitlines()[0] if str(error) else type(error).__name__,
                retry_after_seconds=float(after) if after.isdecimal() else None,
            )
        return error

    # --- files -------------------------------------------------------------------------------------------------------

    def _file(self, repository: str, revision: str, sibling: RepoSibling) -> RemoteFile:
        return RemoteFile(
            name=sibling.rfilename,
            url=self._address(repository, revision, sibling.rfilename),
            size_bytes=listed_size(sibling.size),
            sha256=listed_sha256(sibling.lfs.sha256) if sibling.lfs is not None else None,
            headers=self._headers(),
        )

    def _address(self, repository: str, revision: str, name: str) -> str:
        return f"{self._endpoint()}/{quote(repository)}/resolve/{quote(revision, safe='')}/{quote(name)}"

    def _headers(self) -> dict[str, str]:
        token = self._token()
        return {"authorization": f"Bearer {token}"} if token else {}

    async def _text(self, repository: str, revision: str, name: str) -> str:
        url = self._address(repository, revision, name)
        return await fetch_text(url, source=self.name, model=repository, headers=self._headers(), limit_bytes=1 << 20)


def _is_transport(error: Exception) -> bool:
    return any(cls.__name__ in {"TransportError", "RequestException"} for cls in type(error).__mro__)


def _license_of(tags: Sequence[str]) -> str | None:
    return next((tag.removeprefix("license:") for tag in tags if str(tag).startswith("license:")), None)


@hookimpl
def register_sources() -> Sequence[type[Source]]:
    """Declare this source."""
    return [HuggingFaceSource]
