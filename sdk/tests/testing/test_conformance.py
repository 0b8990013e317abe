"""Our own engines pass the kit."""

import json
from pathlib import Path
from typing import Any

import pytest

from cardcage_sdk.testing import PlatformSuite, ScriptedBatchPlatform, ScriptedPlatform

SCRIPT = {
    "answers": [
        "The sea is wide — und tief — and the fox 🦊 looks at it every morning.",
        "A storm came up, and all the ships went home.",
        "No wind today, no waves, no ships.",
    ],
    "reasoning": "They want a story.",
}


class Scripted(PlatformSuite):
    @pytest.fixture(scope="class")
    @classmethod
    def model_path(cls, tmp_path_factory: pytest.TempPathFactory) -> Any:
        path: Path = tmp_path_factory.mktemp("model") / f"sea{cls.platform.suffix}"
        path.write_text(json.dumps(SCRIPT), encoding="utf-8")
        return path


class TestScripted(Scripted):
    platform = ScriptedPlatform


class TestScriptedBatch(Scripted):
    platform = ScriptedBatchPlatform


class TestBytesForTokens(Scripted):
    """Every character is cut apart."""

    platform = ScriptedBatchPlatform
    options = {"piece_bytes": 1, "reasoning": ""}  # noqa: RUF012 - as the kit's users write it


class TestEmbeddingOnly(Scripted):
    platform = ScriptedPlatform
    options = {"tasks": ["embed"]}  # noqa: RUF012 - as the kit's users write it


class TestBatchChatOnly(Scripted):
    platform = ScriptedBatchPlatform
    options = {"tasks": ["chat"]}  # noqa: RUF012 - as the kit's users write it
