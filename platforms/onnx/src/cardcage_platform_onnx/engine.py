"""The engine that a worker constructs: it looks at the model directory and hands everything on to the engine for that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardcage_platform_onnx.model_files import find_model
from cardcage_platform_onnx.settings import merge_settings
from cardcage_sdk.engine import BatchEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardcage_sdk.engine import BatchOutput, Request
    from cardcage_sdk.events import Accepted
    from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelInfo

__all__ = ["OnnxEngine"]


class OnnxEngine(BatchEngine):
    """A genai directory becomes a chat engine, everything else an encoder. See `BatchEngine` for who calls what, when."""

    def __init__(self) -> None:
        self._inner: BatchEngine | None = None

    @property
    def _engine(self) -> BatchEngine:
        assert self._inner is not None, "load comes first"
        return self._inner

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Choose by what the directory holds; only the runtime of that choice is imported."""
        files = find_model(artifact)
        settings = merge_settings(artifact.extra, options.options)
        if files.kind == "genai":
            from cardcage_platform_onnx.genai import GenaiEngine

            self._inner = GenaiEngine(files, settings)
        else:
            from cardcage_platform_onnx.encoder import EncoderEngine

            self._inner = EncoderEngine(files, settings)
        return self._inner.load(artifact, options)

    def prepare(self, request: Request) -> Accepted:
        """Hand on."""
        return self._engine.prepare(request)

    def add(self, request: Request) -> None:
        """Hand on."""
        self._engine.add(request)

    def step(self) -> Sequence[tuple[str, BatchOutput]]:
        """Hand on."""
        return self._engine.step()

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Hand on."""
        self._engine.cancel(request_id, choice)

    def resize(self, slots: int) -> int:
        """Hand on."""
        return self._engine.resize(slots)

    def reasoning_ended(self, request_id: str, choice: int) -> None:
        """Hand on."""
        self._engine.reasoning_ended(request_id, choice)

    def set_cpu_threads(self, threads: int) -> None:
        """Hand on."""
        self._engine.set_cpu_threads(threads)

    def close(self) -> None:
        """Hand on, where a load came so far."""
        if self._inner is not None:
            self._inner.close()
