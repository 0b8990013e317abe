"""The sdk's conformance suite on an embedding model, a reranker and, where it was made, a chat model."""

from __future__ import annotations

import pytest

from cardcage_platform_onnx.plugin import OnnxPlatform
from cardcage_sdk.testing import PlatformSuite


@pytest.mark.model
class TestEmbeddings(PlatformSuite):
    platform = OnnxPlatform

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, minilm, kit):
        return kit.artifact_of(minilm)


class TestRerank(PlatformSuite):
    platform = OnnxPlatform

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, reranker, kit):
        return kit.artifact_of(reranker)


@pytest.mark.heavy
@pytest.mark.timeout(300)
class TestChat(PlatformSuite):
    platform = OnnxPlatform

    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, smollm, kit):
        return kit.artifact_of(smollm)
