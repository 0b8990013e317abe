"""Servers that the tests of this folder share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# `serving` is a plain module beside these tests; importlib mode puts no folder on the path by itself.
sys.path.insert(0, str(Path(__file__).parent))

from serving import Server, serve


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the default profile; pings come early, so that tests need not wait ten seconds for one."""
    with serve(tmp_path_factory.mktemp("openai"), "ping_seconds = 0.2") as started:
        yield started


@pytest.fixture(scope="session")
def openai_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the profile `openai` and the other name for reasoning."""
    settings = 'profile = "openai"\nreasoning_field = "reasoning"\nping_seconds = 0.2'
    with serve(tmp_path_factory.mktemp("openai-profile"), settings) as started:
        yield started


@pytest.fixture(scope="session")
def hello(server: Server) -> Iterator[str]:
    """A model that says `Hello there, friend.`"""
    with server.loaded(answer="Hello there, friend.") as model_id:
        yield model_id
