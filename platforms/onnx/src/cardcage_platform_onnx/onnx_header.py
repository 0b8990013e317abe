"""Facts of an ONNX file without any library: inputs, outputs, weights. Reads the structure and skips the weights.

An ONNX file is one protobuf message, so this walks its fields by tag and length. The numbers are those of `onnx.proto3`,
which are frozen by that format's own rules.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["OnnxHeader", "OnnxHeaderError", "TensorShape", "read_onnx_header"]

MAX_NODES = 1_000_000

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Bytes of one element by ONNX's data type; 4-bit types are packed in pairs.
_ELEMENT_BYTES = {
    1: 4,
    2: 1,
    3: 1,
    4: 2,
    5: 2,
    6: 4,
    7: 8,
    9: 1,
    10: 2,
    11: 8,
    12: 4,
    13: 8,
    16: 2,
    17: 1,
    18: 1,
    21: 0.5,
    22: 0.5,
}
_INT8_TYPES = frozenset({2, 3})


class OnnxHeaderError(ValueError):
    """The file is no ONNX model, or is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShape:
    """An input or output of the graph.

    Attributes:
        dimensions: Sizes; a dimension without a fixed size is None.
        symbols: Names of the dimensions without a fixed size; None for the others.
    """

    name: str
    dimensions: tuple[int | None, ...]
    symbols: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxHeader:
    """What the graph says of itself.

    Attributes:
        operators: Names of all operators in the graph.
        parameter_count: Elements of all weights.
        weight_bytes: Bytes of all weights as stored, here or in a data file beside the model.
        int8_elements: Elements of 8-bit weights.
    """

    inputs: tuple[TensorShape, ...]
    outputs: tuple[TensorShape, ...]
    operators: frozenset[str]
    parameter_count: int
    weight_bytes: int
    int8_elements: int

    @property
    def quantises_activations(self) -> bool:
        """Activations are quantised with a range taken over the whole batch, so rows of a batch affect each other."""
        return "DynamicQuantizeLinear" in self.operators or "DynamicQuantizeMatMul" in self.operators

    @property
    def loaded_weight_bytes(self) -> int:
        """Bytes of the weights once loaded: 8-bit weights that are multiplied as float32 are unfolded to that."""
        stays_int8 = bool(self.operators & {"MatMulInteger", "DynamicQuantizeMatMul", "QLinearMatMul", "MatMulNBits"})
        return self.weight_bytes if stays_int8 else self.weight_bytes + 3 * self.int8_elements


def read_onnx_header(path: Path) -> OnnxHeader:
    """Walk the file once.

    Raises:
        OnnxHeaderError: It is no ONNX model, or is cut off.
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        end = path.stat().st_size
        for field, value in _fields(file, end):
            if field == 7 and isinstance(value, tuple):
                return _graph(file, *value)
    raise OnnxHeaderError(f"'{path}' holds no ONNX graph")


def _graph(file: BinaryIO, start: int, end: int) -> OnnxHeader:
    inputs: list[TensorShape] = []
    outputs: list[TensorShape] = []
    operators: set[str] = set()
    names: set[str] = set()
    parameters = int8 = 0
    stored = 0.0
    file.seek(start)
    for field, value in _fields(file, end):
        if not isinstance(value, tuple):
            continue
        if field == 1 and len(operators) < MAX_NODES:
            operators.add(_text_field(file, value, 4))
        elif field == 5:
            name, elements, data_type = _tensor(file, value)
            names.add(name)
            parameters += elements
            stored += elements * _ELEMENT_BYTES.get(data_type, 4)
            int8 += elements if data_type in _INT8_TYPES else 0
        elif field == 11:
            inputs.append(_value_info(file, value))
        elif field == 12:
            outputs.append(_value_info(file, value))
        file.seek(value[1])
    return OnnxHeader(
        # Old exporters list the weights among the inputs.
        inputs=tuple(shape for shape in inputs if shape.name not in names),
        outputs=tuple(outputs),
        operators=frozenset(operators),
        parameter_count=parameters,
        weight_bytes=int(stored),
        int8_elements=int8,
    )


def _tensor(file: BinaryIO, span: tuple[int, int]) -> tuple[str, int, int]:
    elements, data_type, name = 1, 0, ""
    file.seek(span[0])
    for field, value in _fields(file, span[1]):
        if field == 1:
            for dimension in _repeated_varints(file, value):
                elements *= dimension
        elif field == 2 and isinstance(value, int):
            data_type = value
        elif field == 8 and isinstance(value, tuple):
            name = _text(file, value)
        if isinstance(value, tuple):
            file.seek(value[1])
    return name, elements, data_type


def _value_info(file: BinaryIO, span: tuple[int, int]) -> TensorShape:
    name = _text_field(file, span, 1)
    dimensions: list[int | None] = []
    symbols: list[str | None] = []
    # ValueInfo.type (2) -> Type.tensor_type (1) -> Tensor.shape (2) -> Shape.dim (1)*, each with dim_value (1) or dim_param (2)
    shape = _descend(file, span, (2, 1, 2))
    if shape is not None:
        file.seek(shape[0])
        for field, value in _fields(file, shape[1]):
            if field == 1 and isinstance(value, tuple):
                file.seek(value[0])
                sizes = [size for number, size in _fields(file, value[1]) if number == 1 and isinstance(size, int)]
                size = sizes[0] if sizes and sizes[0] > 0 else None
                dimensions.append(size)
                symbols.append(_text_field(file, value, 2) or None if size is None else None)
                file.seek(value[1])
    return TensorShape(name=name, dimensions=tuple(dimensions), symbols=tuple(symbols))


def _descend(file: BinaryIO, span: tuple[int, int], path: tuple[int, ...]) -> tuple[int, int] | None:
    for wanted in path:
        file.seek(span[0])
        found = [value for field, value in _fields(file, span[1]) if field == wanted and isinstance(value, tuple)]
        if not found:
            return None
        span = found[0]
    return span


def _text_field(file: BinaryIO, span: tuple[int, int], wanted: int) -> str:
    found = _descend(file, span, (wanted,))
    return _text(file, found) if found is not None else ""


def _text(file: BinaryIO, span: tuple[int, int]) -> str:
    if span[1] - span[0] > 4096:
        raise OnnxHeaderError("A name in the ONNX file is longer than 4096 bytes")
    file.seek(span[0])
    return file.read(span[1] - span[0]).decode("utf-8", "replace")


def _repeated_varints(file: BinaryIO, value: int | tuple[int, int]) -> list[int]:
    if isinstance(value, int):
        return [value]
    file.seek(value[0])
    packed = io.BytesIO(file.read(min(value[1] - value[0], 4096)))
    size = len(packed.getbuffer())
    numbers = []
    while packed.tell() < size:
        numbers.append(_varint(packed))
    return numbers


def _fields(file: BinaryIO, end: int) -> Iterator[tuple[int, int | tuple[int, int]]]:
    """Fields from the current position to `end`: a number, or the span of what has a length. Leaves spans unread."""
    while file.tell() < end:
        key = _varint(file)
        field, kind = key >> 3, key & 7
        if field == 0:
            raise OnnxHeaderError("Not an ONNX file")
        if kind == _VARINT:
            yield field, _varint(file)
        elif kind == _BYTES:
            length = _varint(file)
            start = file.tell()
            if start + length > end:
                raise OnnxHeaderError("The ONNX file is cut off")
            yield field, (start, start + length)
            file.seek(start + length)
        elif kind in {_FIXED32, _FIXED64}:
            file.seek(4 if kind == _FIXED32 else 8, io.SEEK_CUR)
        else:
            raise OnnxHeaderError("Not an ONNX file")


def _varint(file: BinaryIO) -> int:
    number = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            raise OnnxHeaderError("The ONNX file is cut off")
        number |= (byte[0] & 0x7F) << shift
        if not byte[0] & 0x80:
            return number
    raise OnnxHeaderError("Not an ONNX file")
