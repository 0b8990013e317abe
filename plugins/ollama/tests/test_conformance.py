"""The sdk's conformance suite, as every dialect runs it."""

from __future__ import annotations

from cardcage_dialect_ollama.plugin import OllamaDialect
from cardcage_sdk.testing.dialect_suite import DialectSuite


class TestOllama(DialectSuite):
    """With default settings."""

    dialect = OllamaDialect


class TestOllamaSettings(DialectSuite):
    """With every setting away from its default."""

    dialect = OllamaDialect
    settings = {  # noqa: RUF012 - a mapping that the suite only reads
        "version": "0.5.0",
        "num_ctx": "exact",
        "runtime_options": "ignore",
        "max_image_bytes": 1,
        "max_image_pixels": 1,
    }
