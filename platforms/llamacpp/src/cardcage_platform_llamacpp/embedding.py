"""Turning texts into vectors, many texts of many requests in one call. Worker process only."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from cardcage_platform_llamacpp.binding import Batch
from cardcage_sdk.embeddings import EmbedResult
from cardcage_sdk.errors import EngineFailedError, InvalidRequestError

if TYPE_CHECKING:
    from cardcage_platform_llamacpp.binding import Context, Floats, Model
    from cardcage_platform_llamacpp.chunks import ChunkPacer
    from cardcage_sdk.embeddings import EmbedRequest
    from cardcage_sdk.engine import BatchOutput

__all__ = ["EmbeddingLoop"]


@dataclass(slots=True, eq=False)
class _Job:
    request: EmbedRequest
    inputs: list[list[int]]
    vectors: list[Floats] = field(default_factory=list)


class EmbeddingLoop:
    """Requests whose texts are being embedded, first come, first served."""

    def __init__(self, context: Context, model: Model, *, sequences: int, batch_tokens: int, pacer: ChunkPacer) -> None:
        self._context = context
        self._model = model
        self._sequences = sequences
        self._batch = Batch(batch_tokens)
        self._pacer = pacer
        self._jobs: list[_Job] = []

    def add(self, request: EmbedRequest, inputs: list[list[int]]) -> None:
        """Take a request with its tokenized inputs; each fits into one batch.

        Raises:
            InvalidRequestError: More dimensions than the model has.
        """
        width = self._model.embedding_width
        if request.dimensions is not None and not 1 <= request.dimensions <= width:
            raise InvalidRequestError(f"dimensions must be between 1 and {width} for this model", param="dimensions")
        self._jobs.append(_Job(request, inputs))

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        self._jobs = [job for job in self._jobs if job.request.id != request_id]

    def step(self) -> list[tuple[str, BatchOutput]]:
        """Embed as many texts as one batch holds and the time of a step allows, but one at least."""
        self._batch.clear()
        room = self._pacer.rows(shared=False)
        placed: list[_Job] = []
        for job in self._jobs:
            done = len(job.vectors)
            for tokens in job.inputs[done:]:
                if placed and (len(placed) == self._sequences or len(self._batch) + len(tokens) > room):
                    break
                self._add(tokens, len(placed))
                placed.append(job)
            else:
                continue
            break
        if placed:
            self._compute(placed)
        outputs: list[tuple[str, BatchOutput]] = []
        for job in list(self._jobs):
            if len(job.vectors) == len(job.inputs):
                self._jobs.remove(job)
                outputs.append((job.request.id, _result(job, self._model.embedding_width)))
        return outputs

    def _add(self, tokens: list[int], sequence: int) -> None:
        self._batch.add(np.asarray(tokens, dtype=np.int32), sequence=sequence, position=0, output=True)
        # A pooled vector is made of all rows, so all of them are outputs.
        end = len(self._batch)
        self._batch.outputs[end - len(tokens) : end] = 1

    def _compute(self, placed: list[_Job]) -> None:
        self._context.clear()
        # Encoders without a cache (BERT) only encode; a decoder that embeds decodes.
        encodes = self._model.has_encoder and not self._model.has_decoder
        started = time.monotonic()
        code = self._context.encode(self._batch) if encodes else self._context.decode(self._batch)
        self._pacer.measured(len(self._batch), time.monotonic() - started)
        if code != 0:
            self._jobs.clear()
            raise EngineFailedError(f"llama.cpp could not embed a batch of {len(self._batch)} tokens (code {code})")
        for sequence, job in enumerate(placed):
            vector = self._context.pooled_embedding(sequence)
            if vector is None or not np.isfinite(vector).all():
                self._jobs.clear()
                raise EngineFailedError("llama.cpp returned no finite vector")
            job.vectors.append(vector)


def _result(job: _Job, width: int) -> EmbedResult:
    vectors = np.stack(job.vectors) if job.vectors else np.zeros((0, width), dtype=np.float32)
    if job.request.dimensions is not None:
        vectors = vectors[:, : job.request.dimensions]
    if job.request.normalize or job.request.dimensions is not None:
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    return EmbedResult(
        vectors=np.ascontiguousarray(vectors, dtype="<f4").tobytes(),
        dimensions=vectors.shape[1],
        prompt_tokens=tuple(len(tokens) for tokens in job.inputs),
    )
