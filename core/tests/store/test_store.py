from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from cardcage.store import DATABASE_FILE, Migration, Schema, Store
from cardcage_sdk.errors import ConfigError, InternalError

FIRST = Migration(name="notes", statements=("CREATE TABLE test_notes (id INTEGER PRIMARY KEY, text TEXT UNIQUE)",))
SECOND = Migration(name="authors", statements=("ALTER TABLE test_notes ADD COLUMN author TEXT DEFAULT 'nobody'",))
SCHEMA = Schema(owner="test", migrations=(FIRST,))

OPEN_AND_WRITE = """
import sys
from pathlib import Path
from cardcage.store import Migration, Schema, Store
schema = Schema(owner="test", migrations=(Migration(name="notes", statements=(
    "CREATE TABLE test_notes (id INTEGER PRIMARY KEY, text TEXT UNIQUE)",)),))
store = Store(Path(sys.argv[1]), (schema,))
store.write_now(lambda c: c.execute("INSERT INTO test_notes (text) VALUES (?)", (sys.argv[2],)))
print("committed", flush=True)
if sys.argv[3] == "wait":
    sys.stdin.read()
"""


def insert(text: str):
    return lambda connection: connection.execute("INSERT INTO test_notes (text) VALUES (?)", (text,))


def texts(connection: sqlite3.Connection) -> list[str]:
    return [text for (text,) in connection.execute("SELECT text FROM test_notes ORDER BY id")]


@pytest.fixture
def stores(tmp_path: Path):
    made: list[Store] = []

    def make(*schemas: Schema, directory: Path = tmp_path) -> Store:
        store = Store(directory, schemas or (SCHEMA,))
        made.append(store)
        return store

    yield make
    for store in made:
        store.close()


def test_nothing_is_made_before_it_is_needed(stores, tmp_path: Path) -> None:
    store = stores(directory=tmp_path / "data")
    assert not store.exists
    assert list(tmp_path.iterdir()) == []
    store.write_now(insert("one"))
    assert store.exists
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
    files = list((tmp_path / "data").iterdir())
    assert DATABASE_FILE in {file.name for file in files}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


async def test_the_file_is_in_wal_mode_and_ours(stores) -> None:
    store = stores()
    pragmas = await store.read(
        lambda connection: [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "foreign_keys", "application_id")
        ]
    )
    assert pragmas == ["wal", 1, 1, 0x43434147]


async def test_what_write_returned_from_others_see(stores, tmp_path: Path) -> None:
    store = stores()
    await store.write(insert("one"))
    other = sqlite3.connect(tmp_path / DATABASE_FILE)
    try:
        assert texts(other) == ["one"]
    finally:
        other.close()


async def test_a_durable_write_syncs_and_the_next_one_does_not(stores) -> None:
    store = stores()
    seen = []
    for durable in (True, False):
        await store.write(
            lambda connection: seen.append(connection.execute("PRAGMA synchronous").fetchone()[0]), durable=durable
        )
    assert seen == [2, 1]


async def test_work_that_raises_leaves_nothing(stores) -> None:
    store = stores()

    def half(connection: sqlite3.Connection) -> None:
        insert("half")(connection)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await store.write(half)
    await store.write(insert("whole"))
    assert await store.read(texts) == ["whole"]


async def test_a_broken_constraint_is_the_owners_to_understand(stores) -> None:
    store = stores()
    await store.write(insert("one"))
    with pytest.raises(sqlite3.IntegrityError):
        await store.write(insert("one"))
    assert await store.read(texts) == ["one"]


def test_a_crash_after_the_commit_loses_nothing(stores, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OPEN_AND_WRITE, str(tmp_path), "survivor", "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "committed\n"
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
    assert stores().read_now(texts) == ["survivor"]


async def test_many_processes_may_make_the_same_file_at_once(stores, tmp_path: Path) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            OPEN_AND_WRITE,
            str(tmp_path),
            f"p{number}",
            "go",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(6)
    ]
    for process in processes:
        _, stderr = await process.communicate()
        assert process.returncode == 0, stderr.decode()
    assert sorted(await stores().read(texts)) == [f"p{number}" for number in range(6)]


async def test_the_loop_goes_on_while_a_write_waits_for_another_process(stores, tmp_path: Path) -> None:
    store = stores()
    await store.write(insert("one"))
    holder = sqlite3.connect(tmp_path / DATABASE_FILE, isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.write(insert("two")))
        # If the write held the loop, the holder below could never let go and the write would end as busy.
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.done()
        holder.execute("COMMIT")
        await waiting
    finally:
        holder.close()
    assert await store.read(texts) == ["one", "two"]


async def test_one_piece_of_work_at_a_time(stores) -> None:
    store = stores()

    def count(connection: sqlite3.Connection) -> None:
        (number,) = connection.execute("SELECT count(*) FROM test_notes").fetchone()
        insert(f"n{number}")(connection)

    await asyncio.gather(*(store.write(count) for _ in range(50)))
    assert await store.read(texts) == [f"n{number}" for number in range(50)]


async def test_migrations_are_applied_once_and_in_order(stores) -> None:
    first = stores()
    await first.write(insert("old"))
    first.close()
    newer = stores(Schema(owner="test", migrations=(FIRST, SECOND)))
    rows = await newer.read(lambda connection: connection.execute("SELECT text, author FROM test_notes").fetchall())
    assert rows == [("old", "nobody")]
    ledger = await newer.read(
        lambda connection: connection.execute("SELECT owner, number, name FROM cardcage_migrations").fetchall()
    )
    assert ledger == [("test", 1, "notes"), ("test", 2, "authors")]


async def test_owners_do_not_disturb_each_other(stores) -> None:
    other = Schema(
        owner="other", migrations=(Migration(name="things", statements=("CREATE TABLE other_things (id INTEGER)",)),)
    )
    await stores().write(insert("one"))
    both = stores(SCHEMA, other)
    assert await both.read(texts) == ["one"]
    # A server of which a dialect was uninstalled still opens the file.
    assert await stores().read(texts) == ["one"]


async def test_a_newer_file_is_refused_with_what_to_do(stores, tmp_path: Path) -> None:
    await stores(Schema(owner="test", migrations=(FIRST, SECOND))).write(insert("one"))
    with pytest.raises(ConfigError, match=r"newer version.*'authors'.*upgrade") as caught:
        await stores().read(texts)
    assert str(tmp_path / DATABASE_FILE) in caught.value.message


async def test_another_history_is_refused(stores) -> None:
    await stores(Schema(owner="test", migrations=(FIRST, SECOND))).write(insert("one"))
    third = Migration(name="colours", statements=("ALTER TABLE test_notes ADD COLUMN colour TEXT",))
    with pytest.raises(ConfigError, match=r"another history.*step 2.*'authors'"):
        await stores(Schema(owner="test", migrations=(FIRST, third))).read(texts)


async def test_a_migration_that_fails_leaves_the_file_as_it_was(stores) -> None:
    await stores().write(insert("one"))
    bad = Migration(
        name="bad", statements=("CREATE TABLE test_half (id INTEGER)", "CREATE TABLE test_half (id INTEGER)")
    )
    with pytest.raises(ConfigError, match="test_half"):
        await stores(Schema(owner="test", migrations=(FIRST, bad))).read(texts)
    names = await stores().read(
        lambda connection: {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    )
    assert "test_half" not in names


async def test_an_owner_makes_only_tables_of_its_own_name(stores) -> None:
    thief = Schema(
        owner="thief", migrations=(Migration(name="steal", statements=("CREATE TABLE test_notes (id INTEGER)",)),)
    )
    with pytest.raises(ConfigError, match=r"'test_notes'.*'thief_'"):
        await stores(thief).read(texts)


@pytest.mark.parametrize("owner", ["", "Test", "a-b", "sqlite", "cardcage", "1a"])
def test_an_owner_has_a_plain_name(owner: str) -> None:
    with pytest.raises(ValueError, match="own tables"):
        Schema(owner=owner, migrations=())


def test_an_owner_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="twice"):
        Store(tmp_path, (SCHEMA, SCHEMA))


async def test_a_damaged_file_is_a_clear_error(stores, tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_bytes(b"this is no database, though it is long enough to be one" * 50)
    with pytest.raises(ConfigError, match="not a database") as caught:
        await stores().read(texts)
    assert str(tmp_path / DATABASE_FILE) in caught.value.message
    assert "backup" in caught.value.message


async def test_damage_that_is_found_later_is_an_internal_error(stores, tmp_path: Path) -> None:
    store = stores()
    for number in range(200):
        await store.write(insert(f"{number}" * 50))
    store.close()
    path = tmp_path / DATABASE_FILE
    data = bytearray(path.read_bytes())
    page = 4096
    for start in range(2 * page, len(data) - page, page):
        data[start : start + 64] = b"\xff" * 64
    path.write_bytes(data)
    with pytest.raises((InternalError, ConfigError), match="malformed"):
        await stores().read(texts)


async def test_another_programs_file_is_left_alone(stores, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / DATABASE_FILE) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")
    connection.close()
    before = (tmp_path / DATABASE_FILE).read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        await stores().read(texts)
    assert (tmp_path / DATABASE_FILE).read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_root_gives_the_file_to_the_owner_of_the_directory(stores, tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 23456)
    stores().write_now(insert("one"))
    owners = {(file.stat().st_uid, file.stat().st_gid) for file in tmp_path.iterdir()}
    assert owners == {(12345, 23456)}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written_is_a_clear_error(stores, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="cannot be opened"):
        stores().read_now(texts)


async def test_it_opens_again_after_closing(stores) -> None:
    store = stores()
    await store.write(insert("one"))
    store.close()
    store.close()
    assert await store.read(texts) == ["one"]
