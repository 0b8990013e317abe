"""How Go's decoder reads objects, which is what clients of this API are used to."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

__all__ = ["WireModel"]


class WireModel(BaseModel):
    """Base of all request models.

    Names of fields match in any case, unknown ones are ignored, and null leaves a field at its default. Types are strict.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, protected_namespaces=(), populate_by_name=False)

    @model_validator(mode="before")
    @classmethod
    def _as_go_reads(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        names = {name.lower(): name for name in (field.alias or own for own, field in cls.model_fields.items())}
        found: dict[str, Any] = {}
        for key, item in value.items():
            name = names.get(key.lower())
            if name is not None and item is not None and (name not in found or key == name):
                found[name] = item
        return found
