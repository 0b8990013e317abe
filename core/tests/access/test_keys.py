from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sqlite3
import sys
from pathlib import Path

import pytest

from cardcage.access import ACCESS_SCHEMA, KeyRing
from cardcage.access.keys import DEFAULT_SCOPES, KeyChangeError, parse_key
from cardcage.store import Store
from cardcage_sdk.dialect import Scope

EARLY, LATE = 1_800_000_000.0, 1_800_000_100.0


class Clock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.now = EARLY

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ring(tmp_path: Path, clock: Clock):
    store = Store(tmp_path, (ACCESS_SCHEMA,))
    yield KeyRing(store, clock=clock)
    store.close()


async def test_a_key_is_found_by_its_text_and_by_nothing_else(ring: KeyRing) -> None:
    made = ring.create_now("laptop")
    other = ring.create_now("phone")
    found = await ring.look_up([made.text])
    assert found.any_made
    assert [key.name for key in found.matching] == ["laptop"]
    assert found.matching[0].scopes == DEFAULT_SCOPES
    swapped = f"cage_{made.record.id}_{other.text[-43:]}"
    for wrong in (
        made.text[:-1],
        made.text + "A",
        made.text.swapcase(),
        swapped,
        f"cage_{made.record.id}_",
        "",
        "sk-x",
    ):
        assert (await ring.look_up([wrong])).matching == (), wrong


async def test_every_text_of_a_request_is_tried(ring: KeyRing) -> None:
    made = ring.create_now("laptop")
    assert len((await ring.look_up(["sk-dummy", made.text])).matching) == 1


def test_the_file_holds_the_hash_and_never_the_key(ring: KeyRing, tmp_path: Path) -> None:
    made = ring.create_now("laptop")
    secret = made.text[-43:].encode()
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["cardcage.db", "cardcage.db-shm", "cardcage.db-wal"]
    assert all(secret not in file.read_bytes() for file in files)
    assert any(hashlib.sha256(made.text.encode()).digest() in file.read_bytes() for file in files)
    assert made.text not in repr(made)


def test_keys_are_256_random_bits_of_a_recognizable_form(ring: KeyRing) -> None:
    texts = [ring.create_now(f"k{number}").text for number in range(50)]
    assert len(set(texts)) == 50
    for text in texts:
        match = re.fullmatch(r"cage_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", text)
        assert match is not None
        assert parse_key(text) == (match[1], text)


async def test_without_a_database_no_file_is_made_by_looking(ring: KeyRing, tmp_path: Path) -> None:
    assert not (await ring.look_up(["cage_000000000000_" + "a" * 43])).any_made
    assert ring.list_now() == []
    assert not ring.any_made_now()
    with pytest.raises(KeyChangeError):
        ring.revoke_now("laptop")
    assert os.listdir(tmp_path) == []


async def test_revoking_ends_a_key_and_keeps_access_closed(ring: KeyRing, clock: Clock) -> None:
    made = ring.create_now("laptop")
    clock.now = LATE
    revoked = ring.revoke_now("laptop")
    assert (revoked.id, revoked.revoked_at) == (made.record.id, LATE)
    found = await ring.look_up([made.text])
    assert found.any_made
    assert found.matching[0].state(LATE) == "revoked"
    with pytest.raises(KeyChangeError, match="laptop"):
        ring.revoke_now("laptop")


def test_a_name_is_taken_until_it_is_revoked(ring: KeyRing) -> None:
    first = ring.create_now("laptop")
    with pytest.raises(KeyChangeError, match="already"):
        ring.create_now("laptop")
    ring.revoke_now(first.record.id)
    second = ring.create_now("laptop")
    states = {record.id: record.state(EARLY) for record in ring.list_now()}
    assert states == {first.record.id: "revoked", second.record.id: "active"}


def test_a_key_expires_at_its_moment(ring: KeyRing, clock: Clock) -> None:
    made = ring.create_now("guest", expires_at=LATE)
    assert made.record.state(LATE - 0.001) == "active"
    assert made.record.state(LATE) == "expired"
    clock.now = LATE
    with pytest.raises(KeyChangeError, match="expire"):
        ring.create_now("late", expires_at=LATE)


@pytest.mark.parametrize("name", ["", " ", "a b", "-x", "ä", "x" * 65, "a\nb", "a/b"])
def test_names_are_words(ring: KeyRing, name: str) -> None:
    with pytest.raises(KeyChangeError):
        ring.create_now(name)


def test_a_key_without_scopes_is_refused(ring: KeyRing) -> None:
    with pytest.raises(KeyChangeError, match="scope"):
        ring.create_now("idle", scopes=frozenset())


async def test_a_scope_of_a_newer_version_grants_nothing(ring: KeyRing, tmp_path: Path) -> None:
    made = ring.create_now("laptop", scopes=frozenset({Scope.INFERENCE}))
    with sqlite3.connect(tmp_path / "cardcage.db") as connection:
        connection.execute("UPDATE access_keys SET scopes = 'inference time:travel'")
    connection.close()
    assert (await ring.look_up([made.text])).matching[0].scopes == {Scope.INFERENCE}


async def test_a_key_of_another_process_counts_at_the_next_look(ring: KeyRing, tmp_path: Path) -> None:
    ring.create_now("here")
    script = (
        "import sys; from pathlib import Path\n"
        "from cardcage.access.keys import ACCESS_SCHEMA, KeyRing\nfrom cardcage.store import Store\n"
        "ring = KeyRing(Store(Path(sys.argv[1]), (ACCESS_SCHEMA,)))\n"
        "print(ring.create_now('there').text); ring.revoke_now('here')\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert [key.name for key in (await ring.look_up([output.decode().strip()])).matching] == ["there"]
    assert {record.name: record.revoked_at is None for record in ring.list_now()} == {"here": False, "there": True}
