"""A conversation with a model, and one answer of it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cardcage.cli.output import note

if TYPE_CHECKING:
    from cardcage.cli.client import ServerClient

__all__ = ["Answer", "Conversation", "ask", "print_stats"]


@dataclass(slots=True)
class Conversation:
    """What is sent with each request.

    Attributes:
        parameters: Sampling parameters that were set; what is not set is the server's default.
        messages: User and assistant turns so far, without the system prompt.
    """

    model: str = ""
    system: str | None = None
    parameters: dict[str, int | float] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def body(self) -> dict[str, Any]:
        """The request."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return {
            "model": self.model,
            "messages": [*first, *self.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.parameters,
        }


@dataclass(slots=True)
class Answer:
    """One answer as it was received; times are seconds since the request was sent."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float = 0.0
    was_stopped: bool = False

    @property
    def tokens_per_second(self) -> float | None:
        """Rate after the first token; None where there are fewer than two tokens."""
        if self.completion_tokens is None or self.completion_tokens < 2 or self.first_token_seconds is None:
            return None
        seconds = self.last_token_seconds - self.first_token_seconds
        return (self.completion_tokens - 1) / seconds if seconds > 0 else None

    def stats(self) -> dict[str, Any]:
        """What `--stats` tells."""
        first = self.first_token_seconds
        rate = self.tokens_per_second
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "first_token_ms": round(first * 1000, 1) if first is not None else None,
            "tokens_per_second": round(rate, 1) if rate is not None else None,
        }


def ask(client: ServerClient, conversation: Conversation, prompt: str, *, echo: bool) -> Answer:
    """Send the conversation with one more question; print the answer while it comes, and remember both.

    Ctrl+C closes the stream, which stops the engine; what came until then is the answer.

    Args:
        client: The server.
        conversation: Gets the question and the answer added.
        prompt: The question.
        echo: Print to standard output; on a terminal reasoning is shown dimmed, into a pipe goes the answer only.
    """
    conversation.messages.append({"role": "user", "content": prompt})
    answer = Answer()
    started = time.perf_counter()
    is_terminal = sys.stdout.isatty()
    try:
        for chunk in client.stream("/v1/chat/completions", conversation.body()):
            _take(answer, chunk, time.perf_counter() - started, echo=echo, is_terminal=is_terminal)
    except KeyboardInterrupt:
        answer.was_stopped = True
    except BaseException:
        conversation.messages.pop()
        raise
    finally:
        if echo and (answer.text or answer.reasoning):
            sys.stdout.write("\n")
            sys.stdout.flush()
    conversation.messages.append({"role": "assistant", "content": answer.text})
    return answer


def print_stats(answer: Answer) -> None:
    """The four numbers of `--stats`, on standard error, so that a piped answer stays clean."""
    stats = answer.stats()

    def shown(value: object, unit: str = "") -> str:
        return "unknown" if value is None else f"{value}{unit}"

    note(
        f"prompt tokens: {shown(stats['prompt_tokens'])}\n"
        f"completion tokens: {shown(stats['completion_tokens'])}\n"
        f"first token: {shown(stats['first_token_ms'], ' ms')}\n"
        f"token/s: {shown(stats['tokens_per_second'])}"
    )


def _take(answer: Answer, chunk: dict[str, Any], elapsed: float, *, echo: bool, is_terminal: bool) -> None:
    usage = chunk.get("usage")
    if usage:
        answer.prompt_tokens = usage.get("prompt_tokens")
        answer.completion_tokens = usage.get("completion_tokens")
    for choice in chunk.get("choices", []):
        delta = choice.get("delta") or {}
        text = delta.get("content") or ""
        reasoning = delta.get("reasoning_content") or ""
        if text or reasoning:
            if answer.first_token_seconds is None:
                answer.first_token_seconds = elapsed
            answer.last_token_seconds = elapsed
        if echo and reasoning and is_terminal:
            sys.stdout.write(f"\x1b[2m{reasoning}\x1b[0m")
        if echo and text:
            if answer.reasoning and not answer.text and is_terminal:
                sys.stdout.write("\n")
            sys.stdout.write(text)
        sys.stdout.flush()
        answer.text += text
        answer.reasoning += reasoning
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
