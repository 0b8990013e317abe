"""Read what a GGUF file says of itself, with the standard library and without touching its weights.

The server process uses this to recognise a model and to estimate its memory; it must not load llama.cpp for that. Sizes in
the file are untrusted: every one is checked against what is left of the file before anything is read or allocated.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

__all__ = ["MAGIC", "GgufError", "GgufHeader", "TensorInfo", "Value", "is_gguf", "read_header"]

MAGIC = b"GGUF"

Value: TypeAlias = bool | int | float | str | list[int] | None
"""A metadata value; arrays are kept only where they are short and of integers, else None stands for them."""

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_INTEGER_TYPES = frozenset({0, 1, 2, 3, 4, 5, 10, 11})
_MAX_KEYS = 65_536
_MAX_TENSORS = 262_144
_MAX_DIMENSIONS = 8
_MAX_KEPT_ARRAY = 1024
# Types of the files' fields in bytes per block and weights per block would be needed for exact tensor sizes; the file's
# own size says the same and cannot be wrong.


class GgufError(ValueError):
    """The file is not a GGUF file, is cut short, or lies about its sizes."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor.

    Attributes:
        type: Number of its ggml type.
        shape: The fastest dimension first, as in the file.
    """

    name: str
    type: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The metadata of a GGUF file.

    Attributes:
        metadata: Values by key.
        array_lengths: Length of every array by key, kept or not.
        tensors: In the order of the file.
    """

    version: int
    tensor_count: int
    metadata: dict[str, Value]
    array_lengths: dict[str, int]
    tensors: tuple[TensorInfo, ...] = ()

    @property
    def parameter_count(self) -> int:
        """Number of weights in this file; of a model in several files, in its first part only."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def architecture(self) -> str:
        """As `llama`; empty where the file does not say."""
        value = self.metadata.get("general.architecture")
        return value if isinstance(value, str) else ""

    def integer(self, key: str, default: int = 0) -> int:
        """An integer of the architecture's own keys, as `block_count`; of a list, its largest."""
        value = self.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, list):
            return max(value, default=default)
        return value if isinstance(value, int) else default

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, 0 where unknown."""
        return self.array_lengths.get("tokenizer.ggml.tokens", 0) or self.integer("vocab_size")

    def kv_bytes_per_token(self) -> int:
        """Bytes of an f16 key-value cache for one token of one sequence.

        Layers that keep less (sliding windows, recurrent state) are counted as if they kept everything: an estimate that
        is too high asks for memory that is not needed, one that is too low kills the worker.
        """
        heads = self.integer("attention.head_count")
        if not heads:
            return 0
        width = self.integer("embedding_length") // heads
        key_length = self.integer("attention.key_length", width)
        value_length = self.integer("attention.value_length", width)
        per_layer = self.metadata.get(f"{self.architecture}.attention.head_count_kv")
        layers = self.integer("block_count")
        total_heads = (
            sum(per_layer) if isinstance(per_layer, list) else layers * self.integer("attention.head_count_kv", heads)
        )
        return 2 * total_heads * (key_length + value_length)


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if count < 0 or count > len(self._data) - self._at:
            raise GgufError("the file ends in the middle of its header")
        start = self._at
        self._at += count
        return self._data[start : self._at]

    def skip(self, count: int) -> None:
        if count < 0 or count > len(self._data) - self._at:
            raise GgufError("the file ends in the middle of its header")
        self._at += count

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def string(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> tuple[Value, int | None]:
        """A value, and its length where it is an array."""
        if kind in _SCALARS:
            return struct.unpack(_SCALARS[kind], self.take(struct.calcsize(_SCALARS[kind])))[0], None
        if kind == _STRING:
            return self.string(), None
        if kind != _ARRAY:
            raise GgufError(f"unknown metadata type {kind}")
        item, count = self.number("<I"), self.number("<Q")
        if item == _STRING:
            if count > len(self._data) - self._at:
                raise GgufError("an array is longer than the file")
            for _ in range(count):
                self.skip(self.number("<Q"))
            return None, count
        if item not in _SCALARS:
            raise GgufError(f"unknown array type {item}")
        size = struct.calcsize(_SCALARS[item])
        if count > (len(self._data) - self._at) // size:
            raise GgufError("an array is longer than the file")
        raw = self.take(count * size)
        if item in _INTEGER_TYPES and count <= _MAX_KEPT_ARRAY:
            return list(struct.unpack(f"<{count}{_SCALARS[item][1]}", raw)), count
        return None, count


def is_gguf(path: Path) -> bool:
    """Whether the file starts as GGUF files do."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read_header(path: Path) -> GgufHeader:
    """The header of a file; kept in memory until the file changes.

    Raises:
        GgufError: With what is wrong.
        OSError: It cannot be read.
    """
    status = path.stat()
    return _read(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=64)
def _read(path: Path, size: int, modified_ns: int) -> GgufHeader:
    del modified_ns
    if size < 24:
        raise GgufError("the file is too short for a GGUF header")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data)
        if reader.take(4) != MAGIC:
            raise GgufError("the file does not start with 'GGUF'")
        version = reader.number("<I")
        if version not in {2, 3}:
            raise GgufError(f"GGUF version {version} is not known")
        tensor_count, key_count = reader.number("<Q"), reader.number("<Q")
        if key_count > _MAX_KEYS:
            raise GgufError(f"{key_count} metadata keys are more than any model has")
        metadata: dict[str, Value] = {}
        lengths: dict[str, int] = {}
        for _ in range(key_count):
            key = reader.string()
            metadata[key], length = reader.value(reader.number("<I"))
            if length is not None:
                lengths[key] = length
        return GgufHeader(version, tensor_count, metadata, lengths, _tensors(reader, tensor_count))


def _tensors(reader: _Reader, count: int) -> tuple[TensorInfo, ...]:
    if count > _MAX_TENSORS:
        raise GgufError(f"{count} tensors are more than any model has")
    tensors = []
    for _ in range(count):
        name = reader.string()
        dimensions = reader.number("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise GgufError(f"tensor '{name[:80]}' has {dimensions} dimensions")
        shape = tuple(reader.number("<Q") for _ in range(dimensions))
        tensors.append(TensorInfo(name, reader.number("<I"), shape))
        reader.skip(8)  # where its data begins
    return tuple(tensors)
