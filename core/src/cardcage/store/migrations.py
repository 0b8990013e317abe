"""Named migrations: what each owner's tables look like, and how an older file gets there."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cardcage_sdk.errors import ConfigError

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

__all__ = ["LEDGER", "Migration", "Schema", "apply_migrations"]

LEDGER = "cardcage_migrations"
"""The table that says which migrations of which owner a file has seen."""

CREATE_LEDGER = f"""
CREATE TABLE IF NOT EXISTS {LEDGER} (
    owner TEXT NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    applied_at REAL NOT NULL,
    PRIMARY KEY (owner, number)
) STRICT
"""

_OWNER = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One step, never changed once it was released.

    Attributes:
        name: What it does, in words; recorded, so that two histories that went apart are told from one another.
        statements: SQL, run in this order in one transaction.
    """

    name: str
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """All tables of one owner.

    Attributes:
        owner: Core's part or the dialect that they belong to; every table and index of it is named `<owner>_...`.
        migrations: From an empty file to today's tables; new ones are added at the end.
    """

    owner: str
    migrations: tuple[Migration, ...]

    def __post_init__(self) -> None:
        if not _OWNER.fullmatch(self.owner) or self.owner in {"cardcage", "sqlite"}:
            raise ValueError(f"'{self.owner}' cannot own tables: lower-case letters, digits and '_' only")


def apply_migrations(connection: sqlite3.Connection, schema: Schema, path: Path) -> None:
    """Bring one owner's tables up to date; does nothing where they are.

    Runs in the store's thread. Two processes may do it at the same time: the second waits for the first and then finds
    nothing to do.

    Args:
        connection: In autocommit mode, outside of any transaction.
        schema: The owner's tables.
        path: The file, for messages.

    Raises:
        ConfigError: The file was written by a newer version, or by one with another history; or a migration makes
            something that is not named after its owner.
        sqlite3.Error: The file cannot be read or written.
    """
    if _applied(connection, schema) == [migration.name for migration in schema.migrations]:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(CREATE_LEDGER)
        applied = _applied(connection, schema)
        _check_history(applied, schema, path)
        for number, migration in enumerate(schema.migrations[len(applied) :], start=len(applied) + 1):
            before = _objects(connection)
            for statement in migration.statements:
                connection.execute(statement)
            _check_names(_objects(connection) - before, schema)
            connection.execute(
                f"INSERT INTO {LEDGER} (owner, number, name, applied_at) VALUES (?, ?, ?, ?)",
                (schema.owner, number, migration.name, time.time()),
            )
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _applied(connection: sqlite3.Connection, schema: Schema) -> list[str]:
    if LEDGER not in _objects(connection):
        return []
    rows = connection.execute(f"SELECT name FROM {LEDGER} WHERE owner = ? ORDER BY number", (schema.owner,))
    return [str(name) for (name,) in rows]


def _check_history(applied: list[str], schema: Schema, path: Path) -> None:
    known = [migration.name for migration in schema.migrations]
    if applied == known[: len(applied)]:
        return
    if applied[: len(known)] == known:
        raise ConfigError(
            f"Database '{path}' was written by a newer version (its '{schema.owner}' tables have seen "
            f"'{applied[-1]}'): upgrade cardcage, or name another data directory"
        )
    odd = next(number for number, name in enumerate(applied) if number >= len(known) or name != known[number])
    raise ConfigError(
        f"Database '{path}' has another history than this version (step {odd + 1} of its '{schema.owner}' tables is "
        f"'{applied[odd]}'): name another data directory"
    )


def _check_names(made: set[str], schema: Schema) -> None:
    foreign = sorted(name for name in made if not name.startswith((f"{schema.owner}_", "sqlite_")))
    if foreign:
        raise ConfigError(
            f"A migration of '{schema.owner}' makes '{foreign[0]}': its names must begin '{schema.owner}_'"
        )


def _objects(connection: sqlite3.Connection) -> set[str]:
    return {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
