"""The table `[dialects.ollama]` of the configuration."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from cardcage_sdk.chat import JsonValue
from cardcage_sdk.options import DialectSettings

__all__ = ["Settings", "read_settings"]


class Settings(DialectSettings):
    """Settings of this dialect.

    Attributes:
        version: Told by `/api/version`: the Ollama release whose API this is. Some clients refuse old ones.
        num_ctx: A request for another context than the model is loaded with: `at_least` is served by what is loaded with as
            much or more, else the model is loaded a second time; `exact` loads it for each; `refuse` loads nothing anew.
        runtime_options: What to do with options that tune a runtime (`num_gpu`, `num_thread`, ...), which no platform here
            takes from a request: `refuse`, or `ignore` for clients that always send some.
        max_image_bytes: Largest encoded image.
        max_image_pixels: Largest width times height, read from the image's header before anything decodes it.
    """

    version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+\S*$")] = "0.20.0"
    num_ctx: Literal["at_least", "exact", "refuse"] = "at_least"
    runtime_options: Literal["refuse", "ignore"] = "refuse"
    max_image_bytes: Annotated[int, Field(ge=1)] = 32 * 1024 * 1024
    max_image_pixels: Annotated[int, Field(ge=1)] = 64_000_000


def read_settings(table: Mapping[str, JsonValue]) -> Settings:
    """Check the table.

    Raises:
        ConfigError: An unknown name or a wrong value; each is named.
    """
    return Settings.read("ollama", table)
