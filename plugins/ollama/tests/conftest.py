"""Servers that the tests of this folder share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# `ollama_serving` is a plain module beside these tests; importlib mode puts no folder on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))

from ollama_serving import Server, serve


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With default settings."""
    with serve(tmp_path_factory.mktemp("ollama")) as started:
        yield started
