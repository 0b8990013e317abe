"""Fixtures: small models made here, the real MiniLM, and engines in real worker processes."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cardcage_platform_onnx.plugin import OnnxPlatform
from cardcage_sdk.models import ModelArtifact, ModelFile
from cardcage_sdk.testing.launch import LaunchedWorker, launch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# `tiny_models` lies beside these tests; importlib mode puts no folder on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))

PLATFORM = OnnxPlatform()
MINILM = Path("onnx/cpu/all-minilm-l6-v2-22m")
SMOLLM = Path("onnx/cpu/smollm2-onnx-135m")


def store() -> Path:
    return Path(os.environ.get("CARDCAGE_TEST_STORE") or Path(__file__).parents[3] / ".cardcage" / "models")


def artifact_of(path: Path, /, **fields: Any) -> ModelArtifact:
    """A model directory as the catalog describes it, with its `[onnx]` table."""
    found = sorted(file for file in path.rglob("*") if file.is_file())
    files = tuple(ModelFile(name=f.relative_to(path).as_posix(), size_bytes=f.stat().st_size) for f in found)
    manifest = path / "model.toml"
    extra = tomllib.loads(manifest.read_text()).get("onnx", {}) if manifest.is_file() else {}
    return ModelArtifact(**{"path": path, "name": path.name, "files": files, "extra": extra, **fields})


class Vectors:
    """The vectors of a result."""

    def __init__(self, result: Any) -> None:
        self.tokens = result.prompt_tokens
        self.rows = np.frombuffer(result.vectors, "<f4").reshape(-1, result.dimensions)


class Kit:
    """For test modules, which cannot import a conftest."""

    platform = PLATFORM
    artifact_of = staticmethod(artifact_of)
    vectors = Vectors

    @staticmethod
    def launch(path: Path, **kwargs: Any) -> Any:
        """A worker with a model of this platform."""
        fields = kwargs.pop("fields", {})
        return launch(PLATFORM, artifact_of(path, **fields), **kwargs)


@pytest.fixture(scope="session")
def kit() -> type[Kit]:
    return Kit


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The real embedding model."""
    path = store() / MINILM
    if not (path / "model.toml").is_file():
        reason = f"MiniLM is not in {store()}: run `make minilm`"
        # A check that silently does not run in CI is worth nothing.
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    return path


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The chat model, which takes PyTorch and minutes to make and is therefore never there by itself."""
    path = store() / SMOLLM
    if not (path / "model.toml").is_file():
        pytest.skip(f"the onnxruntime-genai model is not in {store()}: run `make genai` (heavy)")
    return path


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mean-pooled encoder of 8 dimensions whose vectors can be computed by hand."""
    import tiny_models

    return tiny_models.write_encoder(tmp_path_factory.mktemp("tiny") / "tiny-encoder")


@pytest.fixture(scope="session")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder that scores by the words that query and document share."""
    import tiny_models

    return tiny_models.write_reranker(tmp_path_factory.mktemp("tiny") / "tiny-reranker")


@pytest.fixture
async def tiny_worker(tiny: Path, kit: type[Kit]) -> AsyncIterator[LaunchedWorker]:
    async with kit.launch(tiny) as worker:
        yield worker
