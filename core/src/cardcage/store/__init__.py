"""One SQLite file for everything that must outlive the server, with named migrations for each owner of tables."""

from cardcage.store.migrations import Migration, Schema
from cardcage.store.store import DATABASE_FILE, Store

__all__ = ["DATABASE_FILE", "Migration", "Schema", "Store"]
