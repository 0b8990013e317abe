"""Checks of free text generation."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from cardcage_sdk.capabilities import Feature, Task
from cardcage_sdk.errors import ContextLengthExceededError
from cardcage_sdk.events import TextDelta
from cardcage_sdk.testing.conformance.subject import DoesNotApplyError, Subject, expect

if TYPE_CHECKING:
    from cardcage_sdk.events import ChatEvent

__all__ = ["CHECKS"]

_SAMPLING: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.05,
    "repeat_penalty": 1.1,
    "repeat_last_n": 16,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
}


async def check_answer(subject: Subject) -> None:
    """A plain request is answered with text, one Finished and true counts."""
    subject.need(Task.CHAT)
    request = subject.request()
    accepted = await subject.connection.prepare(request)
    answer = await subject.chat(request)
    finished = answer.finished()
    expect(answer.text() or answer.reasoning(), "the answer is empty")
    expect(finished.reason in {"stop", "length"}, f"a plain answer ends with reason '{finished.reason}'")
    expect(finished.usage is not None, "Finished has no usage")
    usage = finished.usage
    assert usage is not None
    # An engine need not know; the worker says 0 then. One that counts in prepare() has to count here, too.
    expect(usage.prompt_tokens >= 0, f"usage says {usage.prompt_tokens} prompt tokens")
    expect(
        0 < usage.completion_tokens <= 24,
        f"usage says {usage.completion_tokens} completion tokens, asked for at most 24",
    )
    if accepted.prompt_tokens is not None:
        expect(
            accepted.prompt_tokens == usage.prompt_tokens,
            f"prepare() counts {accepted.prompt_tokens} prompt tokens, usage says {usage.prompt_tokens}",
        )
    if usage.cached_tokens is not None:
        expect(usage.cached_tokens <= usage.prompt_tokens, "more prompt tokens are cached than there are")


async def check_greedy_is_repeatable(subject: Subject) -> None:
    """At temperature 0, alone and without reuse of other requests' state, the same request has the same answer."""
    subject.need(Task.CHAT)
    first, second = [(await subject.chat(subject.request())).text() for _ in range(2)]
    expect(first == second, f"two greedy answers differ: {first!r} and {second!r}")


async def check_pieces(subject: Subject) -> None:
    """Each piece of a stream is whole text of its own, and none is empty."""
    subject.need(Task.CHAT)
    answer = await subject.chat(subject.request("Answer with a few emoji and Chinese words: 你好 🙂"))
    for event in answer.events:
        if isinstance(event, TextDelta):
            expect(event.text, "a piece of text is empty")
            expect(_is_utf8(event.text), f"a piece holds half a character: {event.text!r}")


async def check_stop_string(subject: Subject) -> None:
    """A stop string ends the answer, is no part of it, and frees the engine."""
    subject.need(Task.CHAT)
    plain = await subject.chat(subject.request())
    text = plain.text()
    if len(text) < 8:
        raise DoesNotApplyError(f"the greedy answer {text!r} is too short to stop in")
    start = len(text) // 2
    stop = text[start : start + 3]
    before = text[: text.index(stop)]
    request = subject.request(stop=(stop,))
    answer = await subject.chat(request)
    finished = answer.finished()
    expect(answer.text() == before, f"stop {stop!r} in {text!r}: expected {before!r}, got {answer.text()!r}")
    expect(finished.reason == "stop", f"an answer ended by a stop string has reason '{finished.reason}'")
    expect(finished.stop_sequence == stop, f"stop_sequence is {finished.stop_sequence!r}, not {stop!r}")
    expect((await subject.connection.ping()).running == 0, "the request still runs after its stop string")


async def check_max_tokens(subject: Subject) -> None:
    """max_tokens cuts the answer, and the reason says so."""
    subject.need(Task.CHAT)
    answer = await subject.chat(subject.request(max_tokens=2))
    finished = answer.finished()
    assert finished.usage is not None
    expect(
        finished.usage.completion_tokens <= 2,
        f"max_tokens 2 gave {finished.usage.completion_tokens} tokens: {answer.text()!r}",
    )
    longer = await subject.chat(subject.request(max_tokens=8))
    usage = longer.finished().usage
    if usage is not None and usage.completion_tokens > 2:
        expect(finished.reason == "length", f"an answer cut by max_tokens has reason '{finished.reason}', not 'length'")


async def check_context_overflow(subject: Subject) -> None:
    """A prompt that does not fit is refused with both numbers, by prepare() and by the engine itself."""
    subject.need(Task.CHAT)
    if subject.info.context_tokens is None:
        raise DoesNotApplyError("the engine does not know its context")
    text = "word " * (subject.info.context_tokens + 16)
    for how, attempt in (("prepare()", subject.connection.prepare), ("the engine", subject.chat)):
        try:
            await attempt(subject.request(text))
        except ContextLengthExceededError as error:
            expect(
                error.prompt_tokens > 0 and error.context_tokens > 0,
                f"{how} refuses a long prompt without the numbers: {error.message}",
            )
        else:
            expect(False, f"{how} takes a prompt of more than {subject.info.context_tokens} tokens")
    answer = await subject.chat(subject.request())
    expect(answer.events, "after a refused prompt the next request has no answer")


async def check_parallel(subject: Subject) -> None:
    """As many requests as declared run at once and all end well."""
    subject.need(Task.CHAT)
    is_slots = subject.platform.scaling.unit == "slots"
    places = subject.info.slots if is_slots else subject.capabilities.max_parallel
    count = min(places, 8)
    if count < 2:
        raise DoesNotApplyError("one request at a time is declared")
    answers = await asyncio.gather(*(subject.chat(subject.request()) for _ in range(count)))
    for answer in answers:
        expect(answer.finished().reason in {"stop", "length"}, "a request that ran beside others did not end well")
        expect(answer.text() or answer.reasoning(), "a request that ran beside others has an empty answer")


async def check_seed(subject: Subject) -> None:
    """The same seed gives the same text."""
    subject.need(Task.CHAT, Feature.SEED)
    for seed in (1, 2, 2**31 + 5, -3):
        texts = [(await subject.chat(subject.request(temperature=1.5, seed=seed))).text() for _ in range(2)]
        expect(texts[0] == texts[1], f"seed {seed} is declared and gave two texts: {texts[0]!r} and {texts[1]!r}")


async def check_sampling_parameters(subject: Subject) -> None:
    """Each declared sampling parameter is taken."""
    subject.need(Task.CHAT)
    for name in sorted(subject.capabilities.sampling):
        answer = await subject.chat(subject.request(max_tokens=3, **{name: _SAMPLING[name]}))
        expect(answer.finished().reason, f"a request with {name} did not end")


async def check_logprobs(subject: Subject) -> None:
    """Log-probabilities come one a token, finite, ordered, with as many alternatives as asked for."""
    subject.need(Task.CHAT, Feature.LOGPROBS)
    answer = await subject.chat(subject.request(logprobs=3))
    tokens = answer.logprobs()
    expect(tokens, "logprobs are declared and asked for, and none came")
    for token in tokens:
        expect(math.isfinite(token.logprob) and token.logprob <= 0.001, f"logprob {token.logprob} of {token.token!r}")
        expect(len(token.top) == 3, f"3 alternatives were asked for, {len(token.top)} came with {token.token!r}")
        numbers = [other.logprob for other in token.top]
        expect(numbers == sorted(numbers, reverse=True), f"alternatives of {token.token!r} are not in order: {numbers}")
        expect(
            token.logprob >= numbers[0] - 0.001,
            f"at temperature 0 {token.token!r} was chosen over {token.top[0].token!r}",
        )
    if not answer.reasoning() and not answer.calls():
        data = b"".join(token.data for token in tokens)
        expect(
            data.decode("utf-8", "replace").startswith(answer.text())
            or answer.text().startswith(data.decode("utf-8", "replace")),
            f"the bytes of the tokens {data!r} do not spell the answer {answer.text()!r}",
        )
    none = await subject.chat(subject.request(logprobs=0))
    expect(
        none.logprobs() and not any(token.top for token in none.logprobs()),
        "logprobs 0 must give tokens without alternatives",
    )


async def check_logit_bias(subject: Subject) -> None:
    """A token with bias -100 is not chosen."""
    subject.need(Task.CHAT, Feature.LOGIT_BIAS, Feature.LOGPROBS)
    tokens = (await subject.chat(subject.request(logprobs=1))).logprobs()
    expect(tokens, "logprobs are declared and asked for, and none came")
    banned = tokens[0]
    others = (await subject.chat(subject.request(logprobs=1, logit_bias={banned.token_id: -100.0}))).logprobs()
    expect(
        banned.token_id not in {token.token_id for token in others},
        f"token {banned.token_id} ({banned.token!r}) has logit_bias -100 and was chosen all the same",
    )


async def check_choices(subject: Subject) -> None:
    """As many choices as asked for come, each told apart and each with its own Finished."""
    subject.need(Task.CHAT, Feature.CHOICES)
    count = min(3, subject.capabilities.max_choices)
    try:
        answer = await subject.chat(subject.request(n=count))
    except TimeoutError:
        expect(False, f"n = {count} is declared, and not all choices ended")
        raise
    for choice in range(count):
        expect(answer.finished(choice).usage is not None, f"choice {choice} has no usage")
        expect(answer.text(choice) or answer.reasoning(choice), f"choice {choice} of {count} is empty")


async def check_raw_prompts(subject: Subject) -> None:
    """Raw prompts, of text and of token ids, are continued."""
    subject.need(Task.CHAT, Feature.RAW_PROMPT)
    answer = await subject.chat(subject.request(prompt="Once upon a time"))
    expect(answer.finished().reason in {"stop", "length"}, "a raw prompt did not end well")
    if Feature.TOKEN_PROMPT in subject.capabilities.features:
        request = subject.request(prompt=(1, 2, 3))
        accepted = await subject.connection.prepare(request)
        if accepted.prompt_tokens is not None:
            expect(accepted.prompt_tokens == 3, f"a prompt of 3 token ids counts as {accepted.prompt_tokens} tokens")
        expect(
            (await subject.chat(request)).finished().reason in {"stop", "length"},
            "a prompt of token ids did not end well",
        )


async def check_thinking(subject: Subject) -> None:
    """With thinking switched off nothing is thought."""
    subject.need(Task.CHAT, Feature.THINKING)
    answer = await subject.chat(subject.request(enable_thinking=False))
    expect(not answer.reasoning(), f"enable_thinking is False, and it thought: {answer.reasoning()!r}")


async def check_leaving(subject: Subject) -> None:
    """A client that leaves in mid-answer frees the engine within the declared time."""
    subject.need(Task.CHAT)
    request = subject.request(max_tokens=512)
    stream = subject.connection.chat(request)
    event: ChatEvent | None = await anext(stream)
    while event is not None and not isinstance(event, TextDelta):
        event = await anext(stream, None)
    await stream.aclose()
    await _released_in_time(subject, request.id, "in mid-answer")


async def check_leaving_in_prefill(subject: Subject) -> None:
    """A client that leaves before the first token frees the engine within the declared time."""
    subject.need(Task.CHAT)
    room = subject.info.context_tokens or 256
    request = subject.request("word " * max(1, min(room // 2, 400)), max_tokens=64)
    running = asyncio.ensure_future(anext(subject.connection.chat(request)))
    await asyncio.sleep(0)
    await subject.connection.ping()
    running.cancel()
    await asyncio.wait([running])
    await _released_in_time(subject, request.id, "before the first token")


async def _released_in_time(subject: Subject, request_id: str, when: str) -> None:
    seconds = subject.capabilities.cancel_seconds
    try:
        async with asyncio.timeout(seconds):
            await subject.connection.released(request_id)
    except TimeoutError:
        expect(False, f"cancelled {when}, the request still runs after the declared cancel_seconds of {seconds:g}")
    answer = await subject.chat(subject.request(max_tokens=4))
    expect(answer.finished().reason in {"stop", "length"}, f"after a request was cancelled {when}, the next one fails")


def _is_utf8(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


CHECKS = [
    check_answer,
    check_greedy_is_repeatable,
    check_pieces,
    check_stop_string,
    check_max_tokens,
    check_context_overflow,
    check_parallel,
    check_seed,
    check_sampling_parameters,
    check_logprobs,
    check_logit_bias,
    check_choices,
    check_raw_prompts,
    check_thinking,
    check_leaving,
    check_leaving_in_prefill,
]
