"""One file at an address. A `sha256` may follow as a fragment: `https://host/model.gguf#sha256=...`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

from cardcage_sdk.errors import InvalidRequestError
from cardcage_sdk.hookspecs import hookimpl
from cardcage_sdk.sources import Claim, ModelReference, RemoteFile, RemoteModel, RemoteVariant, Source
from cardcage_sources.naming import quantisation_of, split_name

__all__ = ["UrlSource", "register_sources"]

_HASH = re.compile(r"sha256=([0-9a-fA-F]{64})")


class UrlSource(Source):
    """A file at a plain address: `https:`, `http:`, or `file:` where the server may read it."""

    name = "url"
    display_name = "Address"

    def claims(self, reference: ModelReference) -> Claim:
        """An address is nobody else's."""
        return Claim.CERTAIN if reference.url else Claim.NO

    async def resolve(self, reference: ModelReference) -> RemoteModel:
        """The size is told by the first answer; nothing is asked before."""
        parts = urlsplit(reference.url)
        file_name = unquote(parts.path.rpartition("/")[2]).lstrip(".")
        if not file_name:
            raise InvalidRequestError("The address must end with a file's name", param="model")
        sha256 = _HASH.fullmatch(parts.fragment)
        if parts.fragment and sha256 is None:
            raise InvalidRequestError("After '#' only sha256=<64 hex digits> has a meaning here", param="model")
        quantisation = quantisation_of(file_name)
        named = split_name(file_name.rpartition(".")[0] or file_name, quantisation=quantisation)
        address = parts._replace(fragment="").geturl()
        variant = RemoteVariant(
            name=named.name,
            size=named.size,
            files=(RemoteFile(name=file_name, url=address, sha256=sha256[1].lower() if sha256 else None),),
        )
        # Keys in an address are for the request, not for the store.
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
        return RemoteModel(source=self.name, reference=shown, variants=(variant,))


@hookimpl
def register_sources() -> Sequence[type[Source]]:
    """Declare this source."""
    return [UrlSource]
