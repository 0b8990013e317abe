"""Requests about models: show, pull, push, create, copy, delete."""

from typing import Any

from pydantic import Field

from cardcage_dialect_ollama.wire.fields import WireModel
from cardcage_dialect_ollama.wire.generation import MessageBody

__all__ = ["CopyBody", "CreateBody", "NameBody", "ShowBody", "TransferBody"]


class NameBody(WireModel):
    """A model by either of the two names of the field."""

    model: str = ""
    name: str = ""

    @property
    def wanted(self) -> str:
        """The one that is set."""
        return self.model or self.name


class ShowBody(NameBody):
    """`/api/show`."""

    verbose: bool = False
    system: str = ""
    options: dict[str, Any] = Field(default_factory=dict)


class TransferBody(NameBody):
    """`/api/pull` and `/api/push`."""

    insecure: bool = False
    stream: bool = True


class CopyBody(WireModel):
    """`/api/copy`."""

    source: str = ""
    destination: str = ""


class CreateBody(NameBody):
    """`/api/create`."""

    from_: str = Field(default="", alias="from")
    files: dict[str, str] = Field(default_factory=dict)
    adapters: dict[str, str] = Field(default_factory=dict)
    draft_files: dict[str, str] = Field(default_factory=dict)
    template: str = ""
    license: str | list[str] = ""
    system: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict)
    messages: list[MessageBody] = Field(default_factory=list)
    quantize: str = ""
    quantization: str = ""
    draft_quantize: str = ""
    renderer: str = ""
    parser: str = ""
    requires: str = ""
    info: dict[str, Any] = Field(default_factory=dict)
    remote_host: str = ""
    stream: bool = True
