"""Change `[[models]]` entries of a configuration file and leave every other byte of it as it is.

The file is a person's. So it is edited as text, line by line, and each result is parsed and compared with what it must mean
before it is accepted. Pure.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import tomlkit

from cardcage_sdk.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["add_model", "remove_model", "set_instance_count"]

_ENTRY = re.compile(r"[ \t]*\[\[[ \t]*(?:models|\"models\"|'models')[ \t]*\]\]")
_HEADER = re.compile(r"[ \t]*\[")
_PART = re.compile(r"[ \t]*\[{1,2}[ \t]*(?:models|\"models\"|'models')[ \t]*\.")
_COUNT = re.compile(r"([ \t]*instance_count[ \t]*=[ \t]*)[0-9_]+")
_NOT_CONTENT = re.compile(r"[ \t]*(?:#.*)?$")


def add_model(text: str, values: Mapping[str, str | int]) -> str:
    """Append an entry.

    Raises:
        ConfigError: The file cannot take it at its end, for instance because its entries are written in another form.
    """
    line_end = "\r\n" if "\r\n" in text else "\n"
    lines = ["[[models]]", *(f"{key} = {tomlkit.item(value).as_string()}" for key, value in values.items()), ""]
    gap = "" if not text else (line_end if text.endswith("\n") else line_end * 2)
    edited = text + gap + line_end.join(lines)
    before = _parse(text)
    return _accept(edited, {**before, "models": [*before.get("models", []), dict(values)]})


def remove_model(text: str, model_id: str) -> str:
    """Take out the entry of this id, with its sub-tables and the comments inside it.

    Raises:
        ConfigError: There is none, or it cannot be told from the rest.
    """
    before = _parse(text)
    number, start, end = _lines_of(text, before, model_id)
    lines = text.splitlines(keepends=True)
    # One of the blank lines around it goes too, so that adding and removing again leave the file as it was.
    if start > 0 and not lines[start - 1].strip():
        start -= 1
    rest = [entry for index, entry in enumerate(before["models"]) if index != number]
    meant = {key: value for key, value in before.items() if key != "models"}
    return _accept("".join(lines[:start] + lines[end:]), {**meant, "models": rest} if rest else meant)


def set_instance_count(text: str, model_id: str, count: int) -> str:
    """Change how many instances the entry of this id asks for.

    Raises:
        ConfigError: There is none, or it cannot be told from the rest.
    """
    before = _parse(text)
    number, start, end = _lines_of(text, before, model_id)
    lines = text.splitlines(keepends=True)
    own = next((index for index in range(start + 1, end) if _HEADER.match(lines[index])), end)
    at = next((index for index in range(start + 1, own) if _COUNT.match(lines[index])), None)
    if at is not None:
        lines[at] = _COUNT.sub(rf"\g<1>{count}", lines[at], count=1)
    else:
        line_end = "\r\n" if lines[start].endswith("\r\n") else "\n"
        lines.insert(start + 1, f"instance_count = {count}{line_end}")
    entries = [
        {**entry, "instance_count": count} if index == number else entry for index, entry in enumerate(before["models"])
    ]
    return _accept("".join(lines), {**before, "models": entries})


def _lines_of(text: str, document: Mapping[str, Any], model_id: str) -> tuple[int, int, int]:
    """Number of an entry, its first line, and the line after its last one that is its own."""
    entries = document.get("models", [])
    number = next((index for index, entry in enumerate(entries) if entry.get("model_id") == model_id), None)
    if number is None:
        raise ConfigError(f"there is no [[models]] entry with model_id '{model_id}'")
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if _ENTRY.match(line)]
    if len(starts) != len(entries):
        raise ConfigError("the [[models]] entries of this file are written in a form that only a person can edit")
    start = starts[number]
    end = next(
        (
            index
            for index in range(start + 1, len(lines))
            if _HEADER.match(lines[index]) and not _PART.match(lines[index])
        ),
        len(lines),
    )
    # Comments and blank lines right before the next table are that table's.
    while end < len(lines) and end - 1 > start and _NOT_CONTENT.match(lines[end - 1]):
        end -= 1
    return number, start, end


def _parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the file is not valid TOML: {error}") from error


def _accept(edited: str, meant: Mapping[str, Any]) -> str:
    try:
        is_right = tomllib.loads(edited) == dict(meant)
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise ConfigError("the [[models]] entries of this file are written in a form that only a person can edit")
    return edited
