"""Field types that all request models share.

Every model takes null for an absent optional field, because typed client libraries send nulls for all that is unset, and
ignores names that it does not know. Types are strict (`"7"` is no number), but an integer may be written `7.0`.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

__all__ = ["MAX_INT32", "Int", "TokenId", "WireModel", "is_int", "shaped"]

MAX_INT32 = 2**31 - 1


class WireModel(BaseModel):
    """Base of all request models."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=())


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


Int: TypeAlias = Annotated[int, BeforeValidator(_whole)]
"""An integer; `7.0` counts as one, as some JSON writers have only one kind of number."""

TokenId: TypeAlias = Annotated[int, Field(ge=0, le=MAX_INT32)]


def is_int(value: object) -> bool:
    """Say whether a decoded JSON value is an integer (a boolean is none)."""
    return isinstance(value, int) and not isinstance(value, bool)


def shaped(check: Callable[[Any], bool], description: str, *, is_required: bool = False) -> BeforeValidator:
    """A validator for a field of several shapes, so that a wrong one gives one sentence and not one per shape.

    Args:
        check: Says whether a value has one of the shapes; asked of null only where the field is required.
        description: Completes "must be ...".
        is_required: Null is refused too.
    """

    def validate(value: object) -> object:
        if (is_required or value is not None) and not check(value):
            raise PydanticCustomError("shape", "must be {description}", {"description": description})
        return value

    return BeforeValidator(validate)
