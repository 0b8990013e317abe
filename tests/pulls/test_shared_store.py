"""One store and several that use it: pulls, cancels, removals and killed servers, in each other's way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hubs import Fault, Hub
from pulling import Pulls, content_of, first_bytes, run

from cardcage.catalog import Catalog
from cardcage_sdk.errors import (
    InternalError,
    ModelInUseError,
    ModelNotFoundError,
    PullCancelledError,
    SourceUnavailableError,
    StorageFullError,
)
from cardcage_sdk.library import PullRequest
from cardcage_sdk.models import ModelArtifact
from cardcage_sdk.sources import Claim, ModelReference, RemoteFile, RemoteModel, RemoteVariant, Source

GGUF = os.urandom(1 << 20) * 3
REPO = "Tiny/Talker-0.5B-GGUF"
FILE = "talker-0.5b-q4_0.gguf"


@pytest.fixture
def half_way(pulls: Pulls, hubs: dict[str, Hub]) -> Iterator[threading.Event]:
    """A model whose bytes stop half-way until the event is set."""
    gate = threading.Event()
    hubs["ollama"].add_ollama("library/talker", "latest", {"model": GGUF})
    hubs["ollama"].faults.append(Fault(path="/blobs/", cut_at=0.5, gate=gate))
    yield gate
    gate.set()


async def test_what_another_server_fetches_is_neither_fetched_nor_deleted(
    pulls: Pulls, half_way: threading.Event
) -> None:
    mine, other = pulls.library(), pulls.library()
    pulling = asyncio.create_task(run(mine, "talker"))
    await first_bytes(mine, "talker")
    end = await run(other, "talker")
    assert isinstance(end.error, SourceUnavailableError)
    assert "another server" in end.error.message
    with pytest.raises(ModelInUseError):
        await other.remove("talker")
    other.sweep()
    half_way.set()
    assert (await pulling).error is None
    assert (await run(other, "talker")).is_new is False


async def test_an_older_state_that_another_server_fetches_is_left_to_it(
    pulls: Pulls, hubs: dict[str, Hub], half_way: threading.Event
) -> None:
    mine, other = pulls.library(), pulls.library()
    pulling = asyncio.create_task(run(mine, "talker"))
    await first_bytes(mine, "talker")
    hubs["ollama"].add_ollama("library/talker", "latest", {"model": GGUF[::-1]})
    assert content_of(await run(other, "talker"), "model.gguf") == GGUF[::-1]
    half_way.set()
    assert (await pulling).error is None


async def test_a_pull_for_another_board_does_not_delete_what_came_for_this_one(
    pulls: Pulls, hubs: dict[str, Hub], half_way: threading.Event
) -> None:
    library = pulls.library()
    pulling = asyncio.create_task(run(library, "talker"))
    await first_bytes(library, "talker")
    (running,) = [pull for pull in library.pulls() if not pull.is_final]
    await library.cancel_pull(running.id)
    assert isinstance((await pulling).error, PullCancelledError)
    assert (await run(library, "talker", platform="other", chip="rk3588")).error is None
    assert len(pulls.partial_files()) == 1


class HeldCatalog(Catalog):
    """A store whose first look takes until a test says so, and then tells what there was when it began."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        self.looked, self.may_go_on = threading.Event(), threading.Event()

    def entries(self) -> list[ModelArtifact]:
        found = super().entries()
        if not self.looked.is_set():
            self.looked.set()
            assert self.may_go_on.wait(20)
        return found


async def test_a_pull_that_ends_while_another_looks_is_not_fetched_twice(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["ollama"]
    hub.add_ollama("library/talker", "latest", {"model": GGUF})
    catalog = HeldCatalog(pulls.store)
    library = pulls.library(catalog=catalog)
    first = asyncio.create_task(run(library, "talker"))
    await asyncio.to_thread(catalog.looked.wait, 20)
    second = library.start(PullRequest(model="talker:latest"))
    async for state in second.watch():
        if second.leader is not None or state.is_final:
            break
    catalog.may_go_on.set()
    assert (await first).error is None
    assert [state async for state in second.watch()][-1].error is None
    assert len(hub.ranges("/blobs/")) == 1


class Packed(Source):
    """A model in an archive, whose unpacking a test holds."""

    name = "packed"
    is_opaque = True

    def __init__(self, url: str) -> None:
        self.url = url
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def claims(self, reference: ModelReference) -> Claim:
        return Claim.CERTAIN if reference.source == self.name else Claim.NO

    async def resolve(self, reference: ModelReference) -> RemoteModel:
        files = (RemoteFile(name="model.zip", url=self.url, is_archive=True),)
        return RemoteModel(source=self.name, reference="talker", variants=(RemoteVariant(name="talker", files=files),))

    def unpack(self, archive: Path, file: RemoteFile, directory: Path) -> None:
        self.begun.set()
        assert self.may_go_on.wait(20)
        (directory / FILE).write_bytes(archive.read_bytes())


@pytest.mark.parametrize("how", ["cancelled", "removed", "closed"])
async def test_a_pull_that_ends_while_it_unpacks_does_not_appear_in_the_store_afterwards(
    pulls: Pulls, hubs: dict[str, Hub], how: str
) -> None:
    hubs["ollama"].plain[FILE] = GGUF
    packed = Packed(f"{hubs['ollama'].url}/plain/{FILE}")
    library = pulls.library(more=[packed])
    pulling = asyncio.create_task(run(library, "packed:talker"))
    await asyncio.to_thread(packed.begun.wait, 20)
    (running,) = library.pulls()
    ends = {
        "cancelled": lambda: library.cancel_pull(running.id),
        "removed": lambda: library.remove("packed:talker"),
        "closed": library.close,
    }
    ending = asyncio.ensure_future(ends[how]())
    # One turn of the loop is what the cancel needs to reach the pull, whose thread is still held.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    packed.may_go_on.set()
    await ending
    end = await pulling
    assert end.state == ("interrupted" if how == "closed" else "cancelled")
    assert Catalog(pulls.store).entries() == []
    if how == "removed":
        assert pulls.everything() == [".partial"]
    else:
        assert (await run(pulls.library(more=[packed]), "packed:talker")).error is None


async def test_a_removal_means_one_model(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["huggingface"]
    hub.repositories[REPO] = {FILE: GGUF, FILE.replace("q4_0", "q8_0"): GGUF, FILE.replace("q4_0", "q5_k_m"): GGUF}
    gate = threading.Event()
    hub.faults += [Fault(path=f"{name}.gguf", cut_at=0.5, gate=gate) for name in ("q8_0", "q5_k_m")]
    library = pulls.library()
    assert (await run(library, f"{REPO}:Q4_0")).error is None
    others = [asyncio.create_task(run(library, f"{REPO}:{label}")) for label in ("Q8_0", "Q5_K_M")]
    await first_bytes(library, f"{REPO}:Q8_0")
    await first_bytes(library, f"{REPO}:Q5_K_M")
    await library.remove("talker")
    assert library.stored() == []
    assert len(pulls.partial_files()) == 2
    with pytest.raises(ModelNotFoundError, match="several unfinished"):
        await library.remove("talker")
    await library.remove("talker:0.5b-q8_0")
    assert (await others[0]).state == "cancelled"
    assert len(pulls.partial_files()) == 1
    await library.remove("talker")
    assert (await others[1]).state == "cancelled"
    gate.set()
    assert pulls.everything() == [".partial"]


# --- killed in the middle ---------------------------------------------------------------------------------------------


async def test_a_model_that_was_being_replaced_when_the_server_was_killed_is_back(
    pulls: Pulls, hubs: dict[str, Hub]
) -> None:
    hubs["ollama"].add_ollama("library/talker", "latest", {"model": GGUF})
    end = await run(pulls.library(), "talker")
    assert end.result is not None
    target = Path(end.result.path)
    old = target.with_name(f".replaced-{target.name}")
    shutil.move(target, old)
    assert Catalog(pulls.store).entries() == []
    pulls.library().sweep()
    assert content_of(end, "model.gguf") == GGUF
    # Killed one step later, the new one is there, and the old one goes.
    shutil.copytree(target, old)
    pulls.library().sweep()
    assert os.listdir(target.parent) == [target.name]


async def test_what_is_left_of_a_pull_that_was_complete_when_the_server_was_killed_goes(
    pulls: Pulls, half_way: threading.Event
) -> None:
    library = pulls.library()
    pulling = asyncio.create_task(run(library, "talker"))
    await first_bytes(library, "talker")
    await library.close()
    await pulling
    (folder,) = (pulls.store / ".partial").iterdir()
    pulls.library().sweep()
    assert (folder / "files").is_dir(), "what can be continued stays"
    (folder / "files").rename(pulls.store / "moved")
    pulls.library().sweep()
    assert not folder.exists()


# --- a disk that refuses ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def disk(place: Path, *options: str) -> Iterator[None]:
    """A small file system of its own."""
    place.mkdir(exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(("size=4m", *options)), "tmpfs", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"this machine lets nobody mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def make_read_only(place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


async def test_a_store_that_cannot_be_written_is_said_to_be_so(tmp_path: Path, hubs: dict[str, Hub]) -> None:
    hubs["ollama"].add_ollama("library/talker", "latest", {"model": GGUF})
    with disk(tmp_path / "small"):
        pulls = Pulls(tmp_path / "small", hubs)
        library = pulls.library()
        assert (await run(library, "talker")).error is None
        (pulls.store / ".partial" / "left").mkdir()
        make_read_only(pulls.store)
        end = await run(library, "talker", name="other")
        assert isinstance(end.error, InternalError)
        assert f"'{pulls.store}' cannot be used: Read-only file system" in end.error.message
        with pytest.raises(InternalError, match="Read-only file system"):
            await library.remove("talker")
        pulls.library().sweep()
        await library.close()


@pytest.mark.parametrize("when", ["at the beginning", "while unpacking"])
async def test_a_full_disk_is_said_to_be_full_in_every_step(tmp_path: Path, hubs: dict[str, Hub], when: str) -> None:
    hubs["ollama"].plain[FILE] = GGUF[: 1 << 20]
    with disk(tmp_path / "small", "nr_inodes=24"):
        pulls = Pulls(tmp_path / "small", hubs)
        packed = Packed(f"{hubs['ollama'].url}/plain/{FILE}")
        library = pulls.library(more=[packed])
        if when == "at the beginning":
            with contextlib.suppress(OSError):
                for number in range(24):
                    (pulls.store / f"filler-{number}").touch()
        pulling = asyncio.create_task(run(library, "packed:talker"))
        if when == "while unpacking":
            await asyncio.to_thread(packed.begun.wait, 20)
            (pulls.store / "filler").write_bytes(bytes(5 << 19))
        packed.may_go_on.set()
        end = await pulling
        assert isinstance(end.error, StorageFullError), end.error
        assert library.stored() == []
        await library.close()
