"""`options` of a request and `parameters` of a model, towards neutral. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import structlog

from cardcage_dialect_ollama.settings import Settings
from cardcage_sdk.capabilities import Capabilities
from cardcage_sdk.chat import Sampling
from cardcage_sdk.errors import InvalidOptionError
from cardcage_sdk.service import GenerationDefaults

__all__ = ["DEFAULTS", "Options", "decode_options", "fill_sampling", "parameters_of"]

DEFAULTS = Sampling(
    temperature=0.8,
    top_k=40,
    top_p=0.9,
    min_p=0.0,
    repeat_last_n=64,
    repeat_penalty=1.0,
    presence_penalty=0.0,
    frequency_penalty=0.0,
)
"""Ollama's own, for what neither the request nor the operator nor the model says."""

_INTEGERS = {"num_ctx", "num_keep", "seed", "num_predict", "top_k", "repeat_last_n"}
_FLOATS = {"top_p", "min_p", "typical_p", "temperature", "repeat_penalty", "presence_penalty", "frequency_penalty"}
_RUNTIME: Mapping[str, tuple[str, object]] = {
    "num_batch": ("integer", None),
    "num_gpu": ("integer", -1),
    "main_gpu": ("integer", None),
    "use_mmap": ("boolean", None),
    "num_thread": ("integer", 0),
    "draft_num_predict": ("integer", 0),
}
"""Options of a runtime: their type, and the value that asks for nothing."""

_MAX_INT32 = 2**31 - 1

_log = structlog.get_logger("cardcage.dialect.ollama")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What options say.

    Attributes:
        context_tokens: Context that the model is to be loaded with, or None.
        keep_tokens: Tokens at the front that stay when a prompt is cut.
        is_unbounded: The answer may be as long as the context allows, whatever the defaults say.
    """

    sampling: Sampling = field(default_factory=Sampling)
    context_tokens: int | None = None
    keep_tokens: int = 4
    is_unbounded: bool = False

    def to_defaults(self) -> GenerationDefaults:
        """As defaults of a model."""
        return GenerationDefaults(sampling=self.sampling, max_context_len=self.context_tokens)


def decode_options(options: Mapping[str, Any], *, settings: Settings) -> Options:
    """Decode options; null leaves one alone, an unknown one is logged.

    Raises:
        InvalidOptionError: A wrong type, a value that makes no sense, or an option that nothing here could honour.
    """
    values: dict[str, Any] = {}
    for name, value in options.items():
        if value is None:
            continue
        if name == "stop":
            values[name] = _stop(value)
        elif name in _INTEGERS:
            values[name] = _number(name, value, "integer")
        elif name in _FLOATS:
            values[name] = _number(name, value, "float32")
        elif name in _RUNTIME:
            _check_runtime(name, value, settings)
        else:
            _log.warning("invalid option provided", option=str(name)[:80])
    _check_ranges(values)
    return _gathered(values)


def _gathered(values: dict[str, Any]) -> Options:
    predict, seed, top_k, top_p = (values.get(name) for name in ("num_predict", "seed", "top_k", "top_p"))
    sampling = Sampling(
        temperature=values.get("temperature"),
        top_p=top_p,
        top_k=None if top_k is None else max(0, top_k),
        min_p=values.get("min_p"),
        repeat_penalty=values.get("repeat_penalty"),
        repeat_last_n=values.get("repeat_last_n"),
        frequency_penalty=values.get("frequency_penalty"),
        presence_penalty=values.get("presence_penalty"),
        # Engines hold seeds in 32 bits; folding is stable, so the same seed still gives the same text.
        seed=None if seed is None or seed < 0 else seed % 2**31,
        max_tokens=min(predict, _MAX_INT32) if predict is not None and predict > 0 else None,
        stop=values.get("stop") or None,
    )
    if top_p == 0:
        # The smallest nucleus is the most likely token.
        sampling = replace(sampling, top_p=None, temperature=0.0)
    context = values.get("num_ctx")
    return Options(
        sampling=sampling,
        context_tokens=min(context, _MAX_INT32) if context is not None and context > 0 else None,
        keep_tokens=max(0, values.get("num_keep", 4)),
        is_unbounded=predict is not None and predict <= 0,
    )


def _number(name: str, value: Any, kind: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionError(f'option "{name}" must be of type {kind}', param=name)
    return int(value) if kind == "integer" else float(value)


def _stop(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise InvalidOptionError('option "stop" must be of type array', param="stop")
    if not all(isinstance(item, str) for item in value):
        raise InvalidOptionError('option "stop" must be of an array of strings', param="stop")
    return tuple(item for item in value if item)


def _check_runtime(name: str, value: Any, settings: Settings) -> None:
    kind, silent = _RUNTIME[name]
    if kind == "boolean" and not isinstance(value, bool):
        raise InvalidOptionError(f'option "{name}" must be of type boolean', param=name)
    if kind == "integer":
        value = _number(name, value, kind)
    if value == silent or settings.runtime_options == "ignore":
        return
    raise InvalidOptionError(
        f'option "{name}" is not supported: the runtime is configured where it runs, under [platforms]', param=name
    )


def _check_ranges(values: Mapping[str, Any]) -> None:
    for name in ("top_p", "min_p"):
        if not 0 <= values.get(name, 0) <= 1:
            raise InvalidOptionError(f'option "{name}" must be between 0 and 1', param=name)
    if values.get("temperature", 0) < 0:
        raise InvalidOptionError('option "temperature" must not be negative', param="temperature")
    if values.get("repeat_penalty", 1) <= 0:
        raise InvalidOptionError('option "repeat_penalty" must be greater than 0', param="repeat_penalty")
    if values.get("repeat_last_n", 0) < -1:
        raise InvalidOptionError('option "repeat_last_n" must be at least -1', param="repeat_last_n")
    if values.get("typical_p", 1.0) != 1.0:
        raise InvalidOptionError('option "typical_p" is not supported', param="typical_p")


def fill_sampling(options: Options, defaults: GenerationDefaults, capabilities: Capabilities) -> Sampling:
    """A request's sampling, with Ollama's defaults where request, operator and model are silent and the model can do it."""
    own = {
        entry.name: getattr(DEFAULTS, entry.name)
        for entry in fields(DEFAULTS)
        if entry.name in capabilities.sampling
        and getattr(options.sampling, entry.name) is None
        and getattr(defaults.sampling, entry.name) is None
    }
    return replace(options.sampling, **own)


def parameters_of(defaults: GenerationDefaults) -> dict[str, Any]:
    """What a model sets, by Ollama's names."""
    names = {"max_tokens": "num_predict"}
    found: dict[str, Any] = {}
    if defaults.max_context_len is not None:
        found["num_ctx"] = defaults.max_context_len
    for entry in fields(defaults.sampling):
        value = getattr(defaults.sampling, entry.name)
        if value is not None and entry.name != "logit_bias":
            found[names.get(entry.name, entry.name)] = list(value) if isinstance(value, tuple) else value
    return found
