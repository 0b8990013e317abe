"""Load options of the llama.cpp platform. Server process only."""

from __future__ import annotations

from typing import Literal

from cardcage_sdk.options import Field, PlatformOptions

__all__ = ["LlamaCppOptions"]


class LlamaCppOptions(PlatformOptions):
    """How llama.cpp is to load and run a model. The defaults are what measured best on CPUs with shared cores."""

    threads: int | None = Field(
        default=None,
        ge=1,
        le=256,
        description="Threads of this model at most. By default the server shares the cores out between loaded models.",
    )
    batch_tokens: int = Field(default=512, ge=32, le=8192, description="Rows computed in one step at most.")
    prefill_chunk_tokens: int = Field(
        default=128,
        ge=16,
        le=8192,
        description="Prompt tokens computed in one step at most while others generate.",
    )
    prefill_step_seconds: float = Field(
        default=0.15,
        ge=0.02,
        le=10.0,
        description="Seconds that a step with prompt tokens should take: their number follows the speed that is measured, up "
        "to batch_tokens, and while others generate half of the time and up to prefill_chunk_tokens. Smaller frees the slot "
        "of a cancelled request sooner and keeps text flowing; larger computes prompts a little faster.",
    )
    kv_unified: bool = Field(
        default=False,
        description="One key-value cache for all slots instead of one each. Each own is faster from two slots on.",
    )
    flash_attention: bool = Field(
        default=False,
        description="Flash attention. On CPUs it makes generation after some 200 tokens of context several times slower.",
    )
    use_extra_bufts: bool = Field(
        default=True,
        description="Repack weights for the CPU's matrix instructions (AMX and others). Off is slower but avoids faults of "
        "a compiler in that code; the server switches it off by itself when a load dies.",
    )
    openmp_wait_policy: Literal["default", "passive", "active"] = Field(
        default="default",
        description="What a thread does that waits for the others of its step. 'default' spins for about a millisecond, then "
        "sleeps. 'passive' sleeps at once, which is two to seven times slower on cores of their own. 'active' spins for "
        "ever, and so keeps cores busy even between requests.",
    )
    yield_cores: bool = Field(
        default=True,
        description="Use fewer threads while other processes want the cores, and take them back when cores lie idle. "
        "Spinning threads that are kept waiting are many times slower than fewer threads.",
    )
    check_tensors: bool = Field(default=False, description="Check the weights for invalid values while loading; slow.")
