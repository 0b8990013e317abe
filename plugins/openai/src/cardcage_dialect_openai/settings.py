"""The table `[dialects.openai]` of the configuration."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from cardcage_sdk.chat import JsonValue
from cardcage_sdk.options import DialectSettings

__all__ = ["Settings", "read_settings"]


class Settings(DialectSettings):
    """Settings of this dialect.

    Attributes:
        profile: `llamapi` answers in the shape of the LlamaPi page (`tool_calls` always there, the usage chunk always
            sent, the role in the first piece of text); `openai` in the shape of OpenAI's own API.
        reasoning_field: Name under which reasoning is sent; never under both, since some clients join them.
        on_demand: A request for a model of the catalog that is not loaded loads it; otherwise it gets the page's 404.
        ping_seconds: A stream with nothing to say for so long sends a comment, which also commits its status 200.
        max_image_bytes: Largest encoded image of a data URL.
        max_image_pixels: Largest width times height, read from the image's header before anything decodes it.
    """

    profile: Literal["llamapi", "openai"] = "llamapi"
    reasoning_field: Literal["reasoning_content", "reasoning"] = "reasoning_content"
    on_demand: bool = False
    ping_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 10.0
    max_image_bytes: Annotated[int, Field(ge=1)] = 32 * 1024 * 1024
    max_image_pixels: Annotated[int, Field(ge=1)] = 64_000_000


def read_settings(table: Mapping[str, JsonValue]) -> Settings:
    """Check the table.

    Raises:
        ConfigError: An unknown name or a wrong value; each is named.
    """
    return Settings.read("openai", table)
