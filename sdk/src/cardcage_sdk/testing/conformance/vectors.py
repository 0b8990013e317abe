"""Checks of embeddings and rerank."""

from __future__ import annotations

import asyncio
import math
import struct
from typing import TYPE_CHECKING, Any

from cardcage_sdk.capabilities import Feature, Task
from cardcage_sdk.embeddings import EmbedRequest, RerankRequest
from cardcage_sdk.errors import ContextLengthExceededError, UnsupportedError
from cardcage_sdk.testing.conformance.subject import DoesNotApplyError, Subject, expect

if TYPE_CHECKING:
    from cardcage_sdk.embeddings import EmbedResult

__all__ = ["CHECKS"]

_TEXTS = ("The sea is calm today.", "A train leaves at noon.", "Grüße aus Köln 🙂")
_SECONDS = 120.0


async def check_vectors(subject: Subject) -> None:
    """Each input has a vector of the declared length, of length 1, in order, and different inputs have different ones."""
    subject.need(Task.EMBED)
    result = await _embed(subject, *_TEXTS)
    vectors = _vectors(result)
    expect(len(vectors) == len(_TEXTS), f"{len(_TEXTS)} inputs have {len(vectors)} vectors")
    declared = subject.info.embedding_dimensions
    expect(declared == result.dimensions, f"embedding_dimensions is {declared}, vectors have {result.dimensions}")
    for text, item in zip(_TEXTS, vectors, strict=True):
        length = math.sqrt(math.fsum(value * value for value in item))
        expect(abs(length - 1.0) < 1e-3, f"the normalised vector of {text!r} has length {length:.4f}")
    expect(_cosine(vectors[0], vectors[1]) < 0.9999, "two different texts have the same vector")
    expect(len(result.prompt_tokens) == len(_TEXTS), "prompt_tokens does not have one number an input")
    expect(min(result.prompt_tokens) > 0, f"an input counts {min(result.prompt_tokens)} tokens")


async def check_batch_equals_single(subject: Subject) -> None:
    """A vector does not depend on what else is in the request."""
    subject.need(Task.EMBED)
    together = _vectors(await _embed(subject, *_TEXTS))
    for text, expected in zip(_TEXTS, together, strict=True):
        alone = _vectors(await _embed(subject, text))[0]
        likeness = _cosine(alone, expected)
        expect(likeness > 0.999, f"the vector of {text!r} alone and in a batch have cosine {likeness:.4f}")


async def check_dimensions(subject: Subject) -> None:
    """Vectors are cut to the dimensions asked for, and normalised again."""
    subject.need(Task.EMBED, Feature.DIMENSIONS)
    wanted = max(1, (subject.info.embedding_dimensions or 2) // 2)
    result = await _embed(subject, _TEXTS[0], dimensions=wanted)
    expect(result.dimensions == wanted, f"{wanted} dimensions were asked for, {result.dimensions} came")
    length = math.sqrt(math.fsum(value * value for value in _vectors(result)[0]))
    expect(abs(length - 1.0) < 1e-3, f"a vector cut to {wanted} dimensions has length {length:.4f}")


async def check_long_input(subject: Subject) -> None:
    """An input that is too long is refused, or cut where the request allows it."""
    subject.need(Task.EMBED)
    if subject.info.context_tokens is None:
        raise DoesNotApplyError("the engine does not know its context")
    text = "word " * (subject.info.context_tokens + 16)
    try:
        await _embed(subject, text)
    except ContextLengthExceededError:
        pass
    else:
        expect(False, f"an input of more than {subject.info.context_tokens} tokens was taken without truncate")
    result = await _embed(subject, text, truncate=True)
    expect(
        result.prompt_tokens[0] <= subject.info.context_tokens,
        f"a cut input still counts {result.prompt_tokens[0]} tokens",
    )


async def check_embeds_at_once(subject: Subject) -> None:
    """As many embedding requests as declared may be in flight, and each gets its own vectors."""
    subject.need(Task.EMBED)
    texts = [
        f"Text number {number} of several." for number in range(max(2, min(8, subject.capabilities.embed_in_flight)))
    ]
    alone = [_vectors(await _embed(subject, text))[0] for text in texts]
    if subject.capabilities.embed_in_flight < 2:
        raise DoesNotApplyError("one embedding request at a time is declared")
    together = await asyncio.gather(*(_embed(subject, text) for text in texts))
    for text, expected, result in zip(texts, alone, together, strict=True):
        expect(_cosine(expected, _vectors(result)[0]) > 0.999, f"beside others, {text!r} got another vector")


async def check_rerank(subject: Subject) -> None:
    """Each document has a score."""
    subject.need(Task.RERANK)
    request = RerankRequest(id="check-rerank", model="m", query="calm sea", documents=_TEXTS)
    async with asyncio.timeout(_SECONDS):
        result = await subject.connection.rerank(request)
    expect(len(result.scores) == len(_TEXTS), f"{len(_TEXTS)} documents have {len(result.scores)} scores")
    expect(result.scores[0] > result.scores[1], f"'{_TEXTS[1]}' scores higher for 'calm sea' than '{_TEXTS[0]}'")


async def check_undeclared_tasks(subject: Subject) -> None:
    """A task that is not declared is refused by the engine with UnsupportedError."""
    requests: dict[Task, Any] = {
        Task.CHAT: lambda: subject.chat(subject.request()),
        Task.EMBED: lambda: _embed(subject, "x"),
        Task.RERANK: lambda: subject.connection.rerank(RerankRequest(id="u", model="m", query="x", documents=("y",))),
    }
    missing = set(requests) - subject.capabilities.tasks
    if not missing:
        raise DoesNotApplyError("every task is declared")
    for task in sorted(missing):
        try:
            async with asyncio.timeout(_SECONDS):
                await requests[task]()
        except UnsupportedError:
            continue
        expect(False, f"'{task.value}' is not declared, and the engine does it all the same")


async def _embed(subject: Subject, *texts: str, **fields: Any) -> EmbedResult:
    request = EmbedRequest(id=subject.request().id, model="m", inputs=texts, **fields)
    async with asyncio.timeout(_SECONDS):
        result = await subject.connection.embed(request)
        await subject.connection.released(request.id)
    return result


def _vectors(result: EmbedResult) -> list[tuple[float, ...]]:
    size = 4 * result.dimensions
    return [
        struct.unpack(f"<{result.dimensions}f", result.vectors[start : start + size])
        for start in range(0, len(result.vectors), size)
    ]


def _cosine(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    product = math.fsum(a * b for a, b in zip(one, other, strict=True))
    return product / (math.hypot(*one) * math.hypot(*other) or 1.0)


CHECKS = [
    check_vectors,
    check_batch_equals_single,
    check_dimensions,
    check_long_input,
    check_embeds_at_once,
    check_rerank,
    check_undeclared_tasks,
]
