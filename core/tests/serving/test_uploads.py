"""Files that clients upload: their own limit, bounded memory, and pages that a dialect always lets in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

MIB = 1 << 20
LIMIT = 48 * MIB


@pytest.fixture(scope="module")
def server(shared_start, tmp_path_factory):
    site = tmp_path_factory.mktemp("takes-site")
    shutil.copy(Path(__file__).parent / "takes.py", site / "tiny_takes.py")
    info = site / "tiny_takes-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-takes\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[cardcage.dialects]\ntakes = tiny_takes\n")
    return shared_start(
        f"[server]\nport = 0\nmax_body_bytes = {MIB}\nmax_upload_bytes = {LIMIT}\n", environ={"PYTHONPATH": str(site)}
    )


def pieces(count, size=MIB):
    for _ in range(count):
        yield bytes(size)


def test_a_file_may_be_larger_than_a_body_and_does_not_pile_up(server):
    with server.client() as client:
        before = client.get("/takes/memory").json()["peak_kib"]
        answer = client.post("/takes/file/big", content=bytes(LIMIT))
        assert answer.json()["bytes"] == LIMIT
        assert answer.json()["largest"] < 8 * MIB
        assert client.post("/takes/file/chunked", content=pieces(20)).json()["bytes"] == 20 * MIB
        assert client.get("/takes/memory").json()["peak_kib"] - before < 24 * 1024


def test_a_file_has_a_limit_too(server):
    with server.client() as client:
        answer = client.post("/takes/file/huge", content=bytes(LIMIT + 1))
        assert (answer.status_code, answer.json()["takes"]) == (413, "payload_too_large")
        assert str(LIMIT) in answer.json()["message"]
        answer = client.post("/takes/file/chunked", content=pieces(50))
        assert answer.status_code == 413
        assert str(LIMIT) in answer.json()["message"]


def test_other_paths_keep_theirs(server):
    with server.client() as client:
        assert client.post("/takes/nothing", content=bytes(MIB)).json() == {"bytes": MIB}
        assert client.post("/takes/nothing", content=bytes(MIB + 1)).status_code == 413
        assert client.post("/takes/files", content=bytes(MIB + 1)).status_code == 413


@pytest.mark.parametrize(
    ("origin", "status"), [("app://obsidian.md", 200), ("app://x/y", 403), ("https://evil.example", 403)]
)
def test_pages_that_a_dialect_always_lets_in(server, origin, status):
    with server.client() as client:
        assert client.get("/takes/memory", headers={"origin": origin}).status_code == status
        assert client.get("/livez", headers={"origin": origin}).status_code == 403
