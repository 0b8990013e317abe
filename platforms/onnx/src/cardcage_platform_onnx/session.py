"""One onnxruntime session: made with the settings that measured best, fed by name and shape. Worker only."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_errors

from cardcage_platform_onnx.providers import Provider, candidates
from cardcage_sdk.errors import EngineFailedError, LoadFailedError, OutOfMemoryError, UnsupportedModelError

__all__ = ["EncoderSession", "Matrix", "OrtError", "open_session", "session_options"]

log = logging.getLogger(__name__)

Matrix = npt.NDArray[np.float32]

OrtError: tuple[type[Exception], ...] = tuple(
    cls for cls in vars(ort_errors).values() if isinstance(cls, type) and issubclass(cls, Exception)
)
"""Everything that onnxruntime raises; its classes have no common base but `Exception`."""

_OPEN_FAULTS: tuple[type[Exception], ...] = (*OrtError, RuntimeError, ValueError)
_RUN_FAULTS: tuple[type[Exception], ...] = (*OrtError, RuntimeError)
_UNUSABLE_FILE: tuple[type[Exception], ...] = (
    ort_errors.InvalidProtobuf,
    ort_errors.InvalidGraph,
    ort_errors.NoSuchFile,
    ort_errors.NotImplemented,
)

_NUMPY_TYPES = {
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(bool)": np.bool_,
}

# Which output is read where a graph has several, best first.
_POOLED_OUTPUTS = ("sentence_embedding", "text_embeds", "embeddings", "embedding")
_TOKEN_OUTPUTS = ("last_hidden_state", "token_embeddings", "hidden_states")
_SCORE_OUTPUTS = ("logits", "scores", "score")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input of the graph; a dimension without a fixed size is None."""

    name: str
    dtype: type[np.generic]
    shape: tuple[int | None, ...]


def session_options(threads: int) -> ort.SessionOptions:
    """Options of a session that shares its machine.

    Spinning and the arena are off. Spinning threads made a step take twice as long as soon as another process used the
    second core (16 tokens: 16.8 ms against 9.2 ms), and the arena kept 1051 MB after one large batch where 235 MB were
    loaded, for no speed at the step sizes used here.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return options


def open_session(
    path: Path,
    *,
    threads: int,
    provider: str,
    provider_options: Mapping[str, str],
    has_static_shapes: bool,
    fixed_dimensions: Mapping[str, int] | None = None,
) -> tuple[ort.InferenceSession, Provider]:
    """Open the model on the best provider that takes it.

    Args:
        path: The ONNX file.
        threads: CPU threads.
        provider: A provider's name, or `auto`.
        provider_options: For a provider that was named.
        has_static_shapes: Every input has a fixed shape, by itself or by `fixed_dimensions`.
        fixed_dimensions: Sizes of the graph's free dimensions, by name; None leaves them free.

    With `auto`, a provider that does not come up is passed over with a line in the log. A provider that was named must come
    up: onnxruntime's own silent fall-back to the CPU counts as a failure.

    Raises:
        UnsupportedPlatformError: The provider that was named is not in this build.
        UnsupportedModelError: The file is no model that this onnxruntime can read.
        OutOfMemoryError: It did not fit.
        LoadFailedError: Anything else, with onnxruntime's own words.
    """
    ort.disable_telemetry_events()
    ort.set_default_logger_severity(3)
    choices = candidates(provider, ort.get_available_providers(), has_static_shapes=has_static_shapes)
    problems: list[str] = []
    for choice in choices:
        options = {**choice.defaults, **provider_options}
        wanted: list[Any] = [(choice.runtime_name, options)]
        if choice.kind != "cpu":
            wanted.append("CPUExecutionProvider")  # for the operators that an accelerator does not have
        try:
            settings = session_options(threads)
            for name, size in (fixed_dimensions or {}).items():
                settings.add_free_dimension_override_by_name(name, size)
            session = ort.InferenceSession(str(path), settings, providers=wanted)
        except _UNUSABLE_FILE as error:
            raise UnsupportedModelError(
                f"onnxruntime cannot read '{path.name}': {error}", param="model_path"
            ) from error
        except MemoryError as error:
            raise OutOfMemoryError(f"Not enough memory for '{path.name}'") from error
        except _OPEN_FAULTS as error:
            if "bad_alloc" in str(error) or "Failed to allocate memory" in str(error):
                raise OutOfMemoryError(f"Not enough memory for '{path.name}': {error}") from error
            problems.append(f"{choice.name}: {error}")
            log.warning("execution provider %s does not take this model: %s", choice.name, error)
            continue
        if choice.runtime_name in session.get_providers():
            return session, choice
        problems.append(f"{choice.name}: onnxruntime fell back to {', '.join(session.get_providers())}")
        log.warning("execution provider %s did not come up", choice.name)
    raise LoadFailedError(f"No execution provider took '{path.name}': " + "; ".join(problems))


class EncoderSession:
    """A BERT-like or decoder-like encoder: token ids in, vectors or scores out.

    Attributes:
        output_name: The output that is read.
        is_pooled: The output is one vector a text: shape (batch, width) instead of (batch, length, width).
        is_score: The output holds the scores of a classifier.
        fixed_batch: Rows that every run must have, where the graph fixes it.
        fixed_length: Tokens that every row must have, where the graph fixes it.
        width: Components of a vector, or number of labels.
    """

    def __init__(self, session: ort.InferenceSession, *, task: str | None) -> None:
        self._session = session
        self._inputs = [_input_spec(item) for item in session.get_inputs()]
        names = {spec.name for spec in self._inputs}
        if "input_ids" not in names:
            raise UnsupportedModelError(
                f"The graph has no input 'input_ids' but {', '.join(sorted(names))}: not a text encoder",
                param="model_path",
            )
        output = _choose_output(session.get_outputs(), task)
        self.output_name: str = output.name
        shape = tuple(size if isinstance(size, int) else None for size in output.shape)
        self.is_score: bool = output.name in _SCORE_OUTPUTS if task is None else task == "rerank"
        self.is_pooled: bool = len(shape) == 2
        self.width: int | None = shape[-1] if shape else None
        ids = next(spec for spec in self._inputs if spec.name == "input_ids")
        self.fixed_batch: int | None = ids.shape[0]
        self.fixed_length: int | None = ids.shape[1]
        self.uses_token_types: bool = "token_type_ids" in names

    def run(self, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64], types: npt.NDArray[np.int64]) -> Matrix:
        """One forward pass.

        Args:
            ids: int64, shape (batch, length), padded on the right.
            mask: int64, the same shape; 1 for tokens, 0 for padding.
            types: int64, the same shape; only read where the graph asks for it.

        Returns:
            float32, shape (batch, length, width), or (batch, width) where `is_pooled`.

        Raises:
            OutOfMemoryError: The step's buffers did not fit.
            EngineFailedError: onnxruntime's own words.
        """
        feed: dict[str, Any] = {}
        for spec in self._inputs:
            feed[spec.name] = self._value(spec, ids, mask, types)
        try:
            (output,) = self._session.run([self.output_name], feed)
        except _RUN_FAULTS as error:
            if "Failed to allocate memory" in str(error) or "bad_alloc" in str(error):
                raise OutOfMemoryError(
                    f"Not enough memory for a step of {ids.shape[0]}x{ids.shape[1]} tokens"
                ) from error
            raise EngineFailedError(f"onnxruntime: {error}") from error
        return np.asarray(output, dtype=np.float32)

    def _value(
        self, spec: InputSpec, ids: npt.NDArray[np.int64], mask: npt.NDArray[np.int64], types: npt.NDArray[np.int64]
    ) -> npt.NDArray[Any]:
        if spec.name == "input_ids":
            value: npt.NDArray[Any] = ids
        elif spec.name == "attention_mask":
            value = mask
        elif spec.name == "token_type_ids":
            value = types
        elif spec.name == "position_ids":
            value = np.maximum(np.cumsum(mask, axis=1) - 1, 0)
        elif spec.name.startswith("past_key_values."):
            # Decoder exports take a cache; an encoder's one pass starts with an empty one: (batch, heads, 0, head size).
            _, heads, _, size = spec.shape
            value = np.zeros((ids.shape[0], heads or 1, 0, size or 1))
        elif spec.name == "use_cache_branch":
            value = np.zeros((1,))
        else:
            raise UnsupportedModelError(
                f"The graph has an input '{spec.name}' that nothing is known of", param="model_path"
            )
        return value.astype(spec.dtype, copy=False)


def _input_spec(item: Any) -> InputSpec:
    if item.type not in _NUMPY_TYPES:
        raise UnsupportedModelError(f"Input '{item.name}' has the type {item.type}", param="model_path")
    shape = tuple(size if isinstance(size, int) and size > 0 else None for size in item.shape)
    return InputSpec(name=item.name, dtype=_NUMPY_TYPES[item.type], shape=shape)


def _choose_output(outputs: Sequence[Any], task: str | None) -> Any:
    by_name = {item.name: item for item in outputs if item.type in {"tensor(float)", "tensor(float16)"}}
    scores = [name for name in _SCORE_OUTPUTS if name in by_name and len(by_name[name].shape) <= 2]
    vectors = [name for name in (*_POOLED_OUTPUTS, *_TOKEN_OUTPUTS) if name in by_name]
    if task == "rerank":
        names = scores or [name for name, item in by_name.items() if len(item.shape) <= 2]
    elif task == "embed":
        names = vectors or [name for name, item in by_name.items() if len(item.shape) == 3]
    else:
        names = vectors or scores or [name for name, item in by_name.items() if len(item.shape) == 3]
    if not names:
        have = ", ".join(f"{item.name}{list(item.shape)}" for item in outputs)
        raise UnsupportedModelError(
            f"None of the graph's outputs is one of vectors or scores: {have}", param="model_path"
        )
    return by_name[names[0]]
