"""JSON Schemas made ready for llguidance: what it would take without keeping it is refused or written in other words. Pure.

llguidance refuses nearly everything that it cannot enforce. This module knows the rest: bounds that it gets wrong, keywords
of old drafts that it does not look at, sizes that would keep it busy for minutes, and `oneOf` whose branches exclude each
other, which it sees in simple cases only. An answer must satisfy its schema; where that cannot be promised, the schema is
refused, and the message names the keyword.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any, Final, TypeGuard

from cardcage_platform_llamacpp.disjoint import are_disjoint
from cardcage_sdk.errors import InvalidSchemaError

__all__ = ["ready_schema"]

MAX_SCHEMA_CHARS: Final = 100_000
MAX_SCHEMA_DEPTH: Final = 64
"""Levels of objects and arrays, a tool's schema in its frame included: far over what a model could follow."""

MAX_LEAST: Final = 10_000
"""Items or characters that an answer must have at least: no context holds more."""

MAX_MULTIPLE: Final = 100_000
"""Common multiple of all `multipleOf` in a schema, in units of their last decimal: each is that many states of the lexer."""

MAX_BRANCHES: Final = 64
"""Branches of one `oneOf` that are compared with each other."""

_EXACT_INTEGER = 2**53
"""llguidance holds bounds as floats, which are exact up to here."""

_LAST_DECIMAL: Final = 1e-9
_SMALL: Final = 1e-3
"""Numbers whose bounds are not smaller than this get no digits beyond the last decimal."""

_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose value maps names to schemas: the names are no keywords."""

_DATA: Final = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired", "x-guidance"})
"""Keywords whose value holds no schema."""

_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_LEAST: Final = ("minLength", "minItems", "minProperties")
_OBJECT: Final = (
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
)
_OLD: Final = ("disallow", "divisibleBy", "extends")
_INTEGER_FORMATS: Final = {"int32": (-(2**31), 2**31 - 1), "int64": (-_EXACT_INTEGER, _EXACT_INTEGER)}
_NUMBER_FORMATS: Final = frozenset({"float", "double"})
_CLASS_OPERATORS: Final = ("&&", "--", "~~")


def ready_schema(schema: Mapping[str, Any], param: str) -> dict[str, Any]:
    """The schema, checked, with what llguidance does not know but we do put in words that it knows.

    Args:
        schema: A client's, or the frame of forced tool calls.
        param: The request's field, for errors.

    Raises:
        InvalidSchemaError: Too large or deep, or a keyword that cannot be enforced; the message names it.
    """
    try:
        _check_size(schema)
        schemas = list(_walk(schema))
        _check_together(schemas)
        return _Writer(schema, closes=not any(map(_combines, schemas))).write(schema)
    except _Refused as refusal:
        raise InvalidSchemaError(f"The schema cannot be enforced: {refusal}", param=param) from refusal


class _Refused(ValueError):  # noqa: N818 - inside this module only
    pass


def _check_size(schema: Mapping[str, Any]) -> None:
    stack: list[tuple[Any, int]] = [(schema, 0)]
    while stack:
        value, depth = stack.pop()
        if depth > MAX_SCHEMA_DEPTH:
            raise _Refused(f"it nests more than {MAX_SCHEMA_DEPTH} deep")
        if isinstance(value, Mapping):
            stack.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, (list, tuple)):
            stack.extend((item, depth + 1) for item in value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise _Refused("it holds a number that JSON does not have")
        elif isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise _Refused(f"the integer {value:.3e} has more than 64 bits")
    if len(json.dumps(schema)) > MAX_SCHEMA_CHARS:
        raise _Refused(f"it is longer than {MAX_SCHEMA_CHARS} characters")


def _walk(value: Any, *, names: bool = False) -> Iterator[Mapping[str, Any]]:
    """Every object that a reference could make a schema; `names` where the keys are those of properties or definitions."""
    if isinstance(value, Mapping):
        if not names:
            yield value
        for key, item in value.items():
            if names or key not in _DATA:
                yield from _walk(item, names=not names and key in _NAMED)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _walk(item)


def _check_together(schemas: Sequence[Mapping[str, Any]]) -> None:
    """What may come together by `allOf`, references and siblings is checked as if all of it did."""
    multiples = {abs(value) for schema in schemas if _is_number(value := schema.get("multipleOf")) and value}
    exact = [Fraction(str(value)) for value in multiples]
    unit = math.lcm(*(value.denominator for value in exact))
    if math.lcm(*(int(value * unit) for value in exact)) > MAX_MULTIPLE:
        raise _Refused(f"'multipleOf' has values whose least common multiple is over {MAX_MULTIPLE}")
    # llguidance lets an exclusive bound through where the other one has the same integer part: 0 in (0, 0.5).
    for key, sign in (("exclusiveMinimum", 1), ("exclusiveMaximum", -1)):
        others = ("maximum", "exclusiveMaximum") if sign > 0 else ("minimum", "exclusiveMinimum")
        limits = [value for schema in schemas for name in others if _is_number(value := schema.get(name))]
        for schema in schemas:
            bound = schema.get(key)
            if _is_number(bound) and bound == int(bound) and any(0 <= sign * (limit - bound) < 1 for limit in limits):
                raise _Refused(f"'{key}' {bound} is an integer and less than 1 from the other bound")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check(schema: Mapping[str, Any]) -> None:
    """One schema of its own."""
    for key in _OLD:
        if key in schema:
            raise _Refused(f"'{key}' is no keyword of current drafts")
    for key in _BOUNDS:
        value = schema.get(key)
        if _is_number(value) and abs(value) > _EXACT_INTEGER:
            raise _Refused(f"'{key}' is over 2^53")
    for key in _LEAST:
        value = schema.get(key)
        if _is_number(value) and value > MAX_LEAST:
            raise _Refused(f"'{key}' is over {MAX_LEAST}")
    reference = schema.get("$ref")
    if isinstance(reference, str) and not reference.startswith("#"):
        raise _Refused("'$ref' may only point into the schema itself ('#/...')")
    if "prefixItems" in schema and "additionalItems" in schema:
        raise _Refused("'additionalItems' does not go with 'prefixItems'; use 'items'")
    # Keys that no schema lists are not told apart, so two of them may be the same; one is not the same as any required one.
    least = schema.get("minProperties")
    required = schema.get("required")
    listed = {name for name in required if isinstance(name, str)} if isinstance(required, (list, tuple)) else set()
    if _is_number(least) and least > len(listed) + 1:
        raise _Refused("'minProperties' may be one more than the 'required' properties at most")
    pattern = schema.get("pattern")
    for text in (pattern, *(schema.get("patternProperties") or ())):
        if isinstance(text, str) and "[" in text and any(operator in text for operator in _CLASS_OPERATORS):
            raise _Refused("'pattern' has '&&', '--' or '~~' in it, which is not the same in all regular expressions")


def _combines(schema: Mapping[str, Any]) -> bool:
    """Whether two schemas may speak of one object here, so that what the one does not list the other may."""
    combining = sum(key in schema for key in ("allOf", "anyOf", "oneOf", "$ref"))
    return "allOf" in schema or combining > 1 or (combining == 1 and any(key in schema for key in _OBJECT))


def _close(schema: dict[str, Any]) -> None:
    """Leave out of one schema, which nothing else adds to, what a small model would not come to an end with."""
    properties, required = schema.get("properties"), schema.get("required", ())
    if (
        isinstance(properties, Mapping)
        and properties
        and not any(key in schema for key in ("additionalProperties", "patternProperties", "minProperties"))
        and isinstance(required, (list, tuple))
        and all(name in properties for name in required)
    ):
        schema["additionalProperties"] = False
    kind = schema.get("type")
    kinds = {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else set()
    if "enum" in schema or "const" in schema or not kinds & {"integer", "number"}:
        return
    if "minimum" not in schema and "exclusiveMinimum" not in schema:
        schema["minimum"] = -_EXACT_INTEGER
    if "maximum" not in schema and "exclusiveMaximum" not in schema:
        schema["maximum"] = _EXACT_INTEGER
    bounds = [abs(value) for key in _BOUNDS if _is_number(value := schema.get(key))]
    if "number" in kinds and "multipleOf" not in schema and all(value == 0 or value >= _SMALL for value in bounds):
        schema["multipleOf"] = _LAST_DECIMAL


class _Writer:
    """Writes a schema anew, place by place, so that references keep pointing where they did.

    An object that lists properties and says nothing of others gets none but these, and a number has no more digits than
    programs keep: that satisfies the schema too, and small models that may go on do not come to an end. Not so where schemas
    are combined.
    """

    def __init__(self, root: Mapping[str, Any], *, closes: bool) -> None:
        self._root = root
        self._closes = closes

    def write(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        """A checked copy of one schema."""
        _check(schema)
        written: dict[str, Any] = {}
        for key, value in schema.items():
            if key == "x-guidance" or (key == "uniqueItems" and value is False):
                continue
            written[key] = value if key in _DATA else self._value(value, names=key in _NAMED)
        if self._closes:
            _close(written)
        self._write_format(written)
        self._write_one_of(schema, written)
        return written

    def _value(self, value: Any, *, names: bool = False) -> Any:
        if isinstance(value, Mapping):
            if names:
                return {name: self._value(item) for name, item in value.items()}
            return self.write(value)
        if isinstance(value, (list, tuple)):
            return [self._value(item) for item in value]
        return value

    def _write_format(self, written: dict[str, Any]) -> None:
        """Formats of numbers, of which llguidance has none, are bounds."""
        name, kind = written.get("format"), written.get("type")
        kinds = {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else {"string"}
        if name is None or "string" in kinds or not kinds <= {"integer", "number", "null"}:
            return
        if name in _INTEGER_FORMATS and "number" not in kinds:
            low, high = _INTEGER_FORMATS[name]
            written["allOf"] = [*written.get("allOf", ()), {"type": sorted(kinds), "minimum": low, "maximum": high}]
        elif name not in _NUMBER_FORMATS:
            raise _Refused(f"'format' {json.dumps(name)} of numbers is not known")
        del written["format"]

    def _write_one_of(self, schema: Mapping[str, Any], written: dict[str, Any]) -> None:
        """`oneOf` is `anyOf` where no value can satisfy two branches."""
        branches = schema.get("oneOf")
        if not isinstance(branches, (list, tuple)) or not branches:
            return
        if len(branches) > MAX_BRANCHES:
            raise _Refused(f"'oneOf' has more than {MAX_BRANCHES} branches")
        if not all(are_disjoint(left, right, self._root) for left, right in combinations(branches, 2)):
            raise _Refused(
                "a value may satisfy two branches of 'oneOf'; use 'anyOf', or branches that exclude each other"
            )
        any_of = {"anyOf": written.pop("oneOf")}
        if "anyOf" in written:
            written["allOf"] = [*written.get("allOf", ()), any_of]
        else:
            written.update(any_of)
