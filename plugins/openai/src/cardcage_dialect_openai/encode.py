"""From neutral events and results to the API's answers. Pure: the caller gives time and identity.

`ChatAnswer` collects a whole answer, `ChatChunks` makes the chunks of a streamed one, from the same events, so that both
say the same.
"""

import base64
import hashlib
import json
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cardcage_dialect_openai.settings import Settings
from cardcage_dialect_openai.usage import UsageTally
from cardcage_dialect_openai.wire.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatLogprobs,
    TokenLogprobEntry,
)
from cardcage_dialect_openai.wire.management import LoadAnswer, ModelObject, PlatformEntry, UnloadAnswer
from cardcage_dialect_openai.wire.vectors import RerankAnswer, RerankResultEntry
from cardcage_sdk.embeddings import EmbedResult, RerankResult
from cardcage_sdk.errors import EngineFailedError
from cardcage_sdk.events import (
    Accepted,
    ChatEvent,
    Finished,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
)
from cardcage_sdk.service import LoadResult, ModelStatus, PlatformStatus
from cardcage_sdk.stream.jsontext import encode_json

__all__ = [
    "AnswerHead",
    "ChatAnswer",
    "ChatChunks",
    "encode_embedding",
    "encode_finish_reason",
    "encode_load",
    "encode_model",
    "encode_models",
    "encode_platforms",
    "encode_rerank",
    "encode_resize",
    "encode_unload",
    "fingerprint",
    "finite",
]

_FINISH_REASONS = {"stop", "length", "tool_calls", "content_filter"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What is the same in all chunks of one answer.

    Attributes:
        created: Unix time in whole seconds.
        fingerprint: Changes when the same seed may give another text.
    """

    id: str
    created: int
    model: str
    fingerprint: str


def fingerprint(status: ModelStatus) -> str:
    """What decides the text beside the request: platform, model files and what the engine says of itself."""
    facts = [status.platform, status.path, status.size_bytes, status.info.context_tokens, status.info.details]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return f"fp_{digest[:12]}"


# --- chat ---------------------------------------------------------------------------------------------------------


def encode_finish_reason(reason: str, *, has_calls: bool = False) -> str:
    """One of the reasons that typed clients accept; calls that the model ended by itself are always `tool_calls`."""
    known = reason if reason in _FINISH_REASONS else "stop"
    return "tool_calls" if has_calls and known == "stop" else known


def finite(value: float) -> float:
    """A log probability that JSON can hold: -9999 stands for minus infinity."""
    return max(-9999.0, min(0.0, value)) if value == value else -9999.0  # noqa: PLR0124 - false for NaN only


def _encode_token(token: TokenLogprob | TopLogprob) -> TokenLogprobEntry:
    return {"token": token.token, "logprob": finite(token.logprob), "bytes": list(token.data)}


def _encode_logprobs(tokens: Sequence[TokenLogprob]) -> ChatLogprobs:
    content: list[TokenLogprobEntry] = [
        {**_encode_token(token), "top_logprobs": [_encode_token(top) for top in token.top]} for token in tokens
    ]
    return {"content": content, "refusal": None}


class ChatAnswer:
    """Collects the events of one request into a whole answer."""

    def __init__(self, *, head: AnswerHead, settings: Settings, choices: int, logprobs: bool) -> None:
        self._head = head
        self._settings = settings
        self._with_logprobs = logprobs
        self._accepted_tokens: int | None = None
        self._texts: list[list[str]] = [[] for _ in range(choices)]
        self._reasonings: list[list[str]] = [[] for _ in range(choices)]
        self._calls: list[dict[int, dict[str, Any]]] = [{} for _ in range(choices)]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in range(choices)]
        self._finished: list[Finished | None] = [None] * choices

    def feed(self, event: ChatEvent) -> None:
        """Take the next event."""
        match event:
            case Accepted():
                self._accepted_tokens = event.prompt_tokens
            case TextDelta():
                self._texts[event.choice].append(event.text)
                self._logprobs[event.choice].extend(event.logprobs)
            case ReasoningDelta():
                self._reasonings[event.choice].append(event.text)
            case ToolCallDelta():
                call = self._calls[event.choice].setdefault(
                    event.index, {"id": event.id, "name": event.name, "text": []}
                )
                call["text"].append(event.arguments)
            case Finished():
                self._finished[event.choice] = event

    def encode(self) -> ChatCompletion:
        """The whole answer.

        Raises:
            EngineFailedError: The events ended before every choice did.
        """
        usage = UsageTally()
        usage.add(
            [finished.usage if finished else None for finished in self._finished], accepted_tokens=self._accepted_tokens
        )
        return {
            "id": self._head.id,
            "object": "chat.completion",
            "created": self._head.created,
            "model": self._head.model,
            "system_fingerprint": self._head.fingerprint,
            "choices": [self._choice(index, finished) for index, finished in enumerate(self._finished)],
            "usage": usage.encode(),
        }

    def _choice(self, index: int, finished: Finished | None) -> ChatChoice:
        if finished is None:
            raise EngineFailedError("The engine ended without finishing its answer")
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": "".join(call["text"])},
            }
            for _, call in sorted(self._calls[index].items())
        ]
        text = "".join(self._texts[index])
        message: dict[str, Any] = {"role": "assistant", "content": None if calls and not text else text}
        if self._reasonings[index]:
            message[self._settings.reasoning_field] = "".join(self._reasonings[index])
        if calls or self._settings.profile == "llamapi":
            message["tool_calls"] = calls
        choice: ChatChoice = {
            "index": index,
            "message": message,
            "finish_reason": encode_finish_reason(finished.reason, has_calls=bool(calls)),
        }
        if self._with_logprobs:
            choice["logprobs"] = _encode_logprobs(self._logprobs[index])
        elif self._settings.profile == "openai":
            choice["logprobs"] = None
        return choice


class ChatChunks:
    """Makes the chunks of one streamed answer, one list for each event.

    Per choice the order is: the role (in the first piece of it under the profile `llamapi`, alone under `openai`), deltas,
    a chunk with the finish reason and an empty delta. After all choices, `end` gives the usage chunk where one is due.
    """

    def __init__(
        self, *, head: AnswerHead, settings: Settings, choices: int, logprobs: bool, include_usage: bool | None
    ) -> None:
        self._head = head
        self._settings = settings
        self._with_logprobs = logprobs
        self._is_llamapi = settings.profile == "llamapi"
        # The page always sends the chunk; whoever says false gets none.
        self._with_usage = include_usage is not False if self._is_llamapi else bool(include_usage)
        self._accepted_tokens: int | None = None
        self._started = [False] * choices
        self._called: list[set[int]] = [set() for _ in range(choices)]
        self._finished: list[Finished | None] = [None] * choices

    def feed(self, event: ChatEvent) -> list[ChatChunk]:
        """The chunks that one event makes, none or some."""
        match event:
            case Accepted():
                self._accepted_tokens = event.prompt_tokens
            case TextDelta() if event.text or event.logprobs:
                return self._deltas(event.choice, {"content": event.text}, event.logprobs)
            case ReasoningDelta() if event.text:
                return self._deltas(event.choice, {self._settings.reasoning_field: event.text})
            case ToolCallDelta():
                return self._deltas(event.choice, {"tool_calls": [self._call(event)]})
            case Finished():
                self._finished[event.choice] = event
                start = [] if self._started[event.choice] else self._deltas(event.choice, {"content": ""})
                reason = encode_finish_reason(event.reason, has_calls=bool(self._called[event.choice]))
                return [*start, self._chunk(event.choice, {}, finish_reason=reason)]
        return []

    def end(self) -> list[ChatChunk]:
        """The usage chunk, or none; an answer with a choice that never finished must not look whole.

        Raises:
            EngineFailedError: The events ended before every choice did.
        """
        if None in self._finished:
            raise EngineFailedError("The engine ended without finishing its answer")
        if not self._with_usage:
            return []
        usage = UsageTally()
        usage.add(
            [finished.usage if finished else None for finished in self._finished], accepted_tokens=self._accepted_tokens
        )
        return [{**self._base(), "choices": [], "usage": usage.encode()}]

    def _deltas(self, choice: int, delta: dict[str, Any], logprobs: Sequence[TokenLogprob] = ()) -> list[ChatChunk]:
        if self._started[choice]:
            return [self._chunk(choice, delta, logprobs)]
        self._started[choice] = True
        if self._is_llamapi:
            return [self._chunk(choice, {"role": "assistant", **delta}, logprobs)]
        first = self._chunk(choice, {"role": "assistant", "content": ""})
        return [first] if delta == {"content": ""} and not logprobs else [first, self._chunk(choice, delta, logprobs)]

    def _call(self, event: ToolCallDelta) -> dict[str, Any]:
        """Id and name go out once: clients that add fragments up would double them."""
        if event.index in self._called[event.choice]:
            return {"index": event.index, "function": {"arguments": event.arguments}}
        self._called[event.choice].add(event.index)
        return {
            "index": event.index,
            "id": event.id,
            "type": "function",
            "function": {"name": event.name, "arguments": event.arguments},
        }

    def _chunk(
        self,
        choice: int,
        delta: dict[str, Any],
        logprobs: Sequence[TokenLogprob] = (),
        *,
        finish_reason: str | None = None,
    ) -> ChatChunk:
        entry: ChatChunkChoice = {"index": choice, "delta": delta, "finish_reason": finish_reason}
        if self._with_logprobs and logprobs:
            entry["logprobs"] = _encode_logprobs(logprobs)
        elif not self._is_llamapi:
            entry["logprobs"] = None
        chunk: ChatChunk = {**self._base(), "choices": [entry]}
        if self._with_usage and not self._is_llamapi:
            chunk["usage"] = None
        return chunk

    def _base(self) -> ChatChunk:
        return {
            "id": self._head.id,
            "object": "chat.completion.chunk",
            "created": self._head.created,
            "model": self._head.model,
            "system_fingerprint": self._head.fingerprint,
            "choices": [],
        }


# --- vectors ------------------------------------------------------------------------------------------------------


def encode_embedding(result: EmbedResult, index: int, encoding: Literal["float", "base64"]) -> bytes:
    """One entry of `data` as JSON.

    Base64 is the vector's little-endian float32 as it is. As numbers, nine digits are written: that is all a float32 holds.
    """
    size = result.dimensions * 4
    raw = result.vectors[index * size : (index + 1) * size]
    if encoding == "base64":
        value = f'"{base64.b64encode(raw).decode("ascii")}"'
    else:
        numbers = struct.unpack(f"<{result.dimensions}f", raw)
        value = encode_json([float(f"{number:.9g}") for number in numbers]).decode()
    return f'{{"object":"embedding","embedding":{value},"index":{index}}}'.encode()


def encode_rerank(
    result: RerankResult,
    *,
    request_id: str,
    model: str,
    documents: Sequence[str],
    top_n: int | None,
    return_documents: bool,
) -> RerankAnswer:
    """Documents by falling relevance; equal ones keep the order of the request."""
    order = sorted(range(len(result.scores)), key=lambda index: -result.scores[index])
    results: list[RerankResultEntry] = []
    for index in order[:top_n]:
        entry: RerankResultEntry = {"index": index, "relevance_score": result.scores[index]}
        if return_documents:
            entry["document"] = {"text": documents[index]}
        results.append(entry)
    usage = {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens}
    return {"id": request_id, "object": "list", "model": model, "results": results, "usage": usage}


# --- management ---------------------------------------------------------------------------------------------------


def encode_model(status: ModelStatus, settings: Settings) -> ModelObject:
    """A loaded model: OpenAI's fields, LlamaPi's, and ours."""
    return {
        "id": status.id,
        "object": "model",
        "created": int(status.loaded_at),
        "owned_by": f"llamapi/{status.platform}" if settings.profile == "llamapi" else "cardcage",
        "platform": status.platform,
        "instance_count": status.instance_count,
        "model_path": status.path,
        "model_kind": status.kind,
        "tasks": sorted(status.tasks),
        "name": status.name,
        "state": status.state,
        "requested_instance_count": status.requested_instance_count,
        "context_length": status.info.context_tokens,
    }


def encode_models(statuses: Sequence[ModelStatus], settings: Settings) -> dict[str, Any]:
    """The list of loaded models, in the order in which they were loaded."""
    return {"object": "list", "data": [encode_model(status, settings) for status in statuses]}


def encode_load(result: LoadResult) -> LoadAnswer:
    """The answer of a load that made at least one instance."""
    return _encode_counts(result, "loaded")


def encode_resize(result: LoadResult) -> LoadAnswer:
    """The answer of a resize."""
    return _encode_counts(result, "resized")


def _encode_counts(result: LoadResult, done: str) -> LoadAnswer:
    is_whole = result.actual_instance_count >= result.requested_instance_count
    return {
        "success": True,
        "message": f"model '{result.model_id}' {'' if is_whole else 'partially '}{done}",
        "requested_instance_count": result.requested_instance_count,
        "actual_instance_count": result.actual_instance_count,
    }


def encode_unload(model_id: str) -> UnloadAnswer:
    """The answer of an unload."""
    return {"success": True, "message": f"model '{model_id}' unloaded"}


def encode_platforms(platforms: Sequence[PlatformStatus]) -> Mapping[str, list[PlatformEntry]]:
    """Installed platforms with the chips that were found, counted by type."""
    return {"platforms": [_encode_platform(platform) for platform in platforms]}


def _encode_platform(platform: PlatformStatus) -> PlatformEntry:
    chips = Counter(device.chip for device in platform.devices)
    entry: PlatformEntry = {
        "id": platform.id,
        "display_name": platform.display_name,
        "available": platform.available,
        "detected_chips": [{"chip_type": chip, "count": count} for chip, count in chips.items()],
    }
    if platform.reason:
        entry["reason"] = platform.reason
    return entry
