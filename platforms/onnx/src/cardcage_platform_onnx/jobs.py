"""Embedding and rerank requests on their way from texts to results. Everything on the worker's main thread."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from cardcage_platform_onnx.batching import Batcher, Item
from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
from cardcage_sdk.errors import CardcageError, EngineFailedError
from cardcage_sdk.events import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cardcage_platform_onnx.session import Matrix
    from cardcage_platform_onnx.tokenization import Encoded

__all__ = ["Job", "JobQueue", "Output", "Work"]

Work: TypeAlias = EmbedRequest | RerankRequest
Output: TypeAlias = tuple[str, EmbedResult | RerankResult | Failed]

WINDOW_TEXTS = 1024
"""Texts that wait tokenised. Enough to find neighbours of like length; the rest of a large request stays plain text."""

CHUNK_TEXTS = 128
"""Texts tokenised in one go: some milliseconds, so that no request of thousands holds up a step for others."""


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One request that runs.

    Attributes:
        request: As the client sent it.
        size: Inputs or documents.
        encoded: Texts that were tokenised at `prepare`, if they were.
        tokenised: How many of the texts have been handed to the batcher.
        open: How many have no vector or score yet.
        tokens: Tokens of each text.
        values: float32, shape (size, width); None before the first batch.
    """

    request: Work
    size: int
    encoded: list[Encoded] | None = None
    tokenised: int = 0
    open: int = field(init=False)
    tokens: list[int] = field(init=False)
    values: Matrix | None = None

    def __post_init__(self) -> None:
        """Nothing is done yet."""
        self.open = self.size
        self.tokens = [0] * self.size

    def put(self, index: int, row: Matrix) -> None:
        """Keep one text's vector or score."""
        if self.values is None:
            self.values = np.empty((self.size, len(row)), dtype=np.float32)
        self.values[index] = row
        self.open -= 1


class JobQueue:
    """Jobs and their waiting texts.

    Args:
        batcher: Decides what is computed together.
        encode: Tokenises the texts of a job from one place to another (exclusive); may raise errors of the tree.
    """

    def __init__(self, batcher: Batcher, encode: Callable[[Job, int, int], list[Encoded]]) -> None:
        self._batcher = batcher
        self._encode = encode
        self._jobs: dict[str, Job] = {}
        self._untokenised: deque[Job] = deque()

    def __len__(self) -> int:
        """Jobs that run."""
        return len(self._jobs)

    def job(self, request_id: str) -> Job:
        """One that runs."""
        return self._jobs[request_id]

    def add(self, job: Job) -> None:
        """Let a job run."""
        self._jobs[job.request.id] = job
        self._untokenised.append(job)

    def cancel(self, request_id: str) -> None:
        """Forget a job; an unknown one is ignored."""
        job = self._jobs.pop(request_id, None)
        if job is not None:
            self._batcher.drop(request_id)
            if job.tokenised < job.size:
                self._untokenised.remove(job)

    def fill(self) -> list[Output]:
        """Tokenise what fits into the window, a chunk of each job in turn; failures are the return value."""
        failed: list[Output] = []
        while self._untokenised and len(self._batcher) < WINDOW_TEXTS:
            job = self._untokenised.popleft()
            start = job.tokenised
            end = min(start + CHUNK_TEXTS, job.size)
            try:
                encoded = job.encoded if job.encoded is not None else self._encode(job, start, end)
            except CardcageError as error:
                job.tokenised = job.size
                self.cancel(job.request.id)
                failed.append((job.request.id, Failed(error=error)))
                continue
            end = start + len(encoded)
            for index, text in zip(range(start, end), encoded, strict=True):
                job.tokens[index] = len(text.ids)
                self._batcher.put(Item(request_id=job.request.id, index=index, ids=text.ids, types=text.types))
            job.tokenised = end
            job.encoded = None
            if job.tokenised < job.size:
                self._untokenised.append(job)
        return failed

    def take(self) -> list[Item]:
        """The next batch."""
        return self._batcher.take()

    def settle(
        self,
        batch: Sequence[Item],
        rows: Matrix,
        bad: dict[int, str],
        finish: Callable[[Job], EmbedResult | RerankResult],
    ) -> list[Output]:
        """Hand a batch's rows to their jobs.

        Args:
            batch: As `take` gave it.
            rows: Shape (len(batch), width).
            bad: Rows that must not reach a client, with the reason; their jobs fail.
            finish: Makes the result of a job that is complete; may raise errors of the tree.
        """
        outputs: list[Output] = []
        for number, item in enumerate(batch):
            job = self._jobs.get(item.request_id)
            if job is None:
                continue  # it failed with an earlier row of this batch
            if number in bad:
                self.cancel(item.request_id)
                place = f"Input {item.index}: " if job.size > 1 else ""
                outputs.append((item.request_id, Failed(error=EngineFailedError(f"{place}{bad[number]}"))))
                continue
            job.put(item.index, rows[number])
            if job.open == 0:
                del self._jobs[item.request_id]
                try:
                    outputs.append((item.request_id, finish(job)))
                except CardcageError as error:
                    outputs.append((item.request_id, Failed(error=error)))
        return outputs

    def fail(self, batch: Sequence[Item], error: CardcageError) -> list[Output]:
        """Fail every job that a batch was of."""
        outputs: list[Output] = []
        for request_id in dict.fromkeys(item.request_id for item in batch):
            if request_id in self._jobs:
                self.cancel(request_id)
                outputs.append((request_id, Failed(error=error)))
        return outputs
