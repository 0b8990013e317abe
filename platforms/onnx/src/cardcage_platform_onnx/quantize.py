"""Make the `fast` variant of an embedding model: 8-bit weights and activations.

    python -m cardcage_platform_onnx.quantize MODEL_DIRECTORY

It writes `model_fast.onnx` beside the model's file, which this platform then offers as the variant `fast`. The file appears by
renaming when it is complete. Needs the extra `cardcage-platform-onnx[quantize]`.

A file whose weights are stored in 8 bits but computed with in float32 is first unfolded by onnxruntime's own optimiser, since the
quantiser only takes weights that are constants.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from cardcage_platform_onnx.model_files import EXACT, find_model
from cardcage_sdk.errors import CardcageError
from cardcage_sdk.models import ModelArtifact, ModelFile

__all__ = ["main", "quantize"]

FAST_FILE = "model_fast.onnx"


def quantize(source: Path, target: Path) -> None:
    """Write a quantised copy of an ONNX file.

    Args:
        source: The exact model.
        target: The new file; replaced where it exists.
    """
    import onnxruntime as ort
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory(prefix=".quantize-", dir=target.parent) as folder:
        plain = Path(folder) / "plain.onnx"
        options = ort.SessionOptions()
        # Constant folding only: operators of onnxruntime's own would not be quantised any more.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(plain)
        options.log_severity_level = 3
        ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        made = Path(folder) / target.name
        quantize_dynamic(plain, made, weight_type=QuantType.QInt8, per_channel=True)
        made.replace(target)


def main(arguments: list[str] | None = None) -> int:
    """Command line; prints the new file's path."""
    parser = argparse.ArgumentParser(
        prog="python -m cardcage_platform_onnx.quantize",
        description="Make the fast variant of an embedding model.",
    )
    parser.add_argument("directory", type=Path, help="model directory")
    directory = parser.parse_args(arguments).directory.absolute()
    files = tuple(
        ModelFile(name=file.relative_to(directory).as_posix(), size_bytes=file.stat().st_size)
        for file in directory.rglob("*")
        if file.is_file()
    )
    try:
        source = find_model(ModelArtifact(path=directory, name=directory.name, files=files)).onnx_file(EXACT)
    except CardcageError as error:
        print(f"quantize: {error.message}", file=sys.stderr)
        return 1
    target = source.with_name(FAST_FILE)
    quantize(source, target)
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
