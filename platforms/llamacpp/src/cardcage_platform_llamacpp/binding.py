"""llama.cpp's low-level API behind a few classes that cannot be called wrongly. Worker process only.

llama.cpp answers many mistakes by ending the process (`ggml_abort`, SIGSEGV): a NULL sampler in a chain, a logits index that
is not an output, a partial copy between streams, absurd thread counts. Everything that could do so is checked here, before C
sees it; the rest of the package holds no raw pointer.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cardcage_sdk.errors import EngineFailedError, LoadFailedError, OutOfMemoryError, UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]
    Tokens = npt.NDArray[np.int32]

__all__ = ["Batch", "Context", "ContextSettings", "Model", "Vocabulary", "clamp_threads", "lib", "recent_log"]

# Typed as Any: the bindings' annotations describe C pointers that mypy cannot follow.
lib: Any = importlib.import_module("llama_cpp.llama_cpp")

_WARN, _CONTINUED = 3, 5
_ATTR_UNKNOWN, _ATTR_CONTROL, _ATTR_USER_DEFINED, _ATTR_LSTRIP = 1 << 0, 1 << 3, 1 << 4, 1 << 7
_STRETCH_CHARS = 4096

MAX_SEQUENCES = 256
"""llama.cpp's own bound (`LLAMA_MAX_SEQ`)."""

POOLING_UNSPECIFIED, POOLING_NONE, POOLING_MEAN, POOLING_RANK = -1, 0, 1, 4

DECODE_ABORTED, DECODE_NO_ROOM = 2, 1

# --- log ------------------------------------------------------------------------------------------------------------

_recent: deque[str] = deque(maxlen=60)
_last_level = 0


def _on_log(level: int, text: bytes, _data: object) -> None:
    global _last_level  # noqa: PLW0603  A continuation has no level of its own; llama.cpp gives one callback a process.
    if level != _CONTINUED:
        _last_level = level
    line = text.decode("utf-8", "replace").rstrip("\n")
    if not line.strip(". "):
        return
    _recent.append(line)
    if _last_level >= _WARN:
        sys.stderr.write(line + "\n")


# Kept for the life of the process: C holds the pointer.
_log_callback = lib.llama_log_callback(_on_log)


def recent_log(lines: int = 8) -> str:
    """The last lines that llama.cpp logged: the only place where it says why a load failed."""
    return "\n".join(list(_recent)[-lines:])


def start() -> None:
    """Take over the log and start the backend. Once a process."""
    lib.llama_log_set(_log_callback, None)
    lib.llama_backend_init()


def clamp_threads(threads: int | None) -> int:
    """A thread count that llama.cpp survives: 100,000 of them are a SIGSEGV, not an error."""
    available = len(os.sched_getaffinity(0)) or 1
    return max(1, min(threads if threads is not None else available, 4 * available, 256))


# --- model and vocabulary -------------------------------------------------------------------------------------------


class Model:
    """A loaded model file."""

    def __init__(self, path: Path, *, use_extra_bufts: bool, check_tensors: bool) -> None:
        """Load the weights.

        Raises:
            UnsupportedModelError: llama.cpp does not know this architecture, type or version.
            OutOfMemoryError: A buffer could not be allocated.
            LoadFailedError: Anything else, with llama.cpp's own words.
        """
        parameters = lib.llama_model_default_params()
        parameters.n_gpu_layers = 0
        parameters.use_extra_bufts = use_extra_bufts
        parameters.check_tensors = check_tensors
        _recent.clear()
        self.handle = lib.llama_model_load_from_file(os.fsencode(path), parameters)
        if not self.handle:
            raise _load_error(path)
        self.vocabulary = Vocabulary(lib.llama_model_get_vocab(self.handle))
        self.trained_context_tokens: int = lib.llama_model_n_ctx_train(self.handle)
        self.embedding_width: int = lib.llama_model_n_embd_out(self.handle)
        self.parameter_count: int = lib.llama_model_n_params(self.handle)
        # Their state is not a list of tokens that could be cut at any place.
        self.has_recurrent_state = bool(
            lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle)
        )
        self.has_decoder = bool(lib.llama_model_has_decoder(self.handle))
        self.has_encoder = bool(lib.llama_model_has_encoder(self.handle))

    @property
    def description(self) -> str:
        """As `llama 135M Q4_1`."""
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def chat_template(self) -> str | None:
        """The template in the file."""
        raw = lib.llama_model_chat_template(self.handle, None)
        return raw.decode("utf-8", "replace") if raw else None

    def close(self) -> None:
        """Free the weights; contexts first."""
        if self.handle:
            lib.llama_model_free(self.handle)
            self.handle = None


def _load_error(path: Path) -> Exception:
    words = recent_log()
    low = words.lower()
    if "unknown model architecture" in low or "unknown pre-tokenizer" in low or "unsupported" in low:
        return UnsupportedModelError(f"llama.cpp does not take '{path.name}': {words}")
    if "failed to allocate" in low or "unable to allocate" in low or "out of memory" in low:
        return OutOfMemoryError(f"Not enough memory for '{path.name}': {words}")
    return LoadFailedError(f"llama.cpp could not load '{path.name}': {words}", log_tail=words)


class Vocabulary:
    """Tokens as bytes and back."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.size: int = lib.llama_vocab_n_tokens(handle)
        self.bos: int = lib.llama_vocab_bos(handle)
        self.eos: int = lib.llama_vocab_eos(handle)
        self.adds_bos = bool(lib.llama_vocab_get_add_bos(handle))
        self.adds_end = bool(lib.llama_vocab_get_add_eos(handle) or lib.llama_vocab_get_add_sep(handle))
        self.end_tokens = frozenset(token for token in range(self.size) if lib.llama_vocab_is_eog(handle, token))
        self.control: dict[str, int] = {}
        self.user_defined: dict[str, int] = {}
        cuts: list[str] = []
        for token in range(self.size):
            attributes = lib.llama_vocab_get_attr(handle, token)
            if attributes & (_ATTR_CONTROL | _ATTR_UNKNOWN):
                self.control[self.text(token)] = token
                if not attributes & _ATTR_LSTRIP:  # one that takes white space before it must stay behind that
                    cuts.append(self.text(token))
            elif attributes & _ATTR_USER_DEFINED:
                self.user_defined[self.text(token)] = token
        spellings = sorted((text for text in cuts if len(text) > 1), key=len, reverse=True)
        self._cut = re.compile("|".join(map(re.escape, spellings))) if spellings else None
        # One look-up a token instead of a call that costs ten times as much.
        self.pieces = [self._piece(token, special=False) for token in range(self.size)]

    def text(self, token: int) -> str:
        """The token as the vocabulary writes it; empty for none."""
        raw = lib.llama_vocab_get_text(self.handle, token) if 0 <= token < self.size else None
        return raw.decode("utf-8", "replace") if raw else ""

    def show(self, text: str) -> None:
        """Let a control token appear in generated text, as the text that the vocabulary writes it as."""
        token = self.control.get(text)
        if token is not None:
            self.pieces[token] = text.encode()

    def _piece(self, token: int, *, special: bool) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            length: int = lib.llama_token_to_piece(self.handle, token, buffer, size, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            size = -length

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Tokens of a text.

        Args:
            text: Any; lone surrogates become question marks.
            add_special: Add the begin and end tokens that the model is configured for.
            parse_special: Text that spells a control token becomes that token.
        """
        if not parse_special or (add_special and self.adds_end):
            return self._tokenize(text, add_special=add_special, parse_special=parse_special)
        tokens: list[int] = []
        for number, stretch in enumerate(self._stretches(text)):
            tokens += self._tokenize(stretch, add_special=add_special and not number, parse_special=True)
        return tokens

    def _stretches(self, text: str) -> Iterator[str]:
        """A text cut before control tokens into stretches of a few thousand characters; one that is no longer stays whole.

        llama.cpp searches the rest of a text anew for every control token in it, so that its time grows with their square:
        a prompt of 20,000 short messages took 20 seconds, in which no sequence of the batch went on. It splits at control
        tokens before anything else, so the tokens are the same.
        """
        begin = 0
        while self._cut is not None and len(text) - begin > _STRETCH_CHARS:
            found = self._cut.search(text, begin + _STRETCH_CHARS)
            if found is None:
                break
            yield text[begin : found.start()]
            begin = found.start()
        yield text[begin:]

    def _tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raw = text.encode("utf-8", "replace")
        room = len(raw) + 8
        buffer = (ctypes.c_int32 * room)()
        count = lib.llama_tokenize(self.handle, raw, len(raw), buffer, room, add_special, parse_special)
        if count < 0:
            raise EngineFailedError(f"llama.cpp could not tokenize {len(raw)} bytes")
        return buffer[:count]


# --- context --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """How a context is made.

    Attributes:
        context_tokens: Of all sequences together.
        outputs: Rows of one batch that logits or embeddings are read from, at most.
        pooling: For embeddings; None makes a context for text.
    """

    context_tokens: int
    batch_tokens: int
    micro_batch_tokens: int
    sequences: int
    outputs: int
    threads: int
    kv_unified: bool
    flash_attention: bool
    pooling: int | None = None


class Context:
    """The state of running sequences: key-value cache, buffers, threads."""

    def __init__(self, model: Model, settings: ContextSettings) -> None:
        """Allocate everything.

        Raises:
            OutOfMemoryError: It did not fit.
        """
        parameters = lib.llama_context_default_params()
        parameters.n_ctx = settings.context_tokens
        parameters.n_batch = settings.batch_tokens
        parameters.n_ubatch = settings.micro_batch_tokens
        parameters.n_seq_max = settings.sequences
        parameters.n_outputs_max = settings.outputs
        parameters.n_outputs_max_per_seq = 1 if settings.pooling is None else 0
        parameters.n_threads = parameters.n_threads_batch = clamp_threads(settings.threads)
        parameters.flash_attn_type = 1 if settings.flash_attention else 0
        parameters.kv_unified = settings.kv_unified
        parameters.no_perf = True
        if settings.pooling is not None:
            parameters.embeddings = True
            parameters.pooling_type = settings.pooling
        _recent.clear()
        self.model = model
        self.handle = lib.llama_init_from_model(model.handle, parameters)
        if not self.handle:
            raise OutOfMemoryError(
                f"llama.cpp could not make a context of {settings.context_tokens} tokens: {recent_log()}"
            )
        self._vocabulary_size = model.vocabulary.size
        # An encoder without a cache (BERT) has no memory object.
        self._memory = lib.llama_get_memory(self.handle)

    @property
    def context_tokens_per_sequence(self) -> int:
        """Room of one sequence, as llama.cpp rounded it."""
        return int(lib.llama_n_ctx_seq(self.handle))

    @property
    def pooling(self) -> int:
        """How embeddings are pooled, by the file unless asked otherwise."""
        return int(lib.llama_pooling_type(self.handle))

    def set_threads(self, threads: int) -> None:
        """Use so many threads from the next batch on."""
        count = clamp_threads(threads)
        lib.llama_set_n_threads(self.handle, count, count)

    def decode(self, batch: Batch) -> int:
        """Compute a batch; 0, or llama.cpp's code (1 no room, 2 aborted, negative wrong input)."""
        return int(lib.llama_decode(self.handle, batch.struct))

    def encode(self, batch: Batch) -> int:
        """Compute a batch of an encoder."""
        return int(lib.llama_encode(self.handle, batch.struct))

    def logits(self, row: int) -> Floats:
        """Logits of a row of the last batch, shape (vocabulary,); valid until the next batch.

        Raises:
            EngineFailedError: The row was no output.
        """
        pointer = lib.llama_get_logits_ith(self.handle, row)
        if not pointer:
            raise EngineFailedError(f"row {row} of the batch has no logits")
        return np.ctypeslib.as_array(pointer, (self._vocabulary_size,))

    def pooled_embedding(self, sequence: int) -> Floats | None:
        """Pooled vector of a sequence of the last batch, shape (width,)."""
        pointer = lib.llama_get_embeddings_seq(self.handle, sequence)
        return np.ctypeslib.as_array(pointer, (self.model.embedding_width,)).copy() if pointer else None

    def copy_sequence(self, source: int, target: int, *, held_tokens: int) -> None:
        """Copy a whole sequence over another; between streams llama.cpp aborts on anything but the whole.

        Its own copy moves the stream's whole buffer, used or not (35 ms for 8,192 tokens of SmolLM2), saving and restoring
        the state only what is used, but five times slower (23 us a token): so the fuller stream takes the first way.
        """
        lib.llama_memory_seq_rm(self._memory, target, -1, -1)
        if held_tokens * 5 < self.context_tokens_per_sequence and self._copy_state(source, target):
            return
        lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def _copy_state(self, source: int, target: int) -> bool:
        size = int(lib.llama_state_seq_get_size(self.handle, source))
        buffer: npt.NDArray[np.uint8] = np.empty(size, dtype=np.uint8)
        pointer = buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = int(lib.llama_state_seq_get_data(self.handle, pointer, size, source))
        return bool(written and lib.llama_state_seq_set_data(self.handle, pointer, written, target))

    def cut_sequence(self, sequence: int, length: int) -> bool:
        """Forget what a sequence holds from position `length` on; False where its state cannot be cut there."""
        return bool(lib.llama_memory_seq_rm(self._memory, sequence, length, -1))

    def clear(self) -> None:
        """Forget every sequence."""
        if self._memory:
            lib.llama_memory_clear(self._memory, True)

    def close(self) -> None:
        """Free it, before its model."""
        if self.handle:
            lib.llama_free(self.handle)
            self.handle = None


class Batch:
    """Rows for one call, in numpy arrays that C reads in place."""

    def __init__(self, rows: int) -> None:
        self.capacity = rows
        self.tokens: Tokens = np.zeros(rows, dtype=np.int32)
        self.positions: Tokens = np.zeros(rows, dtype=np.int32)
        self.sequences: Tokens = np.zeros(rows, dtype=np.int32)
        self.outputs: npt.NDArray[np.int8] = np.zeros(rows, dtype=np.int8)
        self._counts: Tokens = np.ones(rows, dtype=np.int32)
        # Each row's list of sequences is one element of `sequences`.
        base = self.sequences.ctypes.data
        self._pointers = (np.arange(rows, dtype=np.uint64) * np.uint64(4) + np.uint64(base)).astype(np.uint64)
        struct = lib.llama_batch()
        struct.n_tokens = 0
        struct.token = self.tokens.ctypes.data_as(type(struct.token))
        struct.embd = None
        struct.pos = self.positions.ctypes.data_as(type(struct.pos))
        struct.n_seq_id = self._counts.ctypes.data_as(type(struct.n_seq_id))
        struct.seq_id = self._pointers.ctypes.data_as(type(struct.seq_id))
        struct.logits = self.outputs.ctypes.data_as(type(struct.logits))
        self.struct = struct

    def __len__(self) -> int:
        return int(self.struct.n_tokens)

    def clear(self) -> None:
        """Empty it."""
        self.struct.n_tokens = 0

    def add(self, tokens: Tokens, *, sequence: int, position: int, output: bool) -> int:
        """Append rows of one sequence; `output` asks for the result of the last one.

        Returns:
            The index of the last row.
        """
        start = int(self.struct.n_tokens)
        end = start + len(tokens)
        if end > self.capacity:
            raise EngineFailedError(f"a batch of {self.capacity} rows was filled with {end}")
        self.tokens[start:end] = tokens
        self.positions[start:end] = np.arange(position, position + len(tokens), dtype=np.int32)
        self.sequences[start:end] = sequence
        self.outputs[start:end] = 0
        self.outputs[end - 1] = output
        self.struct.n_tokens = end
        return end - 1
