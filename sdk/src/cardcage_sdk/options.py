"""Option models of platforms and settings of dialects. Server process only: the one part of the sdk that imports pydantic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cardcage_sdk.errors import ConfigError, InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

    from cardcage_sdk.chat import JsonValue
    from cardcage_sdk.platform import Platform

__all__ = ["DialectSettings", "Field", "PlatformOptions", "check_options", "validate_options"]


class PlatformOptions(BaseModel):
    """Base of a platform's load options. Unknown names are refused; values travel to the worker as plain JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DialectSettings(BaseModel):
    """Base of a dialect's settings, the table `[dialects.<name>]`. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def read(cls, dialect: str, table: Mapping[str, JsonValue]) -> Self:
        """Check the table of a dialect.

        Raises:
            ConfigError: An unknown name or a wrong value; each is named.
        """
        try:
            return cls.model_validate(dict(table))
        except ValidationError as error:
            problems = "; ".join(_problem(item) for item in error.errors())
            raise ConfigError(f"[dialects.{dialect}] {problems}") from error


def validate_options(platform: Platform, options: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Check load options against the platform's option model and fill in its defaults.

    Raises:
        InvalidOptionError: An unknown option or a wrong value; the message names each.
    """
    if platform.option_model is None:
        if options:
            raise InvalidOptionError(
                f"Platform '{platform.name}' has no options, but got: {', '.join(sorted(options))}", param="options"
            )
        return {}
    try:
        return platform.option_model.model_validate(dict(options)).model_dump(mode="json")
    except ValidationError as error:
        problems = "; ".join(_problem(item) for item in error.errors())
        raise InvalidOptionError(f"Options of platform '{platform.name}': {problems}", param="options") from error


def check_options(platform: Platform, options: Mapping[str, JsonValue]) -> list[str]:
    """Check options that may not be all of a load, as a configuration's; returns what is wrong, each as `option: reason`."""
    if platform.option_model is None:
        return [f"{name}: the platform has no options" for name in sorted(options)]
    try:
        platform.option_model.model_validate(dict(options))
    except ValidationError as error:
        return [_problem(item) for item in error.errors() if item["type"] != "missing"]
    return []


def _problem(item: ErrorDetails) -> str:
    return f"{'.'.join(str(part) for part in item['loc']) or 'options'}: {item['msg']}"
