"""A model on disk (`ModelArtifact`), how it is to be loaded (`LoadOptions`) and what came of it (`ModelInfo`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cardcage_sdk.capabilities import Capabilities
from cardcage_sdk.chat import JsonValue

__all__ = ["LoadOptions", "ModelArtifact", "ModelFacts", "ModelFile", "ModelInfo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One file of a model.

    Attributes:
        name: Path relative to the model directory, with forward slashes.
        size_bytes: Size on disk.
        sha256: Lower-case hex, or None where nobody recorded it.
    """

    name: str
    size_bytes: int
    sha256: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArtifact:
    """A model's files on disk with what its `model.toml` says; every value is already checked.

    Attributes:
        path: The model directory, or the single file that was named; absolute, exists, readable.
        name: Name without size, as `smollm2`.
        size: Size tag, as `135m`; may be empty.
        kind: `chat` or `embedding`, or None where no `model.toml` says it.
        platform: Platform id that `model.toml` names, or None.
        files: The files, relative to `path` (or the file itself).
        context_tokens: Context that `model.toml` gives, or None.
        chat_template: Jinja source that replaces the model's own, or None.
        tool_format: Name of a tool-call format of `cardcage_sdk.text`, or None for the default.
        reasoning_tags: Opening and closing tag around reasoning, or None for the default.
        settings_digest: Stands for what `model.toml` says beyond the files (template, system text, sample turns, defaults):
            sha256, lower-case hex; None where it says nothing.
        extra: Further keys of `model.toml` under the table of the platform's name.
    """

    path: Path
    name: str
    size: str = ""
    kind: str | None = None
    platform: str | None = None
    chips: tuple[str, ...] = ()
    files: tuple[ModelFile, ...] = ()
    context_tokens: int | None = None
    chat_template: str | None = None
    tool_format: str | None = None
    reasoning_tags: tuple[str, str] | None = None
    license: str | None = None
    source: str | None = None
    settings_digest: str | None = None
    extra: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """The directory that `files` are relative to."""
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How an engine is to load; made by core, the same for every platform.

    Attributes:
        slots: Requests that must be able to run at once now; 1 for engines that scale by process.
        max_slots: The most that `resize` will ever ask for.
        context_tokens: Context of each slot, or None for the engine's choice.
        cpu_threads: Threads that this worker may keep busy; core shares the cores out between loaded models.
        options: Validated by the platform's option model; plain JSON values.
    """

    slots: int = 1
    max_slots: int = 1
    context_tokens: int | None = None
    cpu_threads: int | None = None
    options: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What the engine says of the model that it loaded.

    Attributes:
        context_tokens: Most tokens of prompt and answer together, per slot.
        slots: Slots that can serve now.
        max_slots: Slots that `resize` can reach.
        capabilities: Replaces the platform's declaration where this model can do less (or more); None keeps it.
        embedding_dimensions: Length of a vector, for embedding models.
        has_chat_template: The model (or its `model.toml`) brings a chat template.
        tool_format: Tool-call format in the model's text, as `hermes`; None where it calls none.
        reasoning_tags: Tags that the text pipeline splits reasoning at; None where the model does not reason.
        parameter_count: Number of weights, if known.
        details: More facts for people (family, quantisation, ...), JSON values.
    """

    context_tokens: int | None = None
    slots: int = 1
    max_slots: int = 1
    capabilities: Capabilities | None = None
    embedding_dimensions: int | None = None
    has_chat_template: bool = False
    tool_format: str | None = None
    reasoning_tags: tuple[str, str] | None = None
    parameter_count: int | None = None
    details: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What a platform reads of a model from its files, without loading it; what it does not know is empty or None.

    Attributes:
        format: Of the weights, as `gguf`.
        family: Architecture, as `llama`.
        parameter_count: Number of weights.
        quantization: As `Q4_K_M`.
        context_tokens: Most context that the model was trained for.
        embedding_dimensions: Width of its hidden state, or of its vectors.
        capabilities: What it will be able to do once loaded; None takes the platform's declaration.
        reasoning_tags: Tags around what it thinks; None where it does not.
        chat_template: Jinja source of the template that will be used.
        metadata: What the files say of themselves, by key; long arrays are left out.
        tensors: Name, type and shape of each, as `{"name", "type", "shape"}`.
    """

    format: str = ""
    family: str = ""
    parameter_count: int | None = None
    quantization: str = ""
    context_tokens: int | None = None
    embedding_dimensions: int | None = None
    capabilities: Capabilities | None = None
    reasoning_tags: tuple[str, str] | None = None
    chat_template: str | None = None
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    tensors: tuple[Mapping[str, JsonValue], ...] = ()
