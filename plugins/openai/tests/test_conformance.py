"""The sdk's conformance suite, as every dialect runs it."""

from __future__ import annotations

from cardcage_dialect_openai.plugin import OpenAIDialect
from cardcage_sdk.testing.dialect_suite import DialectSuite


class TestOpenAI(DialectSuite):
    """With default settings."""

    dialect = OpenAIDialect


class TestOpenAIProfile(DialectSuite):
    """With every setting away from its default."""

    dialect = OpenAIDialect
    settings = {  # noqa: RUF012 - a mapping that the suite only reads
        "profile": "openai",
        "reasoning_field": "reasoning",
        "on_demand": True,
        "ping_seconds": 5,
        "max_image_bytes": 1,
        "max_image_pixels": 1,
    }
