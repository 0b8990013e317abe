"""Generation defaults: how their layers merge, and how they fill a request. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from cardcage_sdk.capabilities import SAMPLING_PARAMETERS, Capabilities, Feature
from cardcage_sdk.chat import Message, Sampling, TextPart
from cardcage_sdk.service import GenerationDefaults

if TYPE_CHECKING:
    from cardcage_sdk.chat import ChatRequest

__all__ = ["fill_request", "merge_defaults"]


def merge_defaults(*layers: GenerationDefaults) -> GenerationDefaults:
    """Merge layers, the weakest first: what a later one says counts, where it is silent an earlier one does."""
    merged = GenerationDefaults()
    for layer in layers:
        merged = GenerationDefaults(
            sampling=_over(merged.sampling, layer.sampling),
            max_context_len=merged.max_context_len if layer.max_context_len is None else layer.max_context_len,
            enable_thinking=merged.enable_thinking if layer.enable_thinking is None else layer.enable_thinking,
            system=merged.system if layer.system is None else layer.system,
            messages=layer.messages or merged.messages,
        )
    return merged


def fill_request(request: ChatRequest, defaults: GenerationDefaults, capabilities: Capabilities) -> ChatRequest:
    """Fill what a request is silent about.

    A default for something that the model does not declare is left out: the operator's default is a wish for all models,
    and only what a client itself asks for is refused where it cannot be had.
    """
    usable = {name: value for name, value in _spoken(defaults.sampling).items() if _is_declared(name, capabilities)}
    sampling = _over(Sampling(**usable), request.sampling)
    enable_thinking = request.enable_thinking
    if enable_thinking is None and Feature.THINKING in capabilities.features:
        enable_thinking = defaults.enable_thinking
    return dataclasses.replace(
        request, sampling=sampling, enable_thinking=enable_thinking, messages=_opened(request, defaults)
    )


def _opened(request: ChatRequest, defaults: GenerationDefaults) -> tuple[Message, ...]:
    """The conversation behind the model's own system text, unless the client has one, and its sample turns."""
    if not request.messages:
        return request.messages
    first = request.messages[0]
    if first.role == "system":
        return (first, *defaults.messages, *request.messages[1:])
    system = () if defaults.system is None else (Message(role="system", content=(TextPart(defaults.system),)),)
    return (*system, *defaults.messages, *request.messages)


def _is_declared(name: str, capabilities: Capabilities) -> bool:
    if name in SAMPLING_PARAMETERS:
        return name in capabilities.sampling
    needed = {"seed": Feature.SEED, "logit_bias": Feature.LOGIT_BIAS}.get(name)
    return needed is None or needed in capabilities.features


def _spoken(sampling: Sampling) -> dict[str, Any]:
    values = {field.name: getattr(sampling, field.name) for field in dataclasses.fields(sampling)}
    return {name: value for name, value in values.items() if value is not None}


def _over(weak: Sampling, strong: Sampling) -> Sampling:
    return dataclasses.replace(weak, **_spoken(strong))
