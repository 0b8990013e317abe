"""The database file: opened when it is first needed, used from one thread of its own, never from the event loop's."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import structlog

from cardcage.store.migrations import Schema, apply_migrations
from cardcage_sdk.errors import ConfigError, InternalError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["DATABASE_FILE", "Store"]

DATABASE_FILE = "cardcage.db"
"""Its name in the data directory."""

APPLICATION_ID = 0x43434147
"""`CCAG`: stored in the file's header, so that another program's database is not taken for ours."""

BUSY_SECONDS = 5.0
"""How long to wait for another process (the command line beside a server) that is writing."""

log = structlog.get_logger("cardcage.store")

T = TypeVar("T")


class Store:
    """One SQLite file in WAL mode.

    Work is a plain function of a connection. It runs in one thread that belongs to the store, so that a slow disk stops
    neither the event loop nor the threads that others use, and so that two pieces of work never meet. A write is one
    transaction: when `write` has returned, it is committed and every other process sees it.

    `synchronous` is NORMAL: a commit outlives a crash of the server at once, a loss of power from the next checkpoint on.
    A `durable` write is on the disk when it has returned.

    Nothing is opened or created before the first work. Thread-safe.
    """

    def __init__(self, data_dir: Path, schemas: tuple[Schema, ...]) -> None:
        """Name the file, and the tables of all its owners."""
        owners = [schema.owner for schema in schemas]
        if len(set(owners)) != len(owners):
            raise ValueError(f"an owner of tables is named twice: {owners}")
        self.path = data_dir / DATABASE_FILE
        self._schemas = schemas
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a file, or one is open; costs one `stat`, so that a server without state never makes one."""
        return self._connection is not None or self.path.exists()

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run work that changes nothing, in the store's thread.

        A caller that is cancelled leaves at once: work that has not begun is dropped, work that has runs to its end.

        Raises:
            ConfigError: The file cannot be opened: damaged, another program's, or written by a newer version.
            InternalError: It was open and could not be read.
        """
        return await asyncio.wrap_future(self._executor().submit(self.read_now, work))

    async def write(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = False) -> T:
        """Run work in one transaction, in the store's thread; returns when it is committed.

        Raises:
            ConfigError, InternalError: As `read`; nothing of the work is left then, as when `work` itself raises.
        """
        return await asyncio.wrap_future(self._executor().submit(lambda: self.write_now(work, durable=durable)))

    def read_now(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """`read`, blocking, for callers without an event loop."""
        with self._lock:
            connection = self._open()
            try:
                return work(connection)
            except sqlite3.DatabaseError as error:
                raise self._fault(error) from error

    def write_now(self, work: Callable[[sqlite3.Connection], T], *, durable: bool = False) -> T:
        """`write`, blocking, for callers without an event loop."""
        with self._lock:
            connection = self._open()
            try:
                # Only outside of a transaction does SQLite take it.
                connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
                connection.execute("BEGIN IMMEDIATE")
                try:
                    result = work(connection)
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except sqlite3.IntegrityError:
                raise  # a constraint of the owner's own tables: the owner knows what it means
            except sqlite3.DatabaseError as error:
                raise self._fault(error) from error
            return result

    def close(self) -> None:
        """Close the file and end the thread, when running work is done. Idempotent; a later use opens it again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True)
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _executor(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="cardcage-store")
        return self._thread

    def _fault(self, error: sqlite3.DatabaseError) -> InternalError:
        log.error("database", path=str(self.path), reason=str(error))
        return InternalError(f"The server's database cannot be used: {error}")

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            try:
                self._connection = self._connect()
            except sqlite3.DatabaseError as error:
                raise ConfigError(
                    f"Database '{self.path}' cannot be used: {error}; restore it from a backup, or move it away to "
                    "start without stored keys and answers"
                ) from error
            except OSError as error:
                raise ConfigError(f"Database '{self.path}' cannot be opened: {error.strerror}") from error
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        self._create()
        # Autocommit: the store begins and ends every transaction itself. The lock above keeps threads apart.
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            is_new = self._check_identity(connection)
            connection.execute("PRAGMA journal_mode = WAL")
            if is_new:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            for schema in self._schemas:
                apply_migrations(connection, schema, self.path)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_identity(self, connection: sqlite3.Connection) -> bool:
        """Whether the file is still empty; one that is neither empty nor ours is refused."""
        # In this order: another process that makes the file right now marks it as ours before it makes tables, so tables seen
        # first mean that the mark is seen after.
        (objects,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        (application_id,) = connection.execute("PRAGMA application_id").fetchone()
        if application_id == APPLICATION_ID:
            return False
        if application_id or objects:
            raise ConfigError(f"'{self.path}' is the database of another program")
        return True

    def _create(self) -> None:
        """Make the file for its owner's eyes only; SQLite gives the files beside it the same mode and owner.

        Root on the command line of a service that runs as a user of its own gives it to the data directory's owner: the
        service could not read it otherwise.
        """
        if self.path.exists():
            return
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.geteuid() == 0:
                owner = self.path.parent.stat()
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        finally:
            os.close(descriptor)
