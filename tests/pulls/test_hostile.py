"""Sources that list nonsense and servers that lie: a clear error or the right model, never a wrong one or an internal fault."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hubs import Fault, Hub, raw_answer
from pulling import Pulls, content_of, run

from cardcage.downloads import RetryPolicy
from cardcage.downloads.openers import Openers
from cardcage.downloads.transfer import Transfer
from cardcage_sdk.errors import CorruptDownloadError, InvalidModelError, ModelNotFoundError, SourceUnavailableError
from cardcage_sdk.sources import RemoteFile

SMALL = b"GGUF" + os.urandom(5000)
SIZE = len(SMALL)
LARGE = b"GGUF" + os.urandom(3 << 20)
REPO = "Tiny/Talker-0.5B-GGUF"
FILE = "talker-0.5b-q4_0.gguf"


# --- what a hub lists -------------------------------------------------------------------------------------------------


def listing(*siblings: Any, **more: Any) -> bytes:
    """An answer of Hugging Face with these files."""
    body = {"id": REPO, "modelId": REPO, "sha": "a" * 40, "siblings": list(siblings), "tags": [], **more}
    return raw_answer(json.dumps(body).encode(), "content-type: application/json")


def sibling(name: Any, *, size: Any = SIZE, sha256: Any = None) -> dict[str, Any]:
    return {"rfilename": name, "size": size, "blobId": "0", "lfs": {"sha256": sha256, "size": size, "pointerSize": 1}}


NONSENSE = {
    "a page of HTML": raw_answer(b"<html>Sign in</html>", "content-type: text/html"),
    "half an answer": listing(sibling(FILE))[:-20],
    "a list": raw_answer(b"[]"),
    "nothing known": raw_answer(b"{}"),
    "files without names": listing({"size": 4}),
    "a name that is none": listing(sibling(None)),
    "a file that is a text": listing("x"),
    "half a character": listing(sibling("a\ud800.gguf")),
    "a revision that is none": listing(sibling(FILE), sha=5),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE)
async def test_an_answer_that_is_no_list_of_files(pulls: Pulls, hubs: dict[str, Hub], answer: bytes) -> None:
    hubs["huggingface"].faults.append(Fault(path="/api/models/", times=3, raw=answer))
    end = await run(pulls.library(), f"huggingface:{REPO}")
    assert isinstance(end.error, SourceUnavailableError)
    assert "unknown form" in end.error.message


REFUSED = {
    "a long part": listing(sibling("b" * 251 + ".gguf")),
    "a long part of wide characters": listing(sibling("语" * 90 + ".gguf")),
    "a long path": listing(sibling("b" * 4000 + ".gguf")),
    "an escape sequence": listing(sibling("a\x1b[31mb.gguf")),
    "the same twice": listing(sibling("x.bin"), sibling("x.bin", size=4)),
    "the same but for case": listing(sibling("x.bin"), sibling("X.bin")),
    "a file and a folder": listing(sibling("x"), sibling("x/y")),
    "a folder and a file": listing(sibling("x/y"), sibling("x")),
    "a name that we need": listing(sibling("x"), sibling("x.part")),
    "a size that does not hold": listing(sibling(FILE, size=len(SMALL) + 1)),
}


@pytest.mark.parametrize("answer", REFUSED.values(), ids=REFUSED)
async def test_files_that_cannot_be_those_of_a_model(pulls: Pulls, hubs: dict[str, Hub], answer: bytes) -> None:
    hub = hubs["huggingface"]
    hub.repositories[REPO] = dict.fromkeys((FILE, "x", "x.bin", "X.bin", "x/y", "x.part"), SMALL)
    hub.faults.append(Fault(path="/api/models/", raw=answer))
    library = pulls.library()
    end = await run(library, f"huggingface:{REPO}", platform="other")
    assert isinstance(end.error, CorruptDownloadError)
    assert library.stored() == []


@pytest.mark.parametrize("size", [-5, "many", 1.5, True, None])
@pytest.mark.parametrize("sha256", ["", "zz", 5, None])
async def test_a_size_or_hash_that_is_none_counts_as_not_told(
    pulls: Pulls, hubs: dict[str, Hub], size: Any, sha256: Any
) -> None:
    hub = hubs["huggingface"]
    hub.repositories[REPO] = {FILE: SMALL}
    hub.faults.append(Fault(path="/api/models/", raw=listing(sibling(FILE, size=size, sha256=sha256), tags=[5])))
    assert content_of(await run(pulls.library(), f"huggingface:{REPO}"), FILE) == SMALL


UNUSABLE = {
    "a licence with half a character": listing(sibling(FILE), tags=["license:\ud800"]),
    "a description that is too long": listing(*(sibling(f"{number:060}.gguf") for number in range(20_000))),
}


@pytest.mark.parametrize("answer", UNUSABLE.values(), ids=UNUSABLE)
async def test_what_cannot_be_described_is_not_fetched(pulls: Pulls, hubs: dict[str, Hub], answer: bytes) -> None:
    hub = hubs["huggingface"]
    hub.faults.append(Fault(path="/api/models/", raw=answer.replace(b".gguf", b".bin")))
    end = await run(pulls.library(), f"huggingface:{REPO}", platform="other")
    assert isinstance(end.error, InvalidModelError)
    assert hub.ranges("/resolve/") == []
    assert pulls.everything() == []


@pytest.mark.parametrize(
    "parameters", [{"temperature": "hot"}, {"num_predict": "all"}, {"top_p": 7}, {"stop": {"a": 1}}, {"num_ctx": 0}]
)
async def test_parameters_that_no_load_would_take_are_found_before_the_weights_are_fetched(
    pulls: Pulls, hubs: dict[str, Hub], parameters: dict[str, Any]
) -> None:
    hub = hubs["ollama"]
    hub.add_ollama("library/talker", "latest", {"model": LARGE, "params": json.dumps(parameters).encode()})
    end = await run(pulls.library(), "talker")
    assert isinstance(end.error, InvalidModelError)
    assert "default_params" in end.error.message
    assert end.completed_bytes == 0


@pytest.mark.parametrize("manifest", [b"[]", b"{}", b'{"layers": [5]}', b'{"layers": ' + b"[" * 100_000, b"<html>"])
async def test_a_registry_that_answers_nonsense(pulls: Pulls, hubs: dict[str, Hub], manifest: bytes) -> None:
    hubs["ollama"].manifests["library/talker:latest"] = manifest
    end = await run(pulls.library(), "talker")
    assert isinstance(end.error, SourceUnavailableError | ModelNotFoundError), end.error


# --- what a server sends ----------------------------------------------------------------------------------------------


def half(*headers: str, status: str = "200 OK", body: bytes = LARGE[: 2 << 20]) -> bytes:
    """An answer that breaks off after 2 MiB."""
    return raw_answer(body, f"content-length: {len(LARGE)}", *headers, status=status)


async def test_compressed_bytes_are_not_those_of_the_file(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["ollama"]
    packed = gzip.compress(SMALL)
    answer = raw_answer(packed, "content-encoding: gzip", f"content-length: {len(packed)}")
    hub.faults.append(Fault(path="/plain/", times=9, raw=answer))
    end = await run(pulls.library(), f"{hub.url}/plain/{FILE}")
    assert isinstance(end.error, CorruptDownloadError)
    assert "gzip" in end.error.message


async def test_a_part_that_nobody_asked_for_is_not_taken_for_the_beginning(pulls: Pulls, hubs: dict[str, Hub]) -> None:
    hub = hubs["ollama"]
    hub.plain[FILE] = SMALL
    wrong = raw_answer(
        SMALL[100:],
        f"content-range: bytes 100-{len(SMALL) - 1}/{len(SMALL)}",
        f"content-length: {len(SMALL) - 100}",
        'etag: "1"',
        status="206 Partial Content",
    )
    hub.faults.append(Fault(path="/plain/", raw=wrong))
    assert content_of(await run(pulls.library(), f"{hub.url}/plain/{FILE}"), FILE) == SMALL


async def test_a_rest_of_other_content_is_not_put_behind_the_part_that_is_there(
    pulls: Pulls, hubs: dict[str, Hub]
) -> None:
    hub = hubs["ollama"]
    hub.plain[FILE] = LARGE
    rest = half(
        f"content-range: bytes {2 << 20}-{len(LARGE) - 1}/{len(LARGE)}",
        'etag: "2"',
        status="206 Partial Content",
        body=bytes(len(LARGE) - (2 << 20)),
    ).replace(f"content-length: {len(LARGE)}".encode(), f"content-length: {len(LARGE) - (2 << 20)}".encode())
    # It breaks off, is changed, and comes from a server that does not look at `if-range`.
    hub.faults += [Fault(path="/plain/", raw=half('etag: "1"')), Fault(path="/plain/", raw=rest)]
    assert content_of(await run(pulls.library(), f"{hub.url}/plain/{FILE}"), FILE) == LARGE


async def test_a_file_that_always_breaks_off_and_cannot_be_continued_is_given_up(
    pulls: Pulls, hubs: dict[str, Hub]
) -> None:
    hub = hubs["ollama"]
    hub.faults.append(Fault(path="/plain/", times=40, raw=half()))
    end = await run(pulls.library(), f"{hub.url}/plain/{FILE}")
    assert isinstance(end.error, SourceUnavailableError)
    assert hub.faults[0].times > 30, "each try brings the same bytes, so none of them is progress"


@pytest.mark.parametrize("location", ["file:///etc/passwd", "http://[::1", "http://a..b/x", "gopher://a/b", "/plain/x"])
async def test_a_redirect_that_leads_nowhere(pulls: Pulls, hubs: dict[str, Hub], location: str) -> None:
    hub = hubs["ollama"]
    answer = raw_answer(b"", f"location: {location}", "content-length: 0", status="302 Found")
    hub.faults.append(Fault(path="/plain/", times=99, raw=answer))
    end = await run(pulls.library(), f"{hub.url}/plain/{FILE}")
    assert isinstance(end.error, SourceUnavailableError | CorruptDownloadError), end.error


@pytest.mark.parametrize("host", ["a..b", "xn--", "a" * 70 + ".example", "127.0.0.1:1"])
async def test_an_address_whose_host_cannot_be(pulls: Pulls, host: str) -> None:
    end = await run(pulls.library(), f"http://{host}/{FILE}")
    assert isinstance(end.error, SourceUnavailableError), end.error


# --- files of this machine --------------------------------------------------------------------------------------------


async def test_a_file_that_changed_meanwhile_is_copied_anew(tmp_path: Path) -> None:
    file, target = tmp_path / "old" / FILE, tmp_path / "new" / FILE
    for folder in (file.parent, target.parent):
        folder.mkdir()
    file.write_bytes(LARGE)
    target.with_name(f"{FILE}.part").write_bytes(bytes(1 << 20))
    target.with_name(f"{FILE}.etag").write_text('"of an older state"')
    openers = Openers(allows_path=lambda _path: True, user_agent="test")
    transfer = Transfer(
        openers=openers,
        file=RemoteFile(name=FILE, url=file.as_uri()),
        source="url",
        path=target,
        on_progress=lambda: None,
        on_size=lambda _missing: None,
        retries=RetryPolicy(pauses_seconds=()),
    )
    await transfer.run()
    assert target.read_bytes() == LARGE
    await openers.close()


async def test_a_pipe_is_no_file(pulls: Pulls, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FILE)
    end = await run(pulls.library(), (tmp_path / FILE).as_uri())
    assert isinstance(end.error, ModelNotFoundError)
