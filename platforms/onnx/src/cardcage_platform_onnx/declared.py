"""What the platform declares, for plugin and engines alike; no option model here, so that a worker loads no pydantic."""

from __future__ import annotations

from cardcage_sdk.capabilities import Capabilities, Feature, Task

__all__ = ["CAPABILITIES", "CHAT_FEATURES", "CHAT_SAMPLING", "EMBED_IN_FLIGHT", "INSTALL_GENAI_COMMAND"]

INSTALL_GENAI_COMMAND = "pip install 'cardcage-platform-onnx[genai]'"

EMBED_IN_FLIGHT = 64
"""Embedding and rerank requests that the engine takes at once, to batch across them."""

CHAT_FEATURES = frozenset(
    {
        Feature.CHOICES,
        Feature.LOGPROBS,
        Feature.LOGIT_BIAS,
        Feature.SEED,
        Feature.JSON_OBJECT,
        Feature.JSON_SCHEMA,
        Feature.TOOLS,
        Feature.FORCED_TOOLS,
        Feature.RAW_PROMPT,
        Feature.TOKEN_PROMPT,
        Feature.THINKING,
    }
)
CHAT_SAMPLING = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repeat_penalty",
        "repeat_last_n",
        "frequency_penalty",
        "presence_penalty",
    }
)

# All that any model of this platform can do; a loaded model says its own part of it.
CAPABILITIES = Capabilities(
    tasks=frozenset({Task.CHAT, Task.EMBED, Task.RERANK}),
    features=CHAT_FEATURES | {Feature.DIMENSIONS},
    sampling=CHAT_SAMPLING,
    max_choices=4,
    embed_in_flight=EMBED_IN_FLIGHT,
    cancel_seconds=2.0,
)
