"""Token counts of one answer. Pure."""

from collections.abc import Sequence

from cardcage_dialect_openai.wire.chat import UsageObject
from cardcage_sdk.events import Usage

__all__ = ["UsageTally"]


class UsageTally:
    """Adds up the tokens of one answer: prompts once each, completions over all choices."""

    def __init__(self) -> None:
        self._prompt = 0
        self._completion = 0
        self._cached: int | None = None
        self._reasoning: int | None = None

    def add(self, choices: Sequence[Usage | None], *, accepted_tokens: int | None) -> None:
        """Add one request with the counts of its choices.

        Args:
            choices: Counts of each choice, None where unknown.
            accepted_tokens: Length of its prompt as told before it ran, for a runtime that counts nothing else.
        """
        known = [usage for usage in choices if usage is not None]
        self._prompt += max((usage.prompt_tokens for usage in known), default=accepted_tokens or 0)
        self._completion += sum(usage.completion_tokens for usage in known)
        # The first choice computed the prompt, the others share it: the least is what was really cached.
        cached = [usage.cached_tokens for usage in known if usage.cached_tokens is not None]
        if cached:
            self._cached = (self._cached or 0) + min(cached)
        reasoning = [usage.reasoning_tokens for usage in known if usage.reasoning_tokens is not None]
        if reasoning:
            self._reasoning = (self._reasoning or 0) + sum(reasoning)

    def encode(self) -> UsageObject:
        """The usage object; details that no runtime told are left out."""
        usage: UsageObject = {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._completion,
            "total_tokens": self._prompt + self._completion,
        }
        if self._cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self._cached}
        if self._reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self._reasoning}
        return usage
