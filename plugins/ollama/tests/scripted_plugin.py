"""Loaded by the servers of these tests as a plugin file: platforms whose answers, and faults, stand in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.hookspecs import hookimpl
from cardcage_sdk.models import ModelArtifact, ModelFacts
from cardcage_sdk.platform import Platform
from cardcage_sdk.testing.platforms import FaultyPlatform, ScriptedPlatform
from cardcage_sdk.testing.script import SCRIPTED_CAPABILITIES
from cardcage_sdk.testing.scripted import ScriptedEngine

if TYPE_CHECKING:
    from cardcage_sdk.models import LoadOptions, ModelInfo


class ToldPlatform(ScriptedPlatform):
    """Scripted answers, with facts as a platform reads them of a file."""

    def describe(self, artifact: ModelArtifact) -> ModelFacts:
        return ModelFacts(
            format="gguf",
            family="llama",
            parameter_count=134_515_008,
            quantization="Q4_K_M",
            context_tokens=8192,
            embedding_dimensions=576,
            chat_template=artifact.chat_template or "{{ messages }}",
            metadata={"general.architecture": "llama", "general.name": "hidden", "tokenizer.ggml.scores": [0] * 9},
            tensors=({"name": "output.weight", "type": "Q6_K", "shape": [576, 49152]},),
        )


class PlainEngine(ScriptedEngine):
    """Chat and nothing else: no tools, no thinking, no schemas, no raw prompts."""

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        info = super().load(artifact, options)
        return replace(info, capabilities=PLAIN, reasoning_tags=None)


PLAIN = Capabilities(
    tasks=frozenset({Task.CHAT}),
    features=frozenset({Feature.SEED}),
    sampling=frozenset({"temperature", "top_p"}),
    max_parallel=SCRIPTED_CAPABILITIES.max_parallel,
)


class PlainPlatform(ScriptedPlatform):
    """Claims `*.plain.json`."""

    name: ClassVar[str] = "plain"
    engine: ClassVar[str] = "cardcage_plugin_scripted_plugin:PlainEngine"
    capabilities: ClassVar[Capabilities] = PLAIN
    suffix: ClassVar[str] = ".plain.json"


class PulledEngine(ScriptedEngine):
    """A script under the name that a registry's weights get."""

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        return super().load(replace(artifact, path=artifact.directory / "model.gguf"), options)


class PulledPlatform(ScriptedPlatform):
    """Claims `model.gguf` that is a script."""

    name: ClassVar[str] = "pulled"
    engine: ClassVar[str] = "cardcage_plugin_scripted_plugin:PulledEngine"
    file_patterns: ClassVar[tuple[str, ...]] = ("*.gguf",)

    def claims(self, artifact: ModelArtifact) -> bool:
        return any(
            file.name == "model.gguf" and (artifact.directory / file.name).read_bytes()[:1] == b"{"
            for file in artifact.files
        )


@hookimpl
def register_platforms() -> Sequence[type[Platform]]:
    """Declare them."""
    return [ToldPlatform, PlainPlatform, PulledPlatform, FaultyPlatform]
