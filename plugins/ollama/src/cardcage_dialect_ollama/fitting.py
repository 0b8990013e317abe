"""Prompts that are longer than the context: what goes, and how that is found out.

Only an engine can count tokens, so a shorter prompt is found by asking: a request is accepted with its length, or refused with
it, before it runs. Halving finds the longest that fits in a few questions.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, replace

from cardcage_sdk.chat import ChatRequest, ImagePart, TextPart
from cardcage_sdk.errors import ContextLengthExceededError, InvalidRequestError
from cardcage_sdk.events import Accepted, ChatEvent
from cardcage_sdk.service import Service

__all__ = ["PROMPT_TOO_LONG", "chat_that_fits", "kept_tokens"]

PROMPT_TOO_LONG = "the prompt is longer than the context length currently available to the model"

_CUT_PRECISION_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class _Count:
    """What an engine says of a prompt: its length, and whether it can be answered."""

    tokens: int | None
    fits: bool


def kept_tokens(context_tokens: int, keep: int) -> int:
    """Tokens that remain of a prompt that is cut in the middle: half of what is not kept in front goes."""
    keep = min(keep, context_tokens // 2)
    return context_tokens - (context_tokens - keep) // 2


async def chat_that_fits(
    service: Service, request: ChatRequest, *, may_cut: bool, keep_tokens: int
) -> AsyncGenerator[ChatEvent, None]:
    """Run a request; where its prompt is too long and may be cut, run the longest one that fits.

    Of a conversation the oldest turns go first; system messages and the last turn stay. Where these alone are too long, or
    there is but one text, the middle of that text goes.

    Raises:
        ContextLengthExceededError: It may not be cut, or it would not help.
        CardcageError: As `Service.chat`.
    """
    try:
        async with contextlib.aclosing(service.chat(request)) as events:
            async for event in events:
                yield event
    except ContextLengthExceededError as error:
        if not may_cut or not error.context_tokens:
            raise
        shorter = await _shorten(service, request, error, keep_tokens)
    else:
        return
    async with contextlib.aclosing(service.chat(shorter)) as events:
        async for event in events:
            yield event


async def _shorten(
    service: Service, request: ChatRequest, error: ContextLengthExceededError, keep_tokens: int
) -> ChatRequest:
    questions = 0

    async def count(candidate: ChatRequest) -> _Count:
        nonlocal questions
        questions += 1
        return await _count(service, replace(candidate, id=f"{request.id}-fit{questions}"))

    if request.prompt is None:
        fitting = await _drop_turns(request, count)
        if fitting is not None:
            return fitting
        request = _without_turns(request, len(_droppable(request)))
    if any(isinstance(part, ImagePart) for message in request.messages for part in message.content):
        raise error  # an image is not text, and which of its tokens could go
    target = kept_tokens(error.context_tokens, keep_tokens)
    return await _cut_text(request, count, target=target, keep_tokens=keep_tokens, error=error)


async def _count(service: Service, candidate: ChatRequest) -> _Count:
    try:
        async with contextlib.aclosing(service.chat(candidate)) as events:
            async for event in events:
                if isinstance(event, Accepted):
                    return _Count(event.prompt_tokens, fits=True)
    except ContextLengthExceededError as error:
        return _Count(error.prompt_tokens, fits=False)
    except InvalidRequestError:
        # A template may refuse a conversation that begins in the middle of a call and its answer.
        return _Count(None, fits=False)
    return _Count(None, fits=False)


_Counter = Callable[[ChatRequest], Awaitable[_Count]]


def _droppable(request: ChatRequest) -> list[int]:
    """Places of the turns that may go, the oldest first."""
    return [place for place, message in enumerate(request.messages[:-1]) if message.role != "system"]


def _without_turns(request: ChatRequest, count: int) -> ChatRequest:
    gone = set(_droppable(request)[:count])
    return replace(
        request, messages=tuple(message for place, message in enumerate(request.messages) if place not in gone)
    )


async def _drop_turns(request: ChatRequest, count: _Counter) -> ChatRequest | None:
    """The longest conversation that fits without its oldest turns, or None."""
    most = len(_droppable(request))
    if not most or not (await count(_without_turns(request, most))).fits:
        return None
    low, high = 0, most  # `low` turns fewer do not fit, `high` do
    while high - low > 1:
        middle = (low + high) // 2
        if (await count(_without_turns(request, middle))).fits:
            high = middle
        else:
            low = middle
    return _without_turns(request, high)


async def _cut_text(
    request: ChatRequest, count: _Counter, *, target: int, keep_tokens: int, error: ContextLengthExceededError
) -> ChatRequest:
    """Take the middle out of the one text, so that about `target` tokens remain."""
    if isinstance(request.prompt, tuple):
        tokens = request.prompt
        return replace(request, prompt=(*tokens[:keep_tokens], *tokens[len(tokens) - (target - keep_tokens) :]))
    text = request.prompt if request.prompt is not None else request.messages[-1].text
    # How long a token is in this text is known roughly; where the cut lies exactly nobody can tell.
    head = round(keep_tokens * len(text) / max(1, error.prompt_tokens))
    low, high = 0, len(text) - head  # a tail of `low` characters is short enough, one of `high` is not
    smallest = await count(_with_text(request, text[:head]))
    if not smallest.fits:
        raise error
    while high - low > _CUT_PRECISION_CHARACTERS:
        middle = (low + high) // 2
        counted = await count(_with_text(request, text[:head] + text[len(text) - middle :]))
        is_short = counted.fits and (counted.tokens is None or counted.tokens <= target)
        low, high = (middle, high) if is_short else (low, middle)
    return _with_text(request, text[:head] + text[len(text) - low :])


def _with_text(request: ChatRequest, text: str) -> ChatRequest:
    if request.prompt is not None:
        return replace(request, prompt=text)
    last = replace(request.messages[-1], content=(TextPart(text),))
    return replace(request, messages=(*request.messages[:-1], last))
