"""Names of models as Ollama's clients write them. Pure; which model one means is core's one resolver's business."""

import re
from dataclasses import dataclass

from cardcage_sdk.errors import ForbiddenError, InvalidRequestError

__all__ = ["REGISTRY", "ModelName", "parse_name"]

REGISTRY = "registry.ollama.ai"
_LIBRARY = "library"
_LATEST = "latest"

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"
_NAME = re.compile(
    rf"(?:(?P<host>[A-Za-z0-9_][A-Za-z0-9_.:-]{{0,349}})/)?(?:(?P<owner>[A-Za-z0-9_][A-Za-z0-9_-]{{0,79}})/)?"
    rf"(?P<model>{_PART})(?::(?P<tag>{_PART}))?"
)
_OWN = re.compile(
    r"[^\s/@]{1,100}@[^\s/@]{1,60}"  # a runtime id, name:size@platform-chip
    r"|[a-z0-9][a-z0-9_-]*:[^\s:]+(?:/|==)[^\s]+"  # with its source, huggingface:Org/Repo or pypi:package==1.0
    r"|(?:https?|file)://[^\s]+"
    r"|(?=.*[^\x00-\x7f])[^\s/@\x00-\x2c\x3b-\x3f\x5b-\x5e`{-\x7f]{1,160}"  # another script
    r"|[A-Za-z0-9_][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+:[^\s:]+/?[^\s:]*"  # a file of a repository
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A name that was taken apart.

    Attributes:
        text: As the client wrote it; answers repeat it.
        wanted: What core is asked for: without blanks and without `:local`.
        host: Registry or hub, or empty.
        owner: Namespace, or empty.
        model: Without tag; all of it for names that are only known here.
        tag: Or empty.
    """

    text: str
    wanted: str
    host: str = ""
    owner: str = ""
    model: str
    tag: str = ""

    @property
    def full(self) -> str:
        """With everything that was left out, as Ollama's refusals name a model."""
        if self.model == self.wanted and set(self.model) & set("@/"):
            return self.model
        return f"{self.host or REGISTRY}/{self.owner or _LIBRARY}/{self.model}:{self.tag or _LATEST}"

    @property
    def to_pull(self) -> str:
        """What to get: `owner/name` is one of Ollama's registry here, as no Ollama client means anything else by it."""
        if self.owner and not self.host:
            return f"{REGISTRY}/{self.wanted}"
        return self.wanted


def parse_name(text: str, *, when_empty: str = "model is required") -> ModelName:
    """Take a name apart.

    Args:
        text: As the client wrote it.
        when_empty: What to say where it is empty.

    Raises:
        InvalidRequestError: No model can have this name.
        ForbiddenError: It is one of Ollama's hosted models.
    """
    wanted = text.strip()
    if not wanted:
        raise InvalidRequestError(when_empty, param="model")
    is_local = wanted.lower().endswith(":local")
    if is_local:
        wanted = wanted[: -len(":local")]
    parts = _NAME.fullmatch(wanted)
    if parts is not None and parts["host"] and not parts["owner"]:
        parts = None if ":" in parts["host"] or "." in parts["host"] else parts
    if parts is None:
        if not _OWN.fullmatch(wanted) or ".." in re.split(r"[/:]", wanted):
            raise InvalidRequestError("invalid model name", param="model")
        return ModelName(text=text, wanted=wanted, model=wanted)
    host, owner, model, tag = (parts[group] or "" for group in ("host", "owner", "model", "tag"))
    if host and not owner:
        host, owner = "", host
    if tag.lower() == "cloud" or tag.lower().endswith("-cloud"):
        if is_local:
            raise InvalidRequestError("invalid model name", param="model")
        raise ForbiddenError("ollama cloud is disabled: remote model is unavailable")
    return ModelName(text=text, wanted=wanted, host=host, owner=owner, model=model, tag=tag)
