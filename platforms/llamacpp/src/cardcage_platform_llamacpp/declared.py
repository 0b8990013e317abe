"""What models of this platform can do; read by the server and by the worker, which must not import the option model."""

from __future__ import annotations

from cardcage_sdk.capabilities import SAMPLING_PARAMETERS, Capabilities, Feature, Task

__all__ = ["CAPABILITIES"]

CAPABILITIES = Capabilities(
    tasks=frozenset({Task.CHAT, Task.EMBED}),
    features=frozenset(
        {
            Feature.CHOICES,
            Feature.LOGPROBS,
            Feature.LOGIT_BIAS,
            Feature.SEED,
            Feature.JSON_OBJECT,
            Feature.JSON_SCHEMA,
            Feature.GRAMMAR,
            Feature.TOOLS,
            Feature.FORCED_TOOLS,
            Feature.RAW_PROMPT,
            Feature.TOKEN_PROMPT,
            Feature.THINKING,
            Feature.DIMENSIONS,
        }
    ),
    sampling=SAMPLING_PARAMETERS,
    max_choices=8,
    embed_in_flight=32,
    cancel_seconds=2.0,
)
