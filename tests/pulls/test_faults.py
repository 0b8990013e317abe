"""Connections that break, answers that lie, disks that fill: what comes out is the model or a clear error, never half of it."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hubs import Fault, Hub
from pulling import Pulls, content_of, first_bytes, run

from cardcage.catalog import Catalog
from cardcage_sdk.errors import (
    CorruptDownloadError,
    DrainingError,
    InvalidRequestError,
    ModelNotFoundError,
    PullCancelledError,
    SourceRefusedError,
    SourceUnavailableError,
    StorageFullError,
)

GGUF = os.urandom(1 << 20) * 3
REPO = "Tiny/Talker-0.5B-GGUF"
FILE = "talker-0.5b-q4_0.gguf"

PROTOCOLS = {
    "huggingface": (f"huggingface:{REPO}", "/resolve/"),
    "modelscope": (f"modelscope:{REPO}", "FilePath="),
    "ollama": ("talker", "/blobs/"),
    "url": ("{url}/plain/talker-0.5b-q4_0.gguf", "/plain/"),
}


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest, hubs: dict[str, Hub]) -> tuple[Hub, str, str]:
    """A hub with the model, the name to pull it by, and what the path of its bytes has in it."""
    model, part = PROTOCOLS[request.param]
    hub = hubs.get(request.param, hubs["huggingface"])
    hub.repositories[REPO] = {FILE: GGUF}
    hub.plain[FILE] = GGUF
    hub.add_ollama("library/talker", "latest", {"model": GGUF})
    return hub, model.format(url=hub.url), part


def only_model(pulls: Pulls) -> bytes:
    (folder,) = Catalog(pulls.store).entries()
    (file,) = folder.files
    return (folder.path / file.name).read_bytes()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
async def test_a_cut_connection_is_resumed_where_it_broke(
    pulls: Pulls, protocol: tuple[Hub, str, str], part: float
) -> None:
    hub, model, path = protocol
    hub.faults.append(Fault(path=path, cut_at=part))
    end = await run(pulls.library(), model)
    assert end.error is None
    assert only_model(pulls) == GGUF
    first, second = hub.ranges(path)[:2]
    assert first is None
    assert second is not None
    start = int(second.removeprefix("bytes=").removesuffix("-"))
    # Nothing that came is lost, but what the sockets' own buffers threw away with the connection.
    assert int(len(GGUF) * part) - (64 << 10) <= start <= int(len(GGUF) * part)


async def test_a_connection_that_breaks_for_ever_fails_and_the_next_pull_goes_on(
    pulls: Pulls, protocol: tuple[Hub, str, str]
) -> None:
    hub, model, path = protocol
    # The first two bring more than a megabyte each and count anew; then nothing comes any more.
    hub.faults += [Fault(path=path, cut_at=0.4), Fault(path=path, times=3, cut_at=0.0)]
    end = await run(pulls.library(), model)
    assert isinstance(end.error, SourceUnavailableError)
    assert Catalog(pulls.store).entries() == []
    (left,) = pulls.partial_files()
    there = left.stat().st_size
    assert GGUF.startswith(left.read_bytes())
    library = pulls.library()
    (interrupted,) = library.pulls()
    assert interrupted.state == "interrupted"
    end = await run(library, model)
    assert end.error is None
    assert only_model(pulls) == GGUF
    assert hub.ranges(path)[-1] == f"bytes={there}-"
    assert pulls.everything()[0] == ".partial"
    assert not list((pulls.store / ".partial").iterdir())


async def test_wrong_bytes_never_reach_the_store(pulls: Pulls, protocol: tuple[Hub, str, str]) -> None:
    hub, model, path = protocol
    hub.faults.append(Fault(path=path, times=9, is_wrong=True))
    if "/plain/" in model:
        model += f"#sha256={hashlib.sha256(GGUF).hexdigest()}"
    end = await run(library := pulls.library(), model)
    assert isinstance(end.error, CorruptDownloadError)
    assert "sha256" in end.error.message
    assert library.stored() == []
    assert pulls.partial_files() == []
    hub.faults.clear()
    assert (await run(library, model)).error is None
    assert only_model(pulls) == GGUF


async def test_a_corrupt_part_is_thrown_away_and_fetched_again(pulls: Pulls, protocol: tuple[Hub, str, str]) -> None:
    hub, model, path = protocol
    if "/plain/" in model:
        model += f"#sha256={hashlib.sha256(GGUF).hexdigest()}"
    hub.faults.append(Fault(path=path, times=3, cut_at=0.3))
    assert isinstance((await run(pulls.library(), model)).error, SourceUnavailableError)
    (left,) = pulls.partial_files()
    left.write_bytes(b"\0" * left.stat().st_size)
    end = await run(pulls.library(), model)
    assert end.error is None
    assert only_model(pulls) == GGUF


async def test_a_source_without_ranges_sends_all_again(pulls: Pulls, protocol: tuple[Hub, str, str]) -> None:
    hub, model, path = protocol
    hub.faults += [Fault(path=path, cut_at=0.5), Fault(path=path, ignores_range=True)]
    assert (await run(pulls.library(), model)).error is None
    assert only_model(pulls) == GGUF


async def test_a_range_that_is_not_there_restarts_cleanly(pulls: Pulls, protocol: tuple[Hub, str, str]) -> None:
    hub, model, path = protocol
    hub.faults += [Fault(path=path, cut_at=0.5), Fault(path=path, status=416)]
    assert (await run(pulls.library(), model)).error is None
    assert only_model(pulls) == GGUF
    assert hub.ranges(path)[-1] is None or "cdn" in path


async def test_without_hash_and_validator_nothing_is_continued(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["huggingface"]
    hub.has_etags = False
    hub.plain[FILE] = GGUF
    hub.faults.append(Fault(path="/plain/", cut_at=0.5))
    assert (await run(pulls.library(), f"{hub.url}/plain/{FILE}")).error is None
    assert hub.ranges("/plain/") == [None, None]
    assert only_model(pulls) == GGUF


async def test_content_that_changed_under_a_plain_address_is_fetched_whole(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["huggingface"]
    hub.plain[FILE] = GGUF
    hub.faults.append(Fault(path="/plain/", times=3, cut_at=0.3))
    model = f"{hub.url}/plain/{FILE}"
    assert isinstance((await run(pulls.library(), model)).error, SourceUnavailableError)
    hub.plain[FILE] = GGUF[::-1]
    assert (await run(pulls.library(), model)).error is None
    assert only_model(pulls) == GGUF[::-1]


async def test_what_is_left_of_an_older_state_of_a_model_is_deleted(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["huggingface"]
    hub.repositories[REPO] = {FILE: GGUF}
    hub.faults.append(Fault(path="/resolve/", times=3, cut_at=0.3))
    assert isinstance((await run(pulls.library(), f"huggingface:{REPO}")).error, SourceUnavailableError)
    assert len(pulls.partial_files()) == 1
    hub.repositories[REPO] = {FILE: GGUF[::-1]}
    assert (await run(pulls.library(), f"huggingface:{REPO}")).error is None
    assert only_model(pulls) == GGUF[::-1]
    assert not list((pulls.store / ".partial").iterdir())


async def test_several_files_go_on_with_the_one_that_broke(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["huggingface"]
    hub.repositories[REPO] = {"t-q4_0-00001-of-00002.gguf": GGUF, "t-q4_0-00002-of-00002.gguf": GGUF[::-1]}
    hub.faults.append(Fault(path="/resolve/", cut_at=1.0))
    hub.faults.append(Fault(path="00002-of-00002", times=3, cut_at=0.3))
    assert isinstance((await run(pulls.library(), f"huggingface:{REPO}")).error, SourceUnavailableError)
    whole = next((pulls.store / ".partial").rglob("*00001-of-00002.gguf"))
    # A disk that forgets: the first file was whole and checked, and is not any more.
    whole.write_bytes(b"\0" * len(GGUF))
    end = await run(pulls.library(), f"huggingface:{REPO}")
    assert end.error is None
    assert content_of(end, "t-q4_0-00001-of-00002.gguf") == GGUF
    assert content_of(end, "t-q4_0-00002-of-00002.gguf") == GGUF[::-1]


@pytest.mark.parametrize("status", [429, 503])
async def test_come_again_and_then_success(pulls: Pulls, protocol: tuple[Hub, str, str], status: int) -> None:
    hub, model, path = protocol
    hub.faults.append(Fault(path=path, status=status, times=2, headers={"retry-after": "1"}))
    for listing in ("/api/", "/manifests/"):
        hub.faults.append(Fault(path=listing, status=status, times=2))
    if path == "FilePath=":
        hub.faults = [Fault(path="/repo/files", status=status, times=2), Fault(path=path, status=status, times=2)]
    assert (await run(pulls.library(), model)).error is None
    assert only_model(pulls) == GGUF


async def test_not_found_is_final(pulls: Pulls, protocol: tuple[Hub, str, str]) -> None:
    hub, model, _ = protocol
    hub.repositories.clear()
    hub.manifests.clear()
    hub.plain.clear()
    end = await run(pulls.library(), model)
    assert isinstance(end.error, ModelNotFoundError)
    assert len(hub.asked) == 1
    assert [item for item in pulls.everything() if "model.toml" in item] == []


async def test_a_file_that_wants_a_key(pulls: Pulls, protocol: tuple[Hub, str, str]) -> None:
    hub, model, path = protocol
    hub.faults.append(Fault(path=path, status=403))
    assert isinstance((await run(pulls.library(), model)).error, SourceRefusedError)


# --- both hubs --------------------------------------------------------------------------------------------------------


async def test_both_hubs_are_asked_at_once_and_the_first_answer_counts(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    for hub in hubs.values():
        hub.repositories[REPO] = {FILE: GGUF}
    gate = threading.Event()
    hubs["huggingface"].faults.append(Fault(path="/api/models", gate=gate))
    end = await run(pulls.library(), REPO)
    assert end.source == f"modelscope:{REPO}:Q4_0"
    assert len(hubs["huggingface"].asked) == 1
    gate.set()
    assert only_model(pulls) == GGUF


@pytest.mark.parametrize("has_it", ["huggingface", "modelscope"])
async def test_the_hub_that_has_the_model_wins(pulls: Pulls, hubs: dict[str, Hub], has_it: str) -> None:
    hubs[has_it].repositories[REPO] = {FILE: GGUF}
    end = await run(pulls.library(), REPO)
    assert end.source == f"{has_it}:{REPO}:Q4_0"


async def test_a_hub_that_fails_does_not_matter_where_the_other_answers(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hubs["modelscope"].repositories[REPO] = {FILE: GGUF}
    hubs["huggingface"].faults.append(Fault(path="/api/", status=500, times=3))
    assert (await run(pulls.library(), REPO)).source == f"modelscope:{REPO}:Q4_0"


async def test_no_hub_has_it(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    end = await run(pulls.library(), REPO)
    assert isinstance(end.error, ModelNotFoundError)
    assert "huggingface or modelscope" in end.error.message
    hubs["modelscope"].faults.append(Fault(path="/api/", status=500, times=9))
    end = await run(pulls.library(), REPO)
    assert isinstance(end.error, SourceUnavailableError), "one hub could not tell, so nobody knows"
    assert len([1 for _, path, _ in hubs["modelscope"].asked]) == 1 + 3


async def test_names_that_no_source_knows(pulls: Pulls) -> None:
    end = await run(pulls.library(), REPO, source="nowhere")
    assert isinstance(end.error, InvalidRequestError)
    with pytest.raises(InvalidRequestError):
        await run(pulls.library(), "../x")


# --- several callers --------------------------------------------------------------------------------------------------


async def test_pulls_of_one_model_share_one_download(pulls: Pulls, protocol: tuple[Hub, str, str]) -> None:
    hub, model, path = protocol
    gate = threading.Event()
    hub.faults.append(Fault(path=path, cut_at=0.5, gate=gate))
    library = pulls.library()
    same = [asyncio.create_task(run(library, model)) for _ in range(3)]
    # Another wish for the same files.
    other = asyncio.create_task(run(library, f"{model} "))
    await first_bytes(library, model)
    await first_bytes(library, f"{model} ")
    assert len(library.pulls()) == 2
    gate.set()
    ends = await asyncio.gather(*same, other)
    assert [end.error for end in ends] == [None] * 4
    assert len({end.result for end in ends}) == 1
    assert hub.ranges(path).count(None) == 1
    assert only_model(pulls) == GGUF


async def test_two_names_of_the_same_files_share_one_download(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["huggingface"]
    hub.repositories[REPO] = {FILE: GGUF}
    gate = threading.Event()
    hub.faults.append(Fault(path="/resolve/", cut_at=0.5, gate=gate))
    library = pulls.library()
    first = asyncio.create_task(run(library, f"huggingface:{REPO}"))
    await first_bytes(library, f"huggingface:{REPO}")
    second = asyncio.create_task(run(library, f"hf.co/{REPO}:Q4_0"))
    await first_bytes(library, f"hf.co/{REPO}:Q4_0")
    gate.set()
    ends = await asyncio.gather(first, second)
    assert [end.result for end in ends] == [ends[0].result] * 2
    assert ends[0].error is None
    assert hub.ranges("/resolve/") == [None]


async def test_a_caller_that_leaves_stops_nothing_and_one_that_says_so_does(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["ollama"]
    hub.add_ollama("library/talker", "latest", {"model": GGUF})
    gate = threading.Event()
    hub.faults.append(Fault(path="/blobs/", cut_at=0.5, gate=gate))
    library = pulls.library()
    await first_bytes(library, "talker")
    (running,) = library.pulls()
    assert running.state == "downloading"
    with pytest.raises(ModelNotFoundError):
        await library.cancel_pull("no such pull")
    await library.cancel_pull(running.id)
    (ended,) = [pull for pull in library.pulls() if pull.id == running.id]
    assert ended.state == "cancelled"
    assert isinstance(ended.error, PullCancelledError)
    assert len(pulls.partial_files()) == 1
    gate.set()
    assert await library.remove("talker") is None, "there was nothing whole to remove"
    assert pulls.everything() == [".partial"]


async def test_closing_leaves_what_was_fetched_and_takes_nothing_new(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["ollama"]
    hub.add_ollama("library/talker", "latest", {"model": GGUF})
    gate = threading.Event()
    hub.faults.append(Fault(path="/blobs/", cut_at=0.5, gate=gate))
    library = pulls.library()
    watching = asyncio.create_task(run(library, "talker"))
    await first_bytes(library, "talker")
    await library.close()
    end = await watching
    assert (end.state, type(end.error)) == ("interrupted", DrainingError)
    gate.set()
    with pytest.raises(DrainingError):
        await run(library, "talker")
    assert (await run(pulls.library(), "talker")).error is None
    assert only_model(pulls) == GGUF


# --- the disk ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"this machine lets nobody mount a tmpfs here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_space_is_checked_before_a_byte_is_fetched(small_disk: Path, hubs: dict[str, Hub]) -> None:
    hub = hubs["ollama"]
    hub.add_ollama("library/talker", "latest", {"model": GGUF * 2})
    pulls = Pulls(small_disk, hubs)
    library = pulls.library()
    end = await run(library, "talker")
    assert isinstance(end.error, StorageFullError)
    assert end.error.needed_bytes == len(GGUF) * 2
    assert hub.ranges("/blobs/") == []
    await library.close()


async def test_space_is_checked_as_soon_as_a_plain_address_tells_its_size(
    small_disk: Path, hubs: dict[str, Hub]
) -> None:
    hub = hubs["ollama"]
    hub.plain[FILE] = GGUF * 2
    pulls = Pulls(small_disk, hubs)
    library = pulls.library()
    end = await run(library, f"{hub.url}/plain/{FILE}")
    assert isinstance(end.error, StorageFullError)
    assert end.error.needed_bytes == len(GGUF) * 2
    assert end.completed_bytes == 0
    await library.close()


async def test_a_disk_that_fills_meanwhile(small_disk: Path, hubs: dict[str, Hub]) -> None:
    hub = hubs["ollama"]
    hub.add_ollama("library/talker", "latest", {"model": GGUF})
    gate = threading.Event()
    hub.faults.append(Fault(path="/blobs/", cut_at=0.3, gate=gate))
    pulls = Pulls(small_disk, hubs)
    library = pulls.library()
    pulling = asyncio.create_task(run(library, "talker"))
    await first_bytes(library, "talker")
    (small_disk / "somebody else").write_bytes(b"\0" * (2 << 20))
    gate.set()
    end = await pulling
    assert isinstance(end.error, StorageFullError)
    assert library.stored() == []
    (small_disk / "somebody else").unlink()
    assert (await run(library, "talker")).error is None
    assert only_model(pulls) == GGUF
    assert hub.ranges("/blobs/")[-1] is not None, "what was there is not fetched again"
    await library.close()
