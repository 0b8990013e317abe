"""What a model directory holds, from its files alone. Standard library only: the server asks this too."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cardcage_sdk.errors import InvalidModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.models import ModelArtifact

__all__ = ["EXACT", "FAST", "GENAI_CONFIG", "TOKENIZER", "ModelFiles", "find_model", "is_ours", "read_json"]

GENAI_CONFIG = "genai_config.json"
TOKENIZER = "tokenizer.json"
EXACT = "exact"
"""The default variant: a text's vector does not depend on what is computed beside it."""
FAST = "fast"

MAX_JSON_BYTES = 16 << 20

# Where exporters put the one model of a directory, first wins.
_DEFAULT_NAMES = ("model.onnx", "onnx/model.onnx")

# Files of quantised activations, as `quantize` of this package and the common exporters name them.
_FAST_NAME = re.compile(r"(^|/)model[._-](fast|quantized|q?int8.*|dynamic.*)\.onnx$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """The parts of a model directory that this platform reads.

    Attributes:
        kind: `genai` for a directory of onnxruntime-genai, else `encoder`.
        variants: ONNX files by the name of the variant, `exact` first; empty for `genai`.
        tokenizer: `tokenizer.json`, wherever it lies.
    """

    kind: Literal["genai", "encoder"]
    directory: Path
    variants: Mapping[str, Path] = field(default_factory=dict)
    tokenizer: Path | None = None

    def onnx_file(self, variant: str) -> Path:
        """The file of a variant.

        Raises:
            InvalidModelError: The model has no such variant; the message says which it has.
        """
        if variant not in self.variants:
            have = ", ".join(self.variants) or "none"
            raise InvalidModelError(f"The model has no variant '{variant}'; it has: {have}", param="options")
        return self.variants[variant]


def is_ours(artifact: ModelArtifact) -> bool:
    """A genai directory, or an ONNX file with a tokenizer beside it; every other ONNX file is someone else's."""
    names = {file.name for file in artifact.files} | _siblings(artifact)
    if GENAI_CONFIG in names:
        return True
    # Seq2seq and text generation exports come in several files, one of which says so; they are no encoders.
    if any("decoder" in file.name.rpartition("/")[2] for file in artifact.files if file.name.endswith(".onnx")):
        return False
    has_tokenizer = any(name == TOKENIZER or name.endswith("/" + TOKENIZER) for name in names)
    return has_tokenizer and any(file.name.endswith(".onnx") for file in artifact.files)


def find_model(artifact: ModelArtifact) -> ModelFiles:
    """Read the directory.

    Raises:
        InvalidModelError: Files are missing, or more than one could be the model; the message says what to write.
    """
    directory = artifact.directory
    if (directory / GENAI_CONFIG).is_file():
        return ModelFiles(kind="genai", directory=directory, tokenizer=directory / TOKENIZER)
    tokenizer = next((p for p in (directory / TOKENIZER, directory / "onnx" / TOKENIZER) if p.is_file()), None)
    if tokenizer is None:
        raise InvalidModelError(f"'{directory}' has no {TOKENIZER}; an embedding model needs one", param="model_path")
    return ModelFiles(kind="encoder", directory=directory, variants=_variants(artifact), tokenizer=tokenizer)


def read_json(path: Path) -> dict[str, JsonValue]:
    """A JSON object of the model directory; an absent file is an empty one.

    Raises:
        InvalidModelError: It is no JSON object, or absurdly large.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise InvalidModelError(f"'{path}' is larger than {MAX_JSON_BYTES} bytes", param="model_path")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidModelError(f"'{path}' cannot be read: {error}", param="model_path") from error
    if not isinstance(value, dict):
        raise InvalidModelError(f"'{path}' is not a JSON object", param="model_path")
    return value


def _siblings(artifact: ModelArtifact) -> set[str]:
    """Where a single file was named, the tokenizer beside it counts."""
    if artifact.path.is_dir():
        return set()
    return {name for name in (TOKENIZER, GENAI_CONFIG) if (artifact.directory / name).is_file()}


def _variants(artifact: ModelArtifact) -> dict[str, Path]:
    directory = artifact.directory
    if artifact.path.is_file() and artifact.path.suffix == ".onnx":
        return {EXACT: artifact.path}
    names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.onnx"))
    named = artifact.extra.get("variants", {})
    if not isinstance(named, dict) or not all(isinstance(value, str) for value in named.values()):
        raise InvalidModelError("[onnx.variants] must be a table of file names", param="model_path")
    main = artifact.extra.get("model_file")
    chosen = dict(named)
    if main is not None:
        chosen[EXACT] = main
    for variant, name in chosen.items():
        if name not in names:
            have = ", ".join(names) or "none"
            raise InvalidModelError(
                f"model.toml names '{name}' as variant '{variant}', but the directory's ONNX files are: {have}",
                param="model_path",
            )
    fast = [name for name in names if _FAST_NAME.search(name)]
    if FAST not in chosen and len(fast) == 1 and fast[0] != chosen.get(EXACT):
        chosen[FAST] = fast[0]
    if EXACT not in chosen:
        rest = [name for name in names if name not in chosen.values() and name not in fast]
        default = next((name for name in _DEFAULT_NAMES if name in rest), rest[0] if len(rest) == 1 else None)
        if default is None and len(names) == 1:
            default = names[0]  # the only model that there is; the engine finds out whether it is exact
        if default is None:
            have = ", ".join(names) or "none"
            raise InvalidModelError(
                f"Which ONNX file is the model? Write model_file under [onnx] in model.toml; there are: {have}",
                param="model_path",
            )
        chosen[EXACT] = default
    return {variant: directory / chosen[variant] for variant in sorted(chosen, key=lambda name: (name != EXACT, name))}
