"""An Ollama registry: a manifest of layers, each a blob named by its sha256."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cardcage_sdk.errors import ModelNotFoundError, SourceUnavailableError
from cardcage_sdk.hookspecs import hookimpl
from cardcage_sdk.sources import Claim, ModelReference, RemoteFile, RemoteModel, RemoteVariant, Source
from cardcage_sources.http import endpoint_of, fetch_json, fetch_text, read_settings
from cardcage_sources.listing import listed_size

if TYPE_CHECKING:
    from cardcage_sdk.chat import JsonValue

__all__ = ["OllamaSource", "register_sources"]

DEFAULT_REGISTRY = "https://registry.ollama.ai"
MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"

_LAYER = "application/vnd.ollama.image."
_FILES = {
    "model": "model.gguf",
    "projector": "mmproj.gguf",
    "adapter": "adapter.gguf",
    "template": "template.gotmpl",
    "system": "system.txt",
    "params": "params.json",
    "license": "LICENSE",
    "messages": "messages.json",
}
"""Kinds of layers and the files that they become; a second layer of one kind gets a number."""

_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}")
_PARAMETERS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "repeat_penalty": "repeat_penalty",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "num_predict": "max_tokens",
    "num_ctx": "max_context_len",
    "stop": "stop",
}
"""Ollama's parameters and the keys of `default_params` that mean the same."""

MAX_PARAMETER_BYTES = 1 << 20


class OllamaSource(Source):
    """Models of an Ollama registry. Setting: `registry`, else `OLLAMA_REGISTRY`."""

    name = "ollama"
    display_name = "Ollama registry"
    hosts = ("registry.ollama.ai", "ollama.com", "www.ollama.com")

    def __init__(self) -> None:
        self._settings: Mapping[str, JsonValue] = {}

    def configure(self, settings: Mapping[str, JsonValue]) -> None:
        """See `Source.configure`."""
        self._settings = read_settings(self.name, settings, {"registry": str})

    def claims(self, reference: ModelReference) -> Claim:
        """A name without owner may be here; so may one on a host that no other source knows, which is a registry's form."""
        if reference.url:
            return Claim.NO
        if reference.host:
            return Claim.CERTAIN if reference.source in {None, self.name} else Claim.NO
        return Claim.POSSIBLE if reference.owner in {"", "library"} else Claim.NO

    async def resolve(self, reference: ModelReference) -> RemoteModel:
        """See `Source.resolve`."""
        owner, tag = reference.owner or "library", reference.tag or "latest"
        for part in (owner, reference.name, tag):
            if not _PART.fullmatch(part):
                raise ModelNotFoundError(reference.text, message=f"'{reference.text}' is no name of an Ollama registry")
        base = f"{self._registry(reference)}/v2/{owner}/{reference.name}"
        manifest = await fetch_json(
            f"{base}/manifests/{tag}", source=self.name, model=reference.text, headers={"accept": MANIFEST_TYPE}
        )
        files = self._files(manifest, base)
        document: dict[str, JsonValue] = {}
        small = {file.name: file for file in files if (file.size_bytes or 0) <= MAX_PARAMETER_BYTES}
        if (parameters := small.get(_FILES["params"])) is not None:
            document["default_params"] = await self._parameters(parameters)
        if (system := small.get(_FILES["system"])) is not None:
            document["system"] = await self._text(system)
        if (messages := small.get(_FILES["messages"])) is not None:
            document["messages"] = await self._messages(messages)
        named = reference.name if owner == "library" else f"{owner}-{reference.name}"
        variant = RemoteVariant(
            name=named.lower(), size="" if tag == "latest" else tag.lower(), files=files, document=document
        )
        host = f"{reference.host}/" if reference.host and reference.host not in self.hosts else ""
        return RemoteModel(source=self.name, reference=f"{host}{owner}/{reference.name}:{tag}", variants=(variant,))

    def _registry(self, reference: ModelReference) -> str:
        if reference.host and reference.host not in self.hosts:
            # A registry on this machine is a development one, and has no certificate.
            name = reference.host.partition(":")[0]
            scheme = "http" if name in {"localhost", "127.0.0.1"} else "https"
            return f"{scheme}://{reference.host}"
        return endpoint_of(self._settings.get("registry"), "OLLAMA_REGISTRY", DEFAULT_REGISTRY)

    def _files(self, manifest: Any, base: str) -> tuple[RemoteFile, ...]:
        layers = manifest.get("layers") if isinstance(manifest, dict) else None
        if not isinstance(layers, list) or not all(isinstance(layer, dict) for layer in layers):
            raise SourceUnavailableError(self.name, reason="the manifest has no layers")
        found: list[RemoteFile] = []
        counts: dict[str, int] = {}
        for layer in layers:
            media, digest, size = (layer.get(key) for key in ("mediaType", "digest", "size"))
            kind = str(media).removeprefix(_LAYER)
            match = _DIGEST.fullmatch(str(digest))
            if not str(media).startswith(_LAYER) or kind not in _FILES:
                continue
            if match is None or listed_size(size) is None:
                raise SourceUnavailableError(self.name, reason="the manifest has a layer without digest or size")
            counts[kind] = counts.get(kind, 0) + 1
            stem, dot, suffix = _FILES[kind].partition(".")
            name = _FILES[kind] if counts[kind] == 1 else f"{stem}-{counts[kind]}{dot}{suffix}"
            found.append(RemoteFile(name=name, url=f"{base}/blobs/{digest}", size_bytes=size, sha256=match[1]))
        if "model" not in counts:
            raise ModelNotFoundError(base, message="The manifest names no weights; it is no model to run here")
        return tuple(found)

    async def _text(self, file: RemoteFile) -> str:
        return await fetch_text(file.url, source=self.name, model=file.name, limit_bytes=MAX_PARAMETER_BYTES)

    async def _messages(self, file: RemoteFile) -> list[dict[str, JsonValue]]:
        """Sample turns; those of other roles, or of more than text, have no place in `model.toml`."""
        try:
            written = json.loads(await self._text(file))
        except ValueError as error:
            raise SourceUnavailableError(self.name, reason="the model's messages are no JSON") from error
        found = [item for item in written if isinstance(item, dict)] if isinstance(written, list) else []
        return [
            {"role": item["role"], "content": item["content"]}
            for item in found
            if item.get("role") in {"system", "user", "assistant"} and isinstance(item.get("content"), str)
        ]

    async def _parameters(self, file: RemoteFile) -> dict[str, JsonValue]:
        text = await self._text(file)
        try:
            written = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SourceUnavailableError(self.name, reason="the model's parameters are no JSON") from error
        if not isinstance(written, dict):
            return {}
        wanted = {_PARAMETERS[key]: value for key, value in written.items() if key in _PARAMETERS}
        # Ollama's "no bound" is what silence means here.
        return {key: value for key, value in wanted.items() if not (key == "max_tokens" and value in {-1, -2})}


@hookimpl
def register_sources() -> Sequence[type[Source]]:
    """Declare this source."""
    return [OllamaSource]
