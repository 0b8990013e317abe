"""What Ollama's clients read of models: lists, details, and what one can do. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cardcage_dialect_ollama.options import Options, parameters_of
from cardcage_sdk.capabilities import Capabilities, Feature, Task
from cardcage_sdk.library import ModelDescription, StoredModel
from cardcage_sdk.models import ModelFacts, ModelInfo
from cardcage_sdk.service import GenerationDefaults, ModelStatus

__all__ = [
    "encode_capabilities",
    "encode_details",
    "encode_loaded",
    "encode_show",
    "encode_stored",
    "facts_of",
    "human_number",
    "shown_id",
    "shown_names",
]

_OWNED = re.compile(r"(?:ollama:)?((?:[^\s/:]+/)?[^\s/:]+/[^\s/:]+:[^\s/:]+)")
NEVER = datetime(2318, 1, 1, tzinfo=UTC)
"""When a model goes that stays: Ollama's clients show a date some centuries ahead as `forever`."""

_FEATURES = (
    ("tools", Feature.TOOLS),
    ("insert", Feature.SUFFIX),
    ("vision", Feature.IMAGES),
    ("audio", Feature.AUDIO),
)
_KEPT_ARRAY = 5
_COPILOT = "GitHubCopilotChat/"


def local_text(seconds: float) -> str:
    """Unix time as RFC 3339 with this machine's offset."""
    return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat()


def human_number(count: int | None) -> str:
    """`134.52M`, `8.0B`: a number of weights as Ollama writes it."""
    for size, letter, digits in ((10**9, "B", 1), (10**6, "M", 2), (10**3, "K", 0)):
        if count is not None and count >= size:
            return f"{count / size:.{digits}f}{letter}"
    return str(count) if count else ""


def shown_names(models: Sequence[StoredModel]) -> dict[str, str]:
    """Names for clients by the models' paths: the shortest that means exactly this one, always with a tag."""
    plain = {model.path: _shown_name(model) for model in models}
    names = list(plain.values())
    return {model.path: plain[model.path] if names.count(plain[model.path]) == 1 else model.id for model in models}


def _shown_name(model: StoredModel) -> str:
    owned = _OWNED.fullmatch(model.source or "")
    if owned is not None:
        name = owned[1].removeprefix("library/")
        if "/" in name:
            return name
    return shown_id(model.name)


def shown_id(name: str) -> str:
    """A name with a tag."""
    return name if ":" in name else f"{name}:latest"


def encode_capabilities(capabilities: Capabilities | None, *, thinks: bool) -> list[str]:
    """What a model can do, by Ollama's words; what it cannot is not said."""
    if capabilities is None:
        return []
    found = []
    if Task.CHAT in capabilities.tasks:
        found.append("completion")
        found += [word for word, feature in _FEATURES if feature in capabilities.features]
        if thinks or Feature.THINKING in capabilities.features:
            found.append("thinking")
    if Task.EMBED in capabilities.tasks:
        found.append("embedding")
    return found


def encode_details(facts: ModelFacts, *, kind: str | None = None) -> dict[str, Any]:
    """The `details` of a model."""
    details: dict[str, Any] = {
        "parent_model": "",
        "format": facts.format or (kind or ""),
        "family": facts.family,
        "families": [facts.family] if facts.family else None,
        "parameter_size": human_number(facts.parameter_count),
        "quantization_level": facts.quantization,
    }
    if facts.context_tokens:
        details["context_length"] = facts.context_tokens
    if facts.embedding_dimensions:
        details["embedding_length"] = facts.embedding_dimensions
    return details


def encode_stored(description: ModelDescription, *, name: str) -> dict[str, Any]:
    """An entry of `/api/tags`."""
    model = description.model
    return {
        "name": name,
        "model": name,
        "modified_at": local_text(model.modified_at),
        "size": model.size_bytes,
        "digest": model.digest,
        "details": encode_details(description.facts, kind=model.platform),
        "capabilities": encode_capabilities(
            description.capabilities, thinks=description.facts.reasoning_tags is not None
        ),
    }


def facts_of(info: ModelInfo, facts: ModelFacts | None) -> ModelFacts:
    """What is known of a loaded model that no file described: what its engine says."""
    if facts is not None:
        return facts
    return ModelFacts(
        parameter_count=info.parameter_count or None,
        context_tokens=info.context_tokens,
        embedding_dimensions=info.embedding_dimensions,
        reasoning_tags=info.reasoning_tags,
    )


def encode_loaded(status: ModelStatus, *, name: str, description: ModelDescription | None) -> dict[str, Any]:
    """An entry of `/api/ps`."""
    facts = facts_of(status.info, description.facts if description is not None else None)
    expires = NEVER.isoformat() if status.expires_at is None else local_text(status.expires_at)
    entry: dict[str, Any] = {
        "name": name,
        "model": name,
        "size": status.host_bytes + status.device_bytes,
        "digest": description.model.digest if description is not None else "",
        "details": encode_details(facts, kind=status.platform),
        "expires_at": expires,
        "size_vram": status.device_bytes,
    }
    if status.info.context_tokens:
        entry["context_length"] = status.info.context_tokens
    return entry


def encode_show(
    description: ModelDescription,
    *,
    name: str,
    verbose: bool,
    system: str,
    options: Options,
    user_agent: str,
    loaded: ModelStatus | None,
) -> dict[str, Any]:
    """The answer of `/api/show`.

    Args:
        description: The model.
        name: As the client wrote it.
        verbose: With long arrays and tensors.
        system: Shown instead of the model's own, where it is not empty.
        options: Shown over the model's own parameters.
        user_agent: Of the client.
        loaded: The same model, if it is loaded: its engine knows best what it can do.
    """
    facts, defaults = description.facts, description.defaults
    parameters = {**parameters_of(defaults), **parameters_of(options.to_defaults())}
    system = system or defaults.system or ""
    capabilities, thinks = description.capabilities, facts.reasoning_tags is not None
    if loaded is not None:
        capabilities, thinks = loaded.capabilities, loaded.info.reasoning_tags is not None
    info = _model_info(facts, verbose=verbose)
    if user_agent.startswith(_COPILOT):
        info["general.basename"] = name
    answer: dict[str, Any] = {
        "modelfile": _modelfile(description.model, facts.chat_template or "", system, parameters, defaults),
        "parameters": "\n".join(_parameter_lines(parameters)),
        "template": facts.chat_template or "",
        "details": encode_details(facts, kind=description.model.platform),
        "model_info": info,
        "capabilities": encode_capabilities(capabilities, thinks=thinks),
        "modified_at": local_text(description.model.modified_at),
    }
    if description.model.license:
        answer["license"] = description.model.license
    if system:
        answer["system"] = system
    if defaults.messages:
        answer["messages"] = [{"role": message.role, "content": message.text} for message in defaults.messages]
    if verbose:
        answer["tensors"] = [dict(tensor) for tensor in facts.tensors]
    return answer


def _model_info(facts: ModelFacts, *, verbose: bool) -> dict[str, Any]:
    hidden = {"general.name", "tokenizer.chat_template"}
    info: dict[str, Any] = {}
    for key, value in facts.metadata.items():
        if key in hidden:
            continue
        info[key] = [] if isinstance(value, list) and len(value) > _KEPT_ARRAY and not verbose else value
    known: Mapping[str, Any] = {
        "general.architecture": facts.family or None,
        "general.parameter_count": facts.parameter_count,
        f"{facts.family}.context_length": facts.context_tokens if facts.family else None,
        f"{facts.family}.embedding_length": facts.embedding_dimensions if facts.family else None,
    }
    return {**{key: value for key, value in known.items() if value is not None}, **info}


def _parameter_lines(parameters: Mapping[str, Any]) -> list[str]:
    return [
        f"{key:<30} {json.dumps(item, ensure_ascii=False) if isinstance(item, str) else item}"
        for key, value in sorted(parameters.items())
        for item in (value if isinstance(value, list) else [value])
    ]


def _modelfile(
    model: StoredModel, template: str, system: str, parameters: Mapping[str, Any], defaults: GenerationDefaults
) -> str:
    lines = ["# To build a new model from this one, replace FROM with:", f"# FROM {shown_id(model.name)}", ""]
    lines.append(f"FROM {model.path}")
    if template:
        lines.append(f'TEMPLATE """{template}"""')
    if system:
        lines.append(f'SYSTEM """{system}"""')
    lines += [f"PARAMETER {line.split(' ', 1)[0]} {line[31:]}" for line in _parameter_lines(parameters)]
    lines += [f'MESSAGE {message.role} """{message.text}"""' for message in defaults.messages]
    return "\n".join(lines) + "\n"
