"""Embeddings and rerank on onnxruntime: requests of all clients computed together, one batch a step. Worker only."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from cardcage_platform_onnx.batching import Batcher, Item, padded_length
from cardcage_platform_onnx.declared import CAPABILITIES
from cardcage_platform_onnx.encoder_config import EncoderConfig, read_encoder_config
from cardcage_platform_onnx.jobs import Job, JobQueue, Work
from cardcage_platform_onnx.model_files import EXACT, ModelFiles
from cardcage_platform_onnx.onnx_header import OnnxHeader, OnnxHeaderError, read_onnx_header
from cardcage_platform_onnx.pooling import Pooling, bad_rows, cut, normalise, pool
from cardcage_platform_onnx.rerank import check_labels, scores_of
from cardcage_platform_onnx.selftest import DOCUMENTS, QUERY, SENTENCES, EmbedVerdict, check_scores, check_vectors
from cardcage_platform_onnx.session import EncoderSession, open_session
from cardcage_platform_onnx.shapes import fixed_dimensions, padded_lengths
from cardcage_platform_onnx.threads import choose_threads
from cardcage_platform_onnx.tokenization import TextTokenizer, input_param
from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.embeddings import EmbedRequest, EmbedResult, RerankRequest, RerankResult
from cardcage_sdk.engine import BatchEngine
from cardcage_sdk.errors import (
    CardcageError,
    EngineFailedError,
    InvalidRequestError,
    UnsupportedError,
    UnsupportedModelError,
)
from cardcage_sdk.events import Accepted
from cardcage_sdk.ipc.frames import FRAME_LIMIT
from cardcage_sdk.models import ModelInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardcage_platform_onnx.session import Matrix
    from cardcage_platform_onnx.settings import Settings
    from cardcage_platform_onnx.tokenization import Encoded, Truncation
    from cardcage_sdk.engine import BatchOutput, Request
    from cardcage_sdk.models import LoadOptions, ModelArtifact

__all__ = ["EncoderEngine"]

log = logging.getLogger(__name__)

# A request of more texts, or of more characters, is not tokenised at `prepare`: that must take no longer than a step.
PREPARE_TEXTS = 64
PREPARE_CHARACTERS = 32_768
# Vectors of one request travel in one frame of the worker's pipe; a little is left for the rest of it.
MAX_RESULT_BYTES = FRAME_LIMIT - (4 << 20)
# Prepared requests whose tokens are kept for `add`; more than core ever has in flight between the two.
PREPARED = 128


class EncoderEngine(BatchEngine):
    """One embedding model or one reranker. See `BatchEngine` for who calls what, when."""

    def __init__(self, files: ModelFiles, settings: Settings) -> None:
        self._files = files
        self._settings = settings
        self._path = files.onnx_file(settings.variant)
        self._prepared: OrderedDict[str, list[Encoded]] = OrderedDict()
        self._slots = 1

    # --- loading ------------------------------------------------------------------------------------------------------

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Open the model and find out what it is and whether it works."""
        try:
            header = read_onnx_header(self._path)
        except OnnxHeaderError as error:
            raise UnsupportedModelError(f"'{self._path.name}': {error}", param="model_path") from error
        self._fixed_dimensions = fixed_dimensions(header, self._settings.fixed_shape)
        self._static_shapes = bool(self._fixed_dimensions) or all(None not in s.dimensions for s in header.inputs)
        self._threads = choose_threads(wanted=self._settings.threads, share=options.cpu_threads)
        self._open()
        self._config: EncoderConfig = read_encoder_config(self._files.directory, artifact, self._settings)
        self._task = Task.RERANK if self._session.is_score else Task.EMBED
        self._pooling: Pooling = "none"
        if self._task is Task.EMBED:
            self._pooling = self._config.check_pipeline(is_pooled=self._session.is_pooled)
        else:
            check_labels(self._session.width)
        longest = self._session.fixed_length
        limits = (self._config.max_tokens, longest, options.context_tokens)
        max_tokens = min(limit for limit in limits if limit is not None)
        assert self._files.tokenizer is not None
        self._tokenizer = TextTokenizer(self._files.tokenizer, max_tokens=max_tokens)
        self._lengths = padded_lengths(
            max_tokens,
            fixed=longest,
            wanted=self._settings.sequence_lengths,
            compiles_shapes=self._provider.compiles_shapes,
        )
        self._slots = options.slots
        details = self._self_test(header)
        return ModelInfo(
            context_tokens=max_tokens,
            slots=options.slots,
            max_slots=options.max_slots,
            capabilities=self._capabilities(),
            embedding_dimensions=self._width if self._task is Task.EMBED else None,
            parameter_count=header.parameter_count,
            details={
                "provider": self._provider.name,
                "variant": self._settings.variant,
                "file": self._path.relative_to(self._files.directory).as_posix(),
                "threads": self._threads,
                "family": self._config.family,
                "pooling": self._pooling if self._task is Task.EMBED else None,
                **details,
            },
        )

    def _open(self) -> None:
        opened, self._provider = open_session(
            self._path,
            threads=self._threads,
            provider=self._settings.provider,
            provider_options=self._settings.provider_options,
            has_static_shapes=self._static_shapes,
            fixed_dimensions=self._fixed_dimensions,
        )
        self._session = EncoderSession(opened, task=self._settings.task)

    def _capabilities(self) -> Capabilities:
        features = set()
        if self._task is Task.EMBED and (self._config.dimensions or self._config.any_dimensions):
            features.add(Feature.DIMENSIONS)
        return replace(
            CAPABILITIES,
            tasks=frozenset({self._task}),
            features=frozenset(features),
            sampling=frozenset(),
            max_choices=1,
        )

    def _self_test(self, header: OnnxHeader) -> dict[str, object]:
        self._queue = JobQueue(self._batcher(max_rows=self._session.fixed_batch), self._encode)
        if self._task is Task.RERANK:
            pairs = self._tokenizer.pairs(QUERY, DOCUMENTS, truncate=True, first=0)
            alone = [float(self._compute([pair])[0][0]) for pair in pairs]
            is_sensible = check_scores(alone)
            if not is_sensible:
                log.warning("the reranker prefers a document that does not answer: scores %s", alone)
            together = [float(row[0]) for row in self._compute(pairs)]
            moved = max(abs(a - b) for a, b in zip(alone, together, strict=True))
            verdict = EmbedVerdict(unlike_cosine=0.0, depends_on_batch=moved > 1e-3)
            details: dict[str, object] = {"self_test_scores": alone}
        else:
            encoded = self._tokenizer.texts(
                [self._config.prefix + text for text in SENTENCES], truncation="end", first=0, of=len(SENTENCES)
            )
            singles = [normalise(self._compute([text]))[0] for text in encoded]
            verdict = check_vectors(singles, normalise(self._compute(encoded)))
            self._width = len(singles[0])
            details = {"self_test_cosine": round(verdict.unlike_cosine, 4)}
        depends = verdict.depends_on_batch or header.quantises_activations
        # Exact means that a text has one vector. Where the file cannot give that in company, each text runs alone.
        runs_alone = depends and self._settings.variant == EXACT
        if runs_alone:
            self._queue = JobQueue(self._batcher(max_rows=1), self._encode)
            log.info(
                "this file's vectors depend on what is computed beside them, so each text runs alone; variant 'fast' batches"
            )
        return {
            **details,
            "exact": not depends or runs_alone,
            "batches": not runs_alone and self._session.fixed_batch != 1,
            "batch_tokens": self._budget,
        }

    @property
    def _budget(self) -> int:
        return self._settings.batch_tokens or self._provider.batch_tokens

    def _batcher(self, *, max_rows: int | None) -> Batcher:
        budget = self._budget if self._session.fixed_batch is None else self._session.fixed_batch * max(self._lengths)
        return Batcher(budget_tokens=budget, max_rows=max_rows, lengths=self._lengths)

    # --- requests -----------------------------------------------------------------------------------------------------

    def prepare(self, request: Request) -> Accepted:
        """Validate; tokenise and count what is small, and keep the tokens for `add`, which usually comes soon."""
        job = self._check(request)
        texts = _texts(job.request)
        if job.size > PREPARE_TEXTS or sum(map(len, texts)) > PREPARE_CHARACTERS:
            self._check_characters(job)
            return Accepted()
        encoded = self._encode(job, 0, job.size)
        self._prepared[request.id] = encoded
        while len(self._prepared) > PREPARED:
            self._prepared.popitem(last=False)
        return Accepted(prompt_tokens=sum(len(text.ids) for text in encoded))

    def _check_characters(self, job: Job) -> None:
        """Refuse at once what would be refused when its turn to be tokenised comes."""
        request = job.request
        if isinstance(request, EmbedRequest) and self._settings.truncation == "error" and not request.truncate:
            for index, text in enumerate(request.inputs):
                if isinstance(text, str):
                    self._tokenizer.bounded(text, "error", input_param(index, job.size))

    def add(self, request: Request) -> None:
        """Take a request; its texts join the batches of the steps to come."""
        job = self._check(request)
        job.encoded = self._prepared.pop(request.id, None)
        self._queue.add(job)

    def _check(self, request: Request) -> Job:
        """Refuse what this model cannot do, and make a job of the rest."""
        if isinstance(request, EmbedRequest) and self._task is Task.EMBED:
            self._check_dimensions(request.dimensions)
            if not request.inputs:
                raise InvalidRequestError("input must not be empty", param="input")
            most = MAX_RESULT_BYTES // (4 * self._width)
            if len(request.inputs) > most:
                raise InvalidRequestError(
                    f"input has {len(request.inputs)} entries; with vectors of {self._width} components at most {most} fit "
                    "into one answer",
                    param="input",
                )
            return Job(request=request, size=len(request.inputs))
        if isinstance(request, RerankRequest) and self._task is Task.RERANK:
            if not request.documents:
                raise InvalidRequestError("documents must not be empty", param="documents")
            return Job(request=request, size=len(request.documents))
        if isinstance(request, EmbedRequest):
            raise UnsupportedError(Task.EMBED.value, param="model")
        raise UnsupportedError(
            Task.RERANK.value if isinstance(request, RerankRequest) else Task.CHAT.value, param="model"
        )

    def _check_dimensions(self, dimensions: int | None) -> None:
        if dimensions is None or dimensions == self._width:
            return
        allowed = self._config.dimensions
        if not allowed and not self._config.any_dimensions:
            raise UnsupportedError(
                Feature.DIMENSIONS.value,
                message=f"This model was not trained to have its vectors of {self._width} components cut, so 'dimensions' "
                "is not supported",
            )
        if not 1 <= dimensions <= self._width:
            raise InvalidRequestError(f"dimensions must be from 1 to {self._width}", param="dimensions")
        if allowed and dimensions not in allowed:
            raise InvalidRequestError(
                f"dimensions must be one of {', '.join(map(str, allowed))}, or {self._width}", param="dimensions"
            )

    def _encode(self, job: Job, start: int, end: int) -> list[Encoded]:
        request = job.request
        if isinstance(request, RerankRequest):
            return self._tokenizer.pairs(
                request.query, request.documents[start:end], truncate=request.truncate, first=start
            )
        truncation: Truncation = self._settings.truncation
        if truncation == "error" and request.truncate:
            truncation = "end"
        result: list[Encoded | None] = [None] * (end - start)
        places = []
        for place, item in enumerate(request.inputs[start:end]):
            if isinstance(item, str):
                places.append(place)
            else:
                result[place] = self._tokenizer.token_ids(item, truncation=truncation, index=start + place, of=job.size)
        if len(places) == len(result):
            texts = [self._config.prefix + str(item) for item in request.inputs[start:end]]
            return self._tokenizer.texts(texts, truncation=truncation, first=start, of=job.size)
        for place in places:  # texts and token arrays mixed: rare, so each text is tokenised by itself
            text = self._config.prefix + str(request.inputs[start + place])
            (result[place],) = self._tokenizer.texts([text], truncation=truncation, first=start + place, of=job.size)
        return [encoded for encoded in result if encoded is not None]

    # --- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> Sequence[tuple[str, BatchOutput]]:
        """Tokenise some, compute one batch, and give out what is complete."""
        outputs: list[tuple[str, BatchOutput]] = list(self._queue.fill())
        batch = self._queue.take()
        if not batch:
            return outputs
        try:
            rows = self._compute(batch)
        except CardcageError as error:
            return [*outputs, *self._queue.fail(batch, error)]
        if self._task is Task.RERANK:
            bad = {
                int(row): "the model gave a score that is no number" for row in np.flatnonzero(~np.isfinite(rows[:, 0]))
            }
        else:
            bad = bad_rows(rows)
        return [*outputs, *self._queue.settle(batch, rows, bad, self._result)]

    def _compute(self, batch: Sequence[Item | Encoded]) -> Matrix:
        """One forward pass.

        Returns:
            float32, shape (len(batch), width): pooled vectors, not normalised; or scores, with a width of 1.
        """
        length = padded_length(max(len(text.ids) for text in batch), self._lengths)
        rows = self._session.fixed_batch or len(batch)
        if len(batch) > rows:  # only the self-test asks for more than the graph has
            return np.concatenate([self._compute(batch[i : i + rows]) for i in range(0, len(batch), rows)])
        ids = np.full((rows, length), self._tokenizer.padding_id, dtype=np.int64)
        mask = np.zeros((rows, length), dtype=np.int64)
        types = np.zeros((rows, length), dtype=np.int64)
        mask[len(batch) :, 0] = 1  # rows that only fill a fixed batch: one token each, since none would divide by zero
        for row, text in enumerate(batch):
            ids[row, : len(text.ids)] = text.ids
            mask[row, : len(text.ids)] = 1
            if text.types is not None:
                types[row, : len(text.ids)] = text.types
        output = self._session.run(ids, mask, types)[: len(batch)]
        if self._task is Task.RERANK:
            return np.asarray(scores_of(output, self._settings.score or "sigmoid"), dtype=np.float32)[:, None]
        if output.ndim != (2 if self._pooling == "none" else 3):
            raise EngineFailedError(
                f"The model gave an array of shape {output.shape}, which pooling '{self._pooling}' does not take"
            )
        return pool(output, mask[: len(batch)], self._pooling)

    def _result(self, job: Job) -> EmbedResult | RerankResult:
        request, values = job.request, job.values
        assert values is not None
        if isinstance(request, RerankRequest):
            return RerankResult(scores=tuple(float(score) for score in values[:, 0]), prompt_tokens=sum(job.tokens))
        vectors = cut(values, request.dimensions)
        if vectors is not values and (bad := bad_rows(vectors)):
            raise EngineFailedError(f"Input {min(bad)}, cut to {request.dimensions} dimensions: {bad[min(bad)]}")
        if request.normalize:
            vectors = normalise(vectors)
        return EmbedResult(
            vectors=np.ascontiguousarray(vectors, dtype="<f4").tobytes(),
            dimensions=vectors.shape[1],
            prompt_tokens=tuple(job.tokens),
        )

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Forget a request; a batch that holds texts of it has ended, since this is between two steps."""
        self._prepared.pop(request_id, None)
        self._queue.cancel(request_id)

    def resize(self, slots: int) -> int:
        """Texts of all requests share each step, so slots cost nothing."""
        self._slots = slots
        return slots

    def set_cpu_threads(self, threads: int) -> None:
        """Take another share of the cores: a session's threads are fixed, so it is opened anew (some 0.3 s)."""
        wanted = choose_threads(wanted=self._settings.threads, share=threads)
        if wanted != self._threads:
            self._threads = wanted
            del self._session  # first, so that the weights are never in memory twice
            self._open()

    def close(self) -> None:
        """Free the session."""
        if hasattr(self, "_session"):
            del self._session


def _texts(request: Work) -> Sequence[str | tuple[int, ...]]:
    return request.inputs if isinstance(request, EmbedRequest) else (*request.documents, request.query)
