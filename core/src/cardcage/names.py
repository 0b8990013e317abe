"""Names of models: what a runtime id may look like, and the one that a model gets by default."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cardcage_sdk.models import ModelArtifact

__all__ = ["MAX_ID_WIDTH", "check_model_id", "default_model_id", "display_width"]

MAX_ID_WIDTH = 20
"""Columns of a terminal that an id of one's own may take, as in LlamaPi."""

_DEFAULT_FORM = re.compile(r"[^\s/@]{1,100}@[^\s/@]{1,60}")


def display_width(text: str) -> int:
    """Columns that a text takes on a terminal: wide East Asian characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def check_model_id(model_id: str) -> None:
    """Refuse a runtime id that a command line, a URL or a table could not show.

    Any script is allowed. Ids of the default form (`name:size@platform-chip`) may be longer than one's own.

    Raises:
        ValueError: With the reason.
    """
    if not model_id:
        raise ValueError("an id must not be empty")
    if any(char.isspace() or not char.isprintable() for char in model_id):
        raise ValueError(f"'{model_id}' holds white space or unprintable characters")
    if "/" in model_id:
        raise ValueError(f"'{model_id}' holds a '/'")
    width = display_width(model_id)
    if width > MAX_ID_WIDTH and not _DEFAULT_FORM.fullmatch(model_id):
        raise ValueError(f"'{model_id}' is {width} columns wide, at most {MAX_ID_WIDTH} are allowed")


def default_model_id(artifact: ModelArtifact, *, platform: str | None = None) -> str:
    """The id that a model is loaded under when nobody names one: `name:size@platform-chip`.

    Args:
        artifact: The model.
        platform: The platform that was chosen, where `model.toml` names none.
    """
    name = f"{artifact.name}:{artifact.size}" if artifact.size else artifact.name
    where = "-".join(part for part in (artifact.platform or platform, *artifact.chips[:1]) if part)
    return f"{name}@{where}" if where else name
