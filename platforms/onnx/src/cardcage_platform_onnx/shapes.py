"""In which shapes a graph is run: as they come, in a few, or in one. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardcage_sdk.errors import UnsupportedModelError

if TYPE_CHECKING:
    from cardcage_platform_onnx.onnx_header import OnnxHeader

__all__ = ["fixed_dimensions", "padded_lengths"]

SHORTEST = 16


def fixed_dimensions(header: OnnxHeader, shape: tuple[int, int] | None) -> dict[str, int]:
    """Sizes of the free dimensions of a graph that is to run in one shape, by their names.

    Args:
        header: Of the graph; its `input_ids` say which name means rows and which tokens.
        shape: Rows and tokens; None leaves everything free.

    Raises:
        UnsupportedModelError: A free dimension has no name, or its name is neither that of rows nor of tokens.
    """
    if shape is None:
        return {}
    ids = [tensor for tensor in header.inputs if tensor.name == "input_ids"]
    pairs = [pair for tensor in ids for pair in zip(tensor.symbols, shape, strict=True)]
    sizes = {symbol: size for symbol, size in pairs if symbol is not None}
    for tensor in header.inputs:
        for dimension, symbol in zip(tensor.dimensions, tensor.symbols, strict=True):
            if dimension is None and symbol not in sizes:
                raise UnsupportedModelError(
                    f"Input '{tensor.name}' has a dimension that fixed_shape says nothing of", param="model_path"
                )
    return sizes


def padded_lengths(
    max_tokens: int, *, fixed: int | None, wanted: tuple[int, ...], compiles_shapes: bool
) -> tuple[int, ...]:
    """Lengths that texts are padded to, ascending; empty where any will do.

    Args:
        max_tokens: Longest text.
        fixed: The one length that the graph takes, or None.
        wanted: Those of the model's settings.
        compiles_shapes: Each new length costs a compilation, so powers of two are enough.
    """
    if fixed is not None:
        return (fixed,)
    if wanted or not compiles_shapes:
        return tuple(sorted(wanted))
    lengths = [SHORTEST]
    while lengths[-1] < max_tokens:
        lengths.append(lengths[-1] * 2)
    return (*lengths[:-1], min(lengths[-1], max(max_tokens, SHORTEST)))
