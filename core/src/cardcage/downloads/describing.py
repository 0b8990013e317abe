"""What is known of the store's models without loading them: their files, and what their platforms read of these."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING

import structlog

from cardcage.downloads.machine import claimants
from cardcage.names import default_model_id
from cardcage_sdk.capabilities import Task
from cardcage_sdk.library import ModelDescription, StoredModel
from cardcage_sdk.models import ModelFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage.catalog import Catalog
    from cardcage_sdk.capabilities import Capabilities
    from cardcage_sdk.models import ModelArtifact
    from cardcage_sdk.platform import Platform

__all__ = ["describe", "stored_model"]

log = structlog.get_logger("cardcage.downloads")


def stored_model(artifact: ModelArtifact) -> StoredModel:
    """A model of the store as dialects see it."""
    listed: list[object] = [[file.name, file.size_bytes, file.sha256] for file in artifact.files]
    if artifact.settings_digest is not None:
        listed.append(artifact.settings_digest)
    return StoredModel(
        id=default_model_id(artifact),
        name=f"{artifact.name}:{artifact.size}" if artifact.size else artifact.name,
        path=str(artifact.path),
        size_bytes=artifact.size_bytes,
        kind=artifact.kind,
        platform=artifact.platform,
        chips=artifact.chips,
        license=artifact.license,
        source=artifact.source,
        modified_at=artifact.path.stat().st_mtime,
        digest=hashlib.sha256(json.dumps(listed).encode()).hexdigest(),
        files=artifact.files,
    )


def describe(artifact: ModelArtifact, catalog: Catalog, platforms: Mapping[str, Platform]) -> ModelDescription:
    """Read what its platform can tell. Reads files; call it in a thread.

    Raises:
        InvalidModelError: The `model.toml` was broken meanwhile.
    """
    platform = _platform_of(artifact, platforms)
    facts = ModelFacts() if platform is None else _facts(platform, artifact)
    return ModelDescription(
        model=stored_model(artifact),
        facts=facts,
        capabilities=None if platform is None else facts.capabilities or _declared(platform, artifact.kind),
        defaults=catalog.defaults(artifact),
    )


def _platform_of(artifact: ModelArtifact, platforms: Mapping[str, Platform]) -> Platform | None:
    if artifact.platform is not None:
        return platforms.get(artifact.platform)
    claiming = claimants(platforms, artifact)
    return platforms[claiming[0]] if claiming else None


def _facts(platform: Platform, artifact: ModelArtifact) -> ModelFacts:
    try:
        return platform.describe(artifact)
    except Exception as error:  # noqa: BLE001 - named boundary: a plugin that fails on a file knows nothing of it
        log.warning("description failed", platform=platform.name, path=str(artifact.path), error=str(error))
        return ModelFacts()


def _declared(platform: Platform, kind: str | None) -> Capabilities:
    """What the platform declares, less what a model of this kind does not do."""
    other = {"chat": {Task.EMBED, Task.RERANK}, "embedding": {Task.CHAT}}.get(kind or "", set())
    kept = platform.capabilities.tasks - other
    return dataclasses.replace(platform.capabilities, tasks=kept or platform.capabilities.tasks)
