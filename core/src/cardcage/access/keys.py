"""API keys: made once, shown once, stored as a hash, found again by the id that they carry."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sqlite3
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cardcage.store import Migration, Schema
from cardcage_sdk.dialect import Scope
from cardcage_sdk.errors import CardcageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cardcage.store import Store

__all__ = [
    "ACCESS_SCHEMA",
    "DEFAULT_SCOPES",
    "KEY_PREFIX",
    "KeyChangeError",
    "KeyLookup",
    "KeyRecord",
    "KeyRing",
    "NewKey",
    "parse_key",
]

KEY_PREFIX = "cage"
"""First word of every key, so that scanners for leaked secrets can know one."""

SECRET_BYTES = 32

DEFAULT_SCOPES = frozenset({Scope.MODELS_READ, Scope.INFERENCE, Scope.RESPONSES_READ})
"""What a key may do unless told otherwise: use models, not change them."""

ACCESS_SCHEMA = Schema(
    owner="access",
    migrations=(
        Migration(
            name="keys",
            statements=(
                """
                CREATE TABLE access_keys (
                    id TEXT PRIMARY KEY,
                    name TEXT NOT NULL,
                    digest BLOB NOT NULL,
                    scopes TEXT NOT NULL,
                    created_at REAL NOT NULL,
                    expires_at REAL,
                    revoked_at REAL
                ) STRICT
                """,
                # A name may be given again once its key was revoked; the old row stays, so that access stays closed.
                "CREATE UNIQUE INDEX access_keys_live_name ON access_keys (name) WHERE revoked_at IS NULL",
            ),
        ),
    ),
)

_KEY = re.compile(rf"{KEY_PREFIX}_([0-9a-f]{{12}})_([A-Za-z0-9_-]{{43}})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_COLUMNS = "id, name, scopes, created_at, expires_at, revoked_at"


class KeyChangeError(CardcageError):
    """A key cannot be made or revoked as asked."""

    code = "key_change"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """A key as it is stored, without its secret.

    Attributes:
        id: Twelve hexadecimal digits; part of the key, no secret.
        name: What the operator called it.
        created_at: Unix time in seconds, as the other two.
        expires_at: When it ends by itself, or None.
        revoked_at: When it was revoked, or None.
    """

    id: str
    name: str
    scopes: frozenset[Scope]
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def state(self, now: float) -> str:
        """`active`, `expired` or `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and now >= self.expires_at else "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made; the only time that its text exists here."""

    record: KeyRecord
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyLookup:
    """What the store says about the keys that a request carries.

    Attributes:
        any_made: Whether any key was ever made, revoked and expired ones included.
        matching: The keys whose secret the request knows, whatever their state.
    """

    any_made: bool
    matching: tuple[KeyRecord, ...] = ()


class KeyRing:
    """The keys of one data directory.

    A key is `cage_<id>_<secret>`, its secret 32 random bytes. It is stored as a plain SHA-256: slow, salted hashes protect
    what people choose and a dictionary may hold; no list holds 256 random bits, and a slow hash on every request would be
    a way to stop the server. The row is found by the id, which is no secret, and the digests are compared in constant
    time, so that an answer's time tells nothing about how much of a guess was right.

    Every call reads the database, so that a key made or revoked by the command line counts from the next request on.
    The `*_now` methods block and are for callers without an event loop.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def look_up(self, texts: Iterable[str]) -> KeyLookup:
        """Find the keys that a request carries. Without a database file this costs no thread.

        Raises:
            ConfigError, InternalError: The database cannot be used; the caller must refuse the request.
        """
        if not self._store.exists:
            return KeyLookup(any_made=False)
        carried = [parsed for parsed in map(parse_key, texts) if parsed is not None]
        return await self._store.read(lambda connection: _look_up(connection, carried))

    def any_made_now(self) -> bool:
        """Whether any key was ever made.

        Raises:
            ConfigError: The database cannot be opened.
        """
        return self._store.exists and self._store.read_now(lambda connection: _look_up(connection, ())).any_made

    def create_now(
        self, name: str, *, scopes: frozenset[Scope] = DEFAULT_SCOPES, expires_at: float | None = None
    ) -> NewKey:
        """Make a key; returns when it is on the disk.

        Raises:
            KeyChangeError: The name is not one, or a key that is not revoked has it; the expiry has passed; no scope.
            ConfigError, InternalError: The database cannot be used.
        """
        if not _NAME.fullmatch(name):
            raise KeyChangeError(f"'{name}' is no name for a key: letters, digits, '.', '_', '@' and '-', at most 64")
        now = self._clock()
        if expires_at is not None and expires_at <= now:
            raise KeyChangeError("A key cannot expire before it is made")
        if not scopes:
            raise KeyChangeError("A key needs at least one scope")
        key_id = secrets.token_hex(6)
        text = f"{KEY_PREFIX}_{key_id}_{secrets.token_urlsafe(SECRET_BYTES)}"
        record = KeyRecord(id=key_id, name=name, scopes=scopes, created_at=now, expires_at=expires_at)

        def insert(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO access_keys (id, name, digest, scopes, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)",
                (key_id, name, _digest(text), " ".join(sorted(scopes)), now, expires_at),
            )

        try:
            self._store.write_now(insert, durable=True)
        except sqlite3.IntegrityError as error:
            raise KeyChangeError(
                f"There is a key named '{name}' already; revoke it first, or choose another name"
            ) from error
        return NewKey(record=record, text=text)

    def list_now(self) -> list[KeyRecord]:
        """Every key ever made, oldest first."""
        if not self._store.exists:
            return []
        return self._store.read_now(
            lambda connection: [
                _record(row)
                for row in connection.execute(f"SELECT {_COLUMNS} FROM access_keys ORDER BY created_at, id")
            ]
        )

    def revoke_now(self, name_or_id: str) -> KeyRecord:
        """End a key; returns when that is on the disk. The row stays: access does not open with the last key.

        Raises:
            KeyChangeError: No key that is not revoked yet has this name or id.
        """
        now = self._clock()

        def update(connection: sqlite3.Connection) -> KeyRecord | None:
            row = connection.execute(
                f"SELECT {_COLUMNS} FROM access_keys WHERE revoked_at IS NULL AND (name = ?1 OR id = ?1) "
                "ORDER BY name = ?1 DESC",
                (name_or_id,),
            ).fetchone()
            if row is None:
                return None
            connection.execute("UPDATE access_keys SET revoked_at = ? WHERE id = ?", (now, row[0]))
            return _record((*row[:-1], now))

        revoked = self._store.write_now(update, durable=True) if self._store.exists else None
        if revoked is None:
            raise KeyChangeError(f"No key that still works has the name or id '{name_or_id}'")
        return revoked


def parse_key(text: str) -> tuple[str, str] | None:
    """The id of a key and its whole text; None for what cannot be one of ours, which then costs no database read."""
    match = _KEY.fullmatch(text)
    return (match[1], text) if match is not None else None


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _look_up(connection: sqlite3.Connection, carried: Sequence[tuple[str, str]]) -> KeyLookup:
    (any_made,) = connection.execute("SELECT EXISTS (SELECT 1 FROM access_keys)").fetchone()
    matching: list[KeyRecord] = []
    for key_id, text in carried:
        row = connection.execute(f"SELECT {_COLUMNS}, digest FROM access_keys WHERE id = ?", (key_id,)).fetchone()
        if row is not None and hmac.compare_digest(row[-1], _digest(text)):
            matching.append(_record(row[:-1]))
    return KeyLookup(any_made=bool(any_made), matching=tuple(matching))


def _record(row: Sequence[object]) -> KeyRecord:
    key_id, name, scopes, created_at, expires_at, revoked_at = row
    known = {scope.value: scope for scope in Scope}
    return KeyRecord(
        id=str(key_id),
        name=str(name),
        # A scope of a newer version grants nothing here.
        scopes=frozenset(known[word] for word in str(scopes).split() if word in known),
        created_at=_seconds(created_at) or 0.0,
        expires_at=_seconds(expires_at),
        revoked_at=_seconds(revoked_at),
    )


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
