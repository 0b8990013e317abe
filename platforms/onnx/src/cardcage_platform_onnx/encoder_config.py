"""What an encoder's own files say of pooling, length, prompts and labels, with the settings over them. Worker only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from cardcage_platform_onnx.model_files import read_json
from cardcage_platform_onnx.pooling import Pooling
from cardcage_sdk.errors import InvalidModelError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

    from cardcage_platform_onnx.settings import Settings
    from cardcage_sdk.models import ModelArtifact

__all__ = ["EncoderConfig", "read_encoder_config"]

DEFAULT_MAX_TOKENS = 512

# Positions of these begin after the padding token's, so two of `max_position_embeddings` are never used.
_OFFSET_POSITIONS = {"roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl"}

# A tokenizer without a limit writes a number of thirty digits.
_NO_LIMIT = 1_000_000

_ST_POOLING = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
# Modules of a sentence-transformers pipeline that are done here or are part of the graph.
_DONE_HERE = {"Transformer", "Pooling", "Normalize"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """How to use an encoder.

    Attributes:
        pooling: None where no file says it.
        max_tokens: Longest input, special tokens included.
        prefix: Text before every input.
        dimensions: Lengths that a vector may be cut to; empty forbids cutting unless `any_dimensions`.
        extra_modules: Steps after pooling that the files ask for and that only the graph could do.
        family: Architecture by the model's own word, for people.
    """

    pooling: Pooling | None
    max_tokens: int
    prefix: str = ""
    dimensions: tuple[int, ...] = ()
    any_dimensions: bool = False
    extra_modules: tuple[str, ...] = ()
    family: str = ""

    def check_pipeline(self, *, is_pooled: bool) -> Pooling:
        """The pooling to use on a graph whose output is, or is not, one vector a text.

        Raises:
            UnsupportedModelError: The files ask for a step that is neither in the graph nor done here.
            InvalidModelError: Nobody says how to pool.
        """
        if is_pooled:
            return "none"
        if self.extra_modules:
            raise UnsupportedModelError(
                f"The model's pipeline goes on after pooling ({', '.join(self.extra_modules)}), and the ONNX file ends before "
                "it; export the model with its sentence_embedding output",
                param="model_path",
            )
        if self.pooling is None or self.pooling == "none":
            raise InvalidModelError(
                "Nothing says how this model's token vectors become one: neither sentence-transformers files nor model.toml. "
                'Give the option pooling, or write it under [onnx] in model.toml: "mean", "cls" or "last"',
                param="model_path",
            )
        return self.pooling


def read_encoder_config(directory: Path, artifact: ModelArtifact, settings: Settings) -> EncoderConfig:
    """Read the directory.

    Raises:
        InvalidModelError: A file is malformed, or the prompt that was named does not exist.
        UnsupportedModelError: A pooling that is not known here.
    """
    config = read_json(directory / "config.json")
    family = str(config.get("model_type") or "")
    modules = _modules(directory)
    pooling: Pooling | None = settings.pooling
    if pooling is None:
        pooling = _sentence_transformers_pooling(directory, modules)
    cuts = settings.dimensions
    if not cuts and isinstance(config.get("matryoshka_dimensions"), list):
        cuts = tuple(sorted(int(size) for size in config["matryoshka_dimensions"]))
    return EncoderConfig(
        pooling=pooling,
        max_tokens=_max_tokens(directory, artifact, settings, config, family),
        prefix=_prefix(directory, settings),
        dimensions=cuts,
        any_dimensions=settings.matryoshka or config.get("is_matryoshka") is True,
        extra_modules=tuple(kind for kind, _ in modules if kind not in _DONE_HERE),
        family=family,
    )


def _modules(directory: Path) -> list[tuple[str, str]]:
    """Kinds and paths of a sentence-transformers pipeline; empty where the directory is none."""
    import json

    path = directory / "modules.json"
    if not path.is_file():
        return []
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
        return [(str(item["type"]).rpartition(".")[2], str(item["path"])) for item in listed]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidModelError(f"'{path}' is not a list of modules: {error}", param="model_path") from error


def _sentence_transformers_pooling(directory: Path, modules: list[tuple[str, str]]) -> Pooling | None:
    places = [path for kind, path in modules if kind == "Pooling"]
    place = directory / (places[0] if places else "1_Pooling") / "config.json"
    if ".." in place.relative_to(directory).parts:
        raise InvalidModelError("modules.json leads out of the model directory", param="model_path")
    config = read_json(place)
    if not config:
        return None
    named = config.get("pooling_mode")
    if isinstance(named, str):
        name = {"lasttoken": "last"}.get(named, named)
        if name not in get_args(Pooling):
            raise UnsupportedModelError(f"Pooling '{named}' is not known here", param="model_path")
        return name  # type: ignore[return-value]  # compared with the values of the type just above
    on = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if len(on) != 1 or on[0] not in _ST_POOLING:
        raise UnsupportedModelError(f"Pooling by {' and '.join(on) or 'nothing'} is not known here", param="model_path")
    return _ST_POOLING[on[0]]  # type: ignore[return-value]  # the table's values are those of the type


def _max_tokens(
    directory: Path, artifact: ModelArtifact, settings: Settings, config: dict[str, Any], family: str
) -> int:
    if settings.max_tokens is not None:
        return settings.max_tokens
    if artifact.context_tokens is not None:
        return artifact.context_tokens
    positions = _whole(config.get("max_position_embeddings"))
    if positions is not None and family in _OFFSET_POSITIONS:
        positions -= 2
    for file, key in (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length")):
        limit = _whole(read_json(directory / file).get(key))
        if limit is not None and limit < _NO_LIMIT:
            return min(limit, positions) if positions is not None else limit
    return positions if positions is not None else DEFAULT_MAX_TOKENS


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1 else None


def _prefix(directory: Path, settings: Settings) -> str:
    if settings.prefix is not None and settings.prompt is None:
        return settings.prefix
    config = read_json(directory / "config_sentence_transformers.json")
    prompts = config.get("prompts") or {}
    name = settings.prompt if settings.prompt is not None else config.get("default_prompt_name")
    if not name:
        return ""
    if name not in prompts:
        have = ", ".join(prompts) or "none"
        raise InvalidModelError(f"The model has no prompt '{name}'; it has: {have}", param="options")
    return str(prompts[name])
