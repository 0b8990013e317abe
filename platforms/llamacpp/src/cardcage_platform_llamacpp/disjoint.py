"""Whether two JSON Schemas exclude each other: no value satisfies both. Pure.

Only what is certain counts: other types, other constants, or a property that one of them requires and that the two want
different. A discriminated union passes, and a doubt is a no.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

__all__ = ["are_disjoint"]

_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})
_MAX_DEPTH = 12


def are_disjoint(left: Any, right: Any, root: Mapping[str, Any], depth: int = 0) -> bool:
    """True where no value satisfies both.

    Args:
        left: A schema.
        right: Another.
        root: The document that their references point into.
        depth: Of properties looked into; deep ones count as doubt.
    """
    if depth > _MAX_DEPTH:
        return False
    ours, theirs = _parts(left, root), _parts(right, root)
    if False in ours or False in theirs:
        return True
    here, there = _objects(ours), _objects(theirs)
    common = _types(here) & _types(there)
    if not common:
        return True
    mine, yours = _values(here), _values(there)
    if mine is not None and yours is not None:
        return not mine & yours
    if mine is not None or yours is not None:
        kinds = {_type_of(json.loads(text)) for text in (mine if mine is not None else yours or ())}
        return not kinds & common
    for these, others in ((here, right), (there, left)):
        for part in these:
            options = part.get("anyOf")
            if isinstance(options, (list, tuple)) and all(
                are_disjoint(option, others, root, depth + 1) for option in options
            ):
                return True
    return common == {"object"} and any(
        are_disjoint(_property(one, name), _property(other, name), root, depth + 1)
        for one in here
        for other in there
        for name in _required((*here, *there))
    )


def _parts(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """Schemas that all hold wherever this one does: itself, what it refers to, and its `allOf`."""
    found: list[Any] = []
    waiting = [schema]
    while waiting and len(found) < 32:
        part = waiting.pop()
        if part in found:
            continue
        found.append(part)
        if isinstance(part, Mapping):
            if isinstance(part.get("$ref"), str):
                waiting.append(_target(part["$ref"], root))
            if isinstance(part.get("allOf"), (list, tuple)):
                waiting.extend(part["allOf"])
    return found


def _target(reference: str, root: Any) -> Any:
    """What a pointer points to; True, which says nothing, where it is none that we can follow."""
    if not reference.startswith("#") or (reference != "#" and not reference.startswith("#/")):
        return True
    for name in unquote(reference[2:]).split("/") if reference != "#" else ():
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(root, Mapping) and key in root:
            root = root[key]
        elif isinstance(root, (list, tuple)) and key.isdecimal() and int(key) < len(root):
            root = root[int(key)]
        else:
            return True
    return root


def _objects(parts: Iterable[Any]) -> list[Mapping[str, Any]]:
    return [part for part in parts if isinstance(part, Mapping)]


def _types(parts: Iterable[Mapping[str, Any]]) -> set[str]:
    """Types that a value may have."""
    types = set(_TYPES)
    for part in parts:
        kind = part.get("type")
        if isinstance(kind, (str, list, tuple)):
            allowed = {kind} if isinstance(kind, str) else {name for name in kind if isinstance(name, str)}
            types &= allowed | ({"integer"} if "number" in allowed else set())
    return types


def _type_of(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, (int, float)):
        return "integer" if value == int(value) else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, (list, tuple)) else "object"


def _values(parts: Iterable[Mapping[str, Any]]) -> set[str] | None:
    """The values that are possible at all, each as JSON; None where they are not listed."""
    for part in parts:
        if "const" in part:
            return {_text(part["const"])}
        if isinstance(part.get("enum"), (list, tuple)):
            return {_text(value) for value in part["enum"]}
    return None


def _text(value: Any) -> str:
    """Equal values have equal texts: 1.0 is 1, and true is not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{json.dumps(key)}:{_text(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)


def _required(parts: Iterable[Mapping[str, Any]]) -> set[str]:
    names: set[str] = set()
    for part in parts:
        required = part.get("required")
        if isinstance(required, (list, tuple)):
            names.update(name for name in required if isinstance(name, str))
    return names


def _property(schema: Mapping[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    if schema.get("patternProperties"):
        return True
    return schema.get("additionalProperties", True)
