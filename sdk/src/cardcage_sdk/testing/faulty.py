"""Engines that fail as they are told, in any phase of their life. Worker process only; their platforms are in `platforms`."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from cardcage_sdk.errors import InvalidModelError
from cardcage_sdk.events import Finished, Text, TextDelta
from cardcage_sdk.testing.faults import FAULT_KINDS, FAULT_PHASES, IMPORT_VARIABLE, commit_fault
from cardcage_sdk.testing.scripted import ScriptedBatchEngine, ScriptedEngine
from cardcage_sdk.worker.loading import SELF_TEST_ID

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cardcage_sdk.chat import ChatRequest
    from cardcage_sdk.embeddings import EmbedRequest, EmbedResult
    from cardcage_sdk.engine import BatchOutput, Request
    from cardcage_sdk.events import Accepted, EngineOutput
    from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelInfo
    from cardcage_sdk.testing.script import Token

_Output = TypeVar("_Output")

__all__ = ["Fault", "FaultyBatchEngine", "FaultyEngine"]

# The one module of the sdk that may do something when it is imported: only a test that sets this variable wants it.
if _kind_at_import := os.environ.get(IMPORT_VARIABLE):
    commit_fault(_kind_at_import)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault; members of the model file or load options, beside those of the script.

    Attributes:
        kind: What goes wrong (`FaultKind`); None for nothing.
        phase: When (`FaultPhase`).
        after_tokens: In `decode`, how many tokens come before it.
        trigger: Only for requests whose last user text contains this; empty for all.
        amount_bytes: Memory of `memory` and `leak`.
    """

    kind: str | None = None
    phase: str = "decode"
    after_tokens: int = 2
    trigger: str = ""
    amount_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        """Refuse names that do not exist."""
        if self.kind not in {None, *FAULT_KINDS}:
            raise InvalidModelError(f"Unknown kind of fault '{self.kind}'; known are {', '.join(FAULT_KINDS)}")
        if self.phase not in FAULT_PHASES:
            raise InvalidModelError(f"Unknown phase '{self.phase}'; known are {', '.join(FAULT_PHASES)}")

    def strike(self, phase: str, request: Request | None = None) -> None:
        """Go wrong if it is time."""
        if self.is_due(phase, request) and self.kind is not None:
            commit_fault(self.kind, amount_bytes=self.amount_bytes)

    def is_due(self, phase: str, request: Request | None = None) -> bool:
        """It is this phase, and this request is meant. The self-test is a phase of its own, whatever the engine does."""
        if request is not None and request.id == SELF_TEST_ID:
            return self.phase == "self_test" and phase == "prefill"
        if phase != self.phase:
            return False
        return not self.trigger or self.trigger in getattr(request, "last_user_text", self.trigger)


def _read_fault(extra: object) -> Fault:
    names = {item.name for item in fields(Fault)}
    return Fault(**{name: value for name, value in dict(extra).items() if name in names})  # type: ignore[call-overload]


class FaultyEngine(ScriptedEngine):
    """A `ScriptedEngine` with a fault."""

    fault: Fault = Fault()

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Read script and fault."""
        info = super().load(artifact, options)
        self.fault = _read_fault(self.extra)
        self.fault.strike("load")
        return info

    def prepare(self, request: Request) -> Accepted:
        """Count, or fail."""
        self.fault.strike("prepare", request)
        return super().prepare(request)

    def chat(self, request: ChatRequest) -> Iterator[EngineOutput]:
        """Answer, with the fault in it."""
        self.fault.strike("prefill", request)
        is_due = self.fault.is_due("decode", request)
        for output in super().chat(request):
            if is_due and isinstance(output, Finished) and self.fault.kind == "lie_no_finished":
                return
            yield _lie(self.fault.kind, output) if is_due else output
        if is_due and self.fault.kind == "lie_after_finished":
            yield Text(" and one more thing")

    def embed(self, request: EmbedRequest) -> EmbedResult:
        """Make vectors, or fail."""
        self.fault.strike("prefill", request)
        return super().embed(request)

    def cancel(self, request_id: str) -> None:
        """End the wait, or fail."""
        self.fault.strike("cancel")
        super().cancel(request_id)

    def close(self) -> None:
        """Nothing, or fail."""
        self.fault.strike("close")
        super().close()

    def emit(self, request: ChatRequest, token: Token, number: int, choice: int) -> Text:
        """Say a token, or fail when enough were said."""
        if number == self.fault.after_tokens:
            self.fault.strike("decode", request)
        return super().emit(request, token, number, choice)


class FaultyBatchEngine(ScriptedBatchEngine):
    """A `ScriptedBatchEngine` with a fault."""

    fault: Fault = Fault()

    def __init__(self) -> None:
        super().__init__()
        self._lying: dict[str, bool] = {}
        self._after: list[str] = []

    def load(self, artifact: ModelArtifact, options: LoadOptions) -> ModelInfo:
        """Read script and fault."""
        info = super().load(artifact, options)
        self.fault = _read_fault(self.extra)
        self.fault.strike("load")
        return info

    def prepare(self, request: Request) -> Accepted:
        """Count, or fail."""
        self.fault.strike("prepare", request)
        return super().prepare(request)

    def add(self, request: Request) -> None:
        """Take a request, or fail."""
        self.fault.strike("prefill", request)
        self._lying[request.id] = self.fault.is_due("decode", request)
        super().add(request)

    def step(self) -> Sequence[tuple[str, BatchOutput]]:
        """Say one token of each, with the fault in it."""
        outputs: list[tuple[str, BatchOutput]] = [(request_id, Text(" more")) for request_id in self._after]
        self._after.clear()
        for request_id, output in super().step():
            is_due = self._lying.get(request_id, False)
            if is_due and isinstance(output, Finished):
                if self.fault.kind == "lie_no_finished":
                    continue
                if self.fault.kind == "lie_after_finished":
                    self._after.append(request_id)
            outputs.append((request_id, _lie(self.fault.kind, output) if is_due else output))
            if isinstance(output, Finished):
                self._lying.pop(request_id, None)
        return outputs

    def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Forget a request, or fail."""
        self.fault.strike("cancel")
        super().cancel(request_id, choice)

    def close(self) -> None:
        """Nothing, or fail."""
        self.fault.strike("close")
        super().close()

    def emit(self, request: ChatRequest, token: Token, number: int, choice: int) -> Text:
        """Say a token, or fail when enough were said."""
        if number == self.fault.after_tokens:
            self.fault.strike("decode", request)
        return super().emit(request, token, number, choice)


def _lie(kind: str | None, output: _Output) -> _Output | Text | TextDelta:
    """Change an output as the kind of lie wants it."""
    if isinstance(output, Text):
        if kind == "lie_parsed":
            return TextDelta("undeclared")
        if kind == "lie_choice":
            return Text(output.text, output.token_ids, output.logprobs, 99)
    return output
