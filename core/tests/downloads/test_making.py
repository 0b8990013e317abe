"""Models made from models and uploads, on a real store."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cardcage.catalog import Catalog
from cardcage.downloads import Downloads
from cardcage.downloads.uploads import KEPT_SECONDS, UPLOADS
from cardcage_sdk.chat import Message, Sampling, TextPart
from cardcage_sdk.errors import InvalidRequestError, ModelInUseError, ModelNotFoundError, PlatformDetectionError
from cardcage_sdk.library import CreateRequest
from cardcage_sdk.service import GenerationDefaults
from cardcage_sdk.testing.platforms import ScriptedBatchPlatform, ScriptedPlatform

SCRIPT = b'{"answer": "hi"}'
DIGEST = hashlib.sha256(SCRIPT).hexdigest()


class Home:
    def __init__(self, store: Path) -> None:
        self.catalog = Catalog(store)
        self.loaded: set[Path] = set()
        self.library = Downloads(
            catalog=self.catalog,
            platforms={"scripted": ScriptedPlatform(), "scripted-batch": ScriptedBatchPlatform()},
            sources={},
            allows_path=lambda _path: True,
            is_loaded=lambda path: int(path in self.loaded),
        )

    def add(self, name: str = "fox", size: str = "1b", more: str = "", platform: str = "scripted") -> Path:
        directory = self.catalog.store / platform / "cpu" / f"{name}-{size}"
        directory.mkdir(parents=True)
        (directory / f"m.{platform}.json").write_bytes(SCRIPT)
        (directory / "model.toml").write_text(
            f'schema = 1\nname = "{name}"\nsize = "{size}"\nkind = "chat"\nplatform = "{platform}"\nchips = ["cpu"]\n{more}\n'
            f'[[files]]\nname = "m.{platform}.json"\nsize_bytes = {len(SCRIPT)}\nsha256 = "{DIGEST}"\n'
        )
        return directory


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "store")


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        await asyncio.sleep(0)
        yield part


async def test_a_model_from_another_one(home: Home) -> None:
    base = home.add(more='[default_params]\ntemperature = 0.5\nstop = ["x"]\n')
    defaults = GenerationDefaults(
        sampling=Sampling(top_k=7, stop=("a", "b")),
        max_context_len=999,
        system='Be "Mario".',
        messages=(Message(role="user", content=(TextPart("hi\nthere"),)),),
    )
    made = await home.library.create(
        CreateRequest(name="me/Mario:v1", base="fox", defaults=defaults, chat_template="{{ messages }}", license="MIT")
    )
    assert (made.name, made.license, made.platform, made.chips) == ("me-Mario:v1", "MIT", "scripted", ("cpu",))
    for name in ("ME/mario:V1", "me-mario:v1", made.id):
        assert home.library.find(name) == made
    with pytest.raises(ModelNotFoundError):
        home.library.find("mario")
    artifact = home.catalog.find("me/mario:v1")
    assert artifact.chat_template == "{{ messages }}"
    kept = home.catalog.defaults(artifact)
    assert kept == GenerationDefaults(
        sampling=Sampling(temperature=0.5, top_k=7, stop=("a", "b")),
        max_context_len=999,
        system='Be "Mario".',
        messages=defaults.messages,
    )
    assert (artifact.directory / "m.scripted.json").stat().st_ino == (base / "m.scripted.json").stat().st_ino
    assert made.digest != home.library.find("fox").digest
    assert made.files == artifact.files
    await home.library.remove("fox")
    assert (artifact.directory / "m.scripted.json").read_bytes() == SCRIPT


async def test_a_copy_is_the_same_model_under_another_name(home: Home) -> None:
    home.add()
    made = await home.library.create(CreateRequest(name="copy", base="fox:1b"))
    assert made.name == "copy"
    assert home.library.find("copy:latest") == made
    assert made.digest == home.library.find("fox").digest
    again = await home.library.create(CreateRequest(name="copy:latest", base="copy", license="X"))
    assert again.path == made.path
    assert [model.name for model in home.library.stored()] == ["copy", "fox:1b"]


async def test_a_model_of_the_same_name_on_another_platform_is_replaced(home: Home) -> None:
    home.add("fox", "1b")
    home.add("cat", "1b", platform="scripted-batch")
    made = await home.library.create(CreateRequest(name="pet", base="fox"))
    home.loaded.add(Path(made.path))
    with pytest.raises(ModelInUseError):
        await home.library.create(CreateRequest(name="pet", base="cat"))
    home.loaded.clear()
    again = await home.library.create(CreateRequest(name="pet", base="cat"))
    assert home.library.find("pet") == again
    assert again.platform == "scripted-batch"


async def test_a_model_from_uploads(home: Home) -> None:
    assert not await home.library.has_file(DIGEST)
    assert await home.library.add_file(DIGEST, chunks(SCRIPT[:5], SCRIPT[5:]))
    assert not await home.library.add_file(DIGEST, chunks(SCRIPT))
    assert await home.library.has_file(DIGEST)
    made = await home.library.create(CreateRequest(name="up", files={"up.scripted-batch.json": DIGEST}))
    assert (made.platform, made.chips, made.size_bytes) == ("scripted-batch", ("cpu",), len(SCRIPT))
    with pytest.raises(PlatformDetectionError):
        await home.library.create(CreateRequest(name="odd", files={"weights.bin": DIGEST}))
    with pytest.raises(ModelNotFoundError, match="blob 'sha256:0000"):
        await home.library.create(CreateRequest(name="odd", files={"up.scripted.json": "0" * 64}))
    for name in ("/etc/x", "../x", "a/../b", ".hidden", "model.toml"):
        with pytest.raises(InvalidRequestError, match="must be relative"):
            await home.library.create(CreateRequest(name="odd", files={name: DIGEST}))
    with pytest.raises(InvalidRequestError, match="neither 'from' or 'files' was specified"):
        await home.library.create(CreateRequest(name="odd"))
    assert [model.name for model in home.library.stored()] == ["up"]
    assert not list((home.catalog.store / ".making").iterdir())


async def test_an_upload_that_is_not_what_it_says(home: Home) -> None:
    other = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(InvalidRequestError) as caught:
        await home.library.add_file(DIGEST, chunks(b"other"))
    assert caught.value.message == f'digest mismatch, expected "sha256:{DIGEST}", got "sha256:{other}"'
    assert list((home.catalog.store / UPLOADS).iterdir()) == []
    with pytest.raises(InvalidRequestError, match="invalid digest format"):
        await home.library.add_file("../../etc/passwd", chunks(b""))


async def test_a_file_of_a_model_counts_as_uploaded(home: Home) -> None:
    home.add()
    assert await home.library.has_file(DIGEST)
    assert not await home.library.add_file(DIGEST, chunks(SCRIPT))
    assert (await home.library.create(CreateRequest(name="up", files={"x.scripted.json": DIGEST}))).name == "up"


async def test_uploads_do_not_stay_for_ever(home: Home) -> None:
    await home.library.add_file(DIGEST, chunks(SCRIPT))
    folder = home.catalog.store / UPLOADS
    (folder / "0123.part").write_bytes(b"half")
    (home.catalog.store / ".making" / "x").mkdir(parents=True)
    home.library.sweep()
    assert [path.name for path in folder.iterdir()] == [DIGEST]
    assert not (home.catalog.store / ".making").exists()
    old = (folder / DIGEST).stat().st_mtime - KEPT_SECONDS - 1
    os.utime(folder / DIGEST, (old, old))
    home.library.sweep()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b/c", "hf.co/a/b", "x@scripted-cpu", "https://x/y", "a:b/c"])
async def test_names_that_no_model_here_can_have(home: Home, name: str) -> None:
    home.add()
    with pytest.raises(InvalidRequestError):
        await home.library.create(CreateRequest(name=name, base="fox"))


async def test_descriptions(home: Home) -> None:
    home.add(more='system = "Hi."')
    home.add("vec", "2b", platform="gone")
    described = await home.library.describe("fox")
    assert described.defaults.system == "Hi."
    assert described.capabilities is not None
    assert described.capabilities.tasks == {"chat"}
    found = {item.model.name: item.capabilities for item in await home.library.descriptions()}
    assert set(found) == {"fox:1b", "vec:2b"}
    assert found["vec:2b"] is None
    with pytest.raises(ModelNotFoundError):
        await home.library.describe("nobody")
