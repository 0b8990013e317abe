"""The talking dialect as a distribution that a server finds by its entry point."""

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def talk_site(tmp_path_factory) -> Path:
    """A directory for PYTHONPATH with a distribution `tiny-talk` in it."""
    site = tmp_path_factory.mktemp("talk-site")
    shutil.copy(Path(__file__).parent / "talk.py", site / "tiny_talk.py")
    info = site / "tiny_talk-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-talk\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[cardcage.dialects]\ntalk = tiny_talk\n")
    return site


@pytest.fixture
def scripted(tmp_path):
    """Makes a model file of the scripted platform and the `[[models]]` entry that loads it."""

    def make(model_id: str = "m", **script) -> str:
        file = tmp_path / f"{model_id}.scripted.json"
        file.write_text(json.dumps(script))
        return f'\n[[models]]\nmodel_id = "{model_id}"\nmodel_path = "{file}"\nplatform = "scripted"\n'

    return make
