"""Answers of the legacy completions route: one or more requests (a prompt each) as one answer. Pure.

The choice of prompt `p` and alternative `c` has the index `p * n + c`.
"""

from collections.abc import Sequence

from cardcage_dialect_openai.encode import AnswerHead, encode_finish_reason, finite
from cardcage_dialect_openai.usage import UsageTally
from cardcage_dialect_openai.wire.completions import Completion, CompletionChoice, CompletionLogprobs
from cardcage_sdk.chat import ChatRequest
from cardcage_sdk.errors import EngineFailedError
from cardcage_sdk.events import Accepted, ChatEvent, Finished, ReasoningDelta, TextDelta, TokenLogprob, Usage

__all__ = ["CompletionAnswer", "CompletionChunks"]


class _Counts:
    """Which choices ended, and the tokens of them all."""

    def __init__(self, requests: Sequence[ChatRequest]) -> None:
        self._n = requests[0].n
        self._accepted_tokens: list[int | None] = [None] * len(requests)
        self.finished: list[Finished | None] = [None] * (len(requests) * self._n)

    def feed(self, prompt: int, event: ChatEvent) -> None:
        if isinstance(event, Accepted):
            self._accepted_tokens[prompt] = event.prompt_tokens
        elif isinstance(event, Finished):
            self.finished[prompt * self._n + event.choice] = event

    def tally(self) -> UsageTally:
        """The tokens of all prompts.

        Raises:
            EngineFailedError: A choice never finished, so the answer must not look whole.
        """
        tally = UsageTally()
        for prompt, accepted_tokens in enumerate(self._accepted_tokens):
            usages: list[Usage | None] = []
            for finished in self.finished[prompt * self._n : (prompt + 1) * self._n]:
                if finished is None:
                    raise EngineFailedError("The engine ended without finishing its answer")
                usages.append(finished.usage)
            tally.add(usages, accepted_tokens=accepted_tokens)
        return tally


def _encode_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> CompletionLogprobs:
    """The legacy shape: parallel lists, with the alternatives of each token as one object."""
    logprobs: CompletionLogprobs = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token in tokens:
        logprobs["tokens"].append(token.token)
        logprobs["token_logprobs"].append(finite(token.logprob))
        top = {alternative.token: finite(alternative.logprob) for alternative in token.top}
        logprobs["top_logprobs"].append(top | {token.token: finite(token.logprob)})
        logprobs["text_offset"].append(offset)
        offset += len(token.token)
    return logprobs


class CompletionAnswer:
    """Collects the events of all prompts into a whole answer."""

    def __init__(self, *, head: AnswerHead, requests: Sequence[ChatRequest], echo: bool) -> None:
        self._head = head
        self._n = requests[0].n
        self._with_logprobs = requests[0].logprobs is not None
        self._counts = _Counts(requests)
        self._texts = [[_echoed(request, echo)] for request in requests for _ in range(self._n)]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in self._texts]

    def feed(self, prompt: int, event: ChatEvent) -> None:
        """Take the next event of the request of a prompt."""
        self._counts.feed(prompt, event)
        # A continuation of raw text has no reasoning: whatever the pipeline took for it is text of the answer.
        if isinstance(event, TextDelta | ReasoningDelta):
            index = prompt * self._n + event.choice
            self._texts[index].append(event.text)
            self._logprobs[index].extend(event.logprobs)

    def encode(self) -> Completion:
        """The whole answer.

        Raises:
            EngineFailedError: The events ended before every choice did.
        """
        usage = self._counts.tally().encode()
        choices: list[CompletionChoice] = [
            {
                "index": index,
                "text": "".join(self._texts[index]),
                "logprobs": _encode_logprobs(self._logprobs[index], 0) if self._with_logprobs else None,
                "finish_reason": encode_finish_reason(finished.reason) if finished else None,
            }
            for index, finished in enumerate(self._counts.finished)
        ]
        return {
            "id": self._head.id,
            "object": "text_completion",
            "created": self._head.created,
            "model": self._head.model,
            "system_fingerprint": self._head.fingerprint,
            "choices": choices,
            "usage": usage,
        }


class CompletionChunks:
    """Makes the chunks of a streamed completion. The usage chunk comes only where it was asked for."""

    def __init__(
        self, *, head: AnswerHead, requests: Sequence[ChatRequest], echo: bool, include_usage: bool | None
    ) -> None:
        self._head = head
        self._n = requests[0].n
        self._with_logprobs = requests[0].logprobs is not None
        self._with_usage = bool(include_usage)
        self._counts = _Counts(requests)
        self._unsent = [_echoed(request, echo) for request in requests for _ in range(self._n)]
        self._offsets = [0] * len(self._unsent)

    def feed(self, prompt: int, event: ChatEvent) -> list[Completion]:
        """The chunks that one event makes, none or some."""
        self._counts.feed(prompt, event)
        if isinstance(event, TextDelta | ReasoningDelta) and (event.text or event.logprobs):
            return [*self._echo(prompt, event.choice), self._text(prompt, event.choice, event.text, event.logprobs)]
        if isinstance(event, Finished):
            reason = encode_finish_reason(event.reason)
            end = self._text(prompt, event.choice, "", finish_reason=reason)
            return [*self._echo(prompt, event.choice), end]
        return []

    def end(self) -> list[Completion]:
        """The usage chunk, or none.

        Raises:
            EngineFailedError: The events ended before every choice did.
        """
        tally = self._counts.tally()
        return [{**self._base(), "choices": [], "usage": tally.encode()}] if self._with_usage else []

    def _echo(self, prompt: int, choice: int) -> list[Completion]:
        index = prompt * self._n + choice
        text, self._unsent[index] = self._unsent[index], ""
        return [self._text(prompt, choice, text)] if text else []

    def _text(
        self,
        prompt: int,
        choice: int,
        text: str,
        tokens: Sequence[TokenLogprob] = (),
        *,
        finish_reason: str | None = None,
    ) -> Completion:
        index = prompt * self._n + choice
        logprobs = _encode_logprobs(tokens, self._offsets[index]) if self._with_logprobs and tokens else None
        self._offsets[index] += sum(len(token.token) for token in tokens)
        chunk: Completion = {
            **self._base(),
            "choices": [{"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}],
        }
        if self._with_usage:
            chunk["usage"] = None
        return chunk

    def _base(self) -> Completion:
        return {
            "id": self._head.id,
            "object": "text_completion",
            "created": self._head.created,
            "model": self._head.model,
            "system_fingerprint": self._head.fingerprint,
            "choices": [],
        }


def _echoed(request: ChatRequest, echo: bool) -> str:
    return request.prompt if echo and isinstance(request.prompt, str) else ""
