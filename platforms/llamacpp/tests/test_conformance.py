"""The sdk's conformance suite on the real chat model, and on an embedding model of random weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cardcage_platform_llamacpp.plugin import LlamaCppPlatform
from cardcage_sdk.models import LoadOptions
from cardcage_sdk.testing.platform_suite import PlatformSuite

if TYPE_CHECKING:
    from pathlib import Path

    from cardcage_sdk.models import ModelArtifact


@pytest.mark.model
class TestChat(PlatformSuite):
    """SmolLM2 with two of four slots."""

    platform = LlamaCppPlatform
    load_options = LoadOptions(slots=2, max_slots=4, context_tokens=1024, cpu_threads=2)

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, kit, model_path: Path) -> ModelArtifact:
        return kit.artifact_of(model_path, kind="chat")


class TestEmbedding(PlatformSuite):
    """A BERT without a cache."""

    platform = LlamaCppPlatform
    load_options = LoadOptions(slots=1, max_slots=1, cpu_threads=2)

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, kit, bert_path: Path) -> ModelArtifact:
        return kit.artifact_of(bert_path, context_tokens=None, kind="embedding")
