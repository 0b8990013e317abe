"""A platform that answers with the reversed question: the whole of a third-party platform, in one file.

Copy it to start your own. Try it without installing anything::

    echo "any text" > hello.minimal
    cardcage serve --plugin examples/minimal_platform.py
    cardcage run ./hello.minimal "one two three"

To ship it, put the two classes into a package `cardcage_platform_<name>` (the platform in `plugin.py`, the engine in
`engine.py`) and name the module of `register_platforms` in its metadata::

    [project.entry-points."cardcage.platforms"]
    minimal = "cardcage_platform_minimal.plugin"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cardcage_sdk import (
    Accepted,
    Capabilities,
    ChatRequest,
    Engine,
    EngineOutput,
    Finished,
    MemoryEstimate,
    ModelInfo,
    Platform,
    ProbeReport,
    Task,
    Text,
    hookimpl,
)
from cardcage_sdk.errors import ContextLengthExceededError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.models import LoadOptions, ModelArtifact

# CONTRACT: the (major, minor) version of the SDK's contract that this file was written for. A packaged plugin may leave it
# out: the range on cardcage-sdk in its metadata then says the same.
CARDCAGE_CONTRACT = (0, 1)

CONTEXT_TOKENS = 2048
"""Here a word is a token."""


class MinimalPlatform(Platform):
    """Lives in the server process. Must not import the runtime: this file's top is imported there."""

    # CONTRACT: lower case, and equal to the entry point's name.
    name = "minimal"
    display_name = "Minimal"
    # CONTRACT: "module:Class", imported in the worker process only. For an unpackaged file the module is the file's name.
    engine = "minimal_platform:MinimalEngine"
    # CONTRACT: what is not declared here is refused by core before it reaches the engine; what is declared, the
    # conformance kit tests. Two things need no declaration: stop strings, which the SDK sees to, and `max_tokens`, which the
    # engine must keep.
    capabilities = Capabilities(tasks=frozenset({Task.CHAT}))

    def probe(self) -> ProbeReport:
        """CONTRACT: cheap, without side effect, never raises; where it says no, it says why and what to do."""
        return ProbeReport.available(devices=())

    def claims(self, artifact: ModelArtifact) -> bool:
        """CONTRACT: asked only where the model's `model.toml` names no platform; decides by the files alone."""
        return any(file.name.endswith(".minimal") for file in artifact.files)

    def estimate(self, artifact: ModelArtifact, options: Mapping[str, JsonValue]) -> MemoryEstimate:
        """CONTRACT: bytes for one instance, on the device and on the host."""
        return MemoryEstimate(device_bytes=0, host_bytes=artifact.size_bytes)


class MinimalEngine(Engine):
    """Lives alone in a worker process. If it crashes, the server lives and the request gets an error."""

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """CONTRACT: return only when the first request could run at full speed."""
        # Import the vendor's runtime here, not at the top.
        return ModelInfo(context_tokens=CONTEXT_TOKENS, has_chat_template=True)

    def prepare(self, request: ChatRequest) -> Accepted:  # type: ignore[override]  # it does no other task
        """CONTRACT: before the request queues: count its prompt and refuse what cannot fit. Starts nothing."""
        words = len(request.last_user_text.split())
        if words >= CONTEXT_TOKENS:
            raise ContextLengthExceededError(prompt_tokens=words, context_tokens=CONTEXT_TOKENS)
        return Accepted(prompt_tokens=words)

    def chat(self, request: ChatRequest) -> Iterator[EngineOutput]:
        """CONTRACT: yield each piece as soon as it exists, then exactly one `Finished`. Being closed early means: stop."""
        words = request.last_user_text.split()[::-1]
        limit = request.sampling.max_tokens
        for word in words[:limit]:
            yield Text(f"{word} ")
        yield Finished(reason="length" if limit is not None and limit < len(words) else "stop")


@hookimpl
def register_platforms() -> Sequence[type[Platform]]:
    """CONTRACT: called once at start-up; declares, and does nothing else."""
    return [MinimalPlatform]
