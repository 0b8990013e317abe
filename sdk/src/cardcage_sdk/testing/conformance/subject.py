"""What a check is given, and how it says what is wrong."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.chat import ChatRequest, Message, Sampling, TextPart
from cardcage_sdk.events import Finished, ReasoningDelta, TextDelta, ToolCallDelta

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.events import ChatEvent, TokenLogprob
    from cardcage_sdk.ipc.client import WorkerConnection
    from cardcage_sdk.models import LoadOptions, ModelArtifact, ModelInfo
    from cardcage_sdk.platform import Platform
    from cardcage_sdk.testing.launch import LaunchedWorker

__all__ = ["Answer", "Check", "ConformanceError", "DoesNotApplyError", "Subject", "expect", "joined_arguments"]

_ANSWER_SECONDS = 120.0


class ConformanceError(AssertionError):
    """A platform does not do what it declares; the message says what was declared, what was asked and what came."""


class DoesNotApplyError(Exception):
    """A check has nothing to look at; the message says why."""


def expect(condition: object, message: str) -> None:
    """Go on only if it is so.

    Raises:
        ConformanceError: It is not.
    """
    if not condition:
        raise ConformanceError(message)


@dataclass(slots=True)
class Answer:
    """The events of one finished chat request."""

    events: list[ChatEvent] = field(default_factory=list)

    def text(self, choice: int = 0) -> str:
        """The answer's text."""
        return "".join(event.text for event in self.events if isinstance(event, TextDelta) and event.choice == choice)

    def reasoning(self, choice: int = 0) -> str:
        """What was thought."""
        return "".join(
            event.text for event in self.events if isinstance(event, ReasoningDelta) and event.choice == choice
        )

    def calls(self) -> list[ToolCallDelta]:
        """Pieces of tool calls."""
        return [event for event in self.events if isinstance(event, ToolCallDelta)]

    def logprobs(self) -> list[TokenLogprob]:
        """Log-probabilities of the answer's tokens, in order."""
        return [
            token for event in self.events if isinstance(event, (TextDelta, ReasoningDelta)) for token in event.logprobs
        ]

    def finished(self, choice: int = 0) -> Finished:
        """How a choice ended."""
        found = [event for event in self.events if isinstance(event, Finished) and event.choice == choice]
        expect(len(found) == 1, f"choice {choice} has {len(found)} Finished events; it must have exactly one")
        return found[0]


def joined_arguments(calls: list[ToolCallDelta]) -> list[tuple[str, str]]:
    """Name and arguments of each call, from its pieces."""
    out: dict[int, tuple[str, str]] = {}
    for piece in calls:
        name, arguments = out.get(piece.index, (piece.name or "", ""))
        out[piece.index] = (name, arguments + piece.arguments)
    return list(out.values())


@dataclass(slots=True, kw_only=True)
class Subject:
    """A platform with one loaded model in a worker of its own."""

    platform: Platform
    artifact: ModelArtifact
    worker: LaunchedWorker
    options: Mapping[str, JsonValue]
    load_options: LoadOptions
    prompt: str
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def info(self) -> ModelInfo:
        """What the engine says of the model."""
        return self.worker.info

    @property
    def connection(self) -> WorkerConnection:
        """The engine."""
        return self.worker.connection

    @property
    def capabilities(self) -> Capabilities:
        """What is declared for this model."""
        return self.info.capabilities or self.platform.capabilities

    def request(self, text: str | None = None, **fields: Any) -> ChatRequest:
        """A greedy request that shares nothing with others; fields of `Sampling` and of `ChatRequest` by name."""
        names = Sampling.__dataclass_fields__
        sampling = {
            "temperature": 0.0,
            "max_tokens": 24,
            **{name: fields.pop(name) for name in [*fields] if name in names},
        }
        if "prompt" not in fields:
            fields["messages"] = (Message(role="user", content=(TextPart(text or self.prompt),)),)
        return ChatRequest(
            id=f"check-{next(self._numbers)}",
            model=self.artifact.name,
            sampling=Sampling(**sampling),
            **{"reuse_prefix": False, **fields},
        )

    async def chat(self, request: ChatRequest) -> Answer:
        """Prepare and run a request to its end, as core does, and wait until the engine let go of it."""
        answer = Answer()
        async with asyncio.timeout(_ANSWER_SECONDS):
            accepted = await self.connection.prepare(request)
            async for event in self.connection.chat(request, accepted=accepted):
                answer.events.append(event)
            await self.connection.released(request.id)
        return answer

    def need(self, *needed: Task | Feature) -> None:
        """Go on only where all of this is declared.

        Raises:
            DoesNotApplyError: It is not.
        """
        for item in needed:
            if item not in self.capabilities.tasks | self.capabilities.features:
                raise DoesNotApplyError(f"'{item.value}' is not declared")


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        run: Raises `ConformanceError` where the platform fails, `DoesNotApplyError` where there is nothing to look at.
    """

    name: str
    run: Callable[[Subject], Awaitable[None]]

    @property
    def summary(self) -> str:
        """What is checked, in a sentence."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]


Checks: TypeAlias = "list[Callable[[Subject], Awaitable[None]]]"
