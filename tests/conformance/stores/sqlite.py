"""The harness of ``sqlite://``."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance import (
    ForeignClient,
    Harness,
    Name,
    StoreLocation,
)


class SqliteHarness(Harness):
    """``sqlite:///``, a file for each test."""

    capabilities = (
        Capability.MANY_PROCESSES
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
        | Capability.ROW_LOCKS
    )
    has_foreigner = True

    def fresh(self, folder: Path) -> StoreLocation:
        """Return a file of its own."""
        path = folder / "locks.db"
        return StoreLocation(f"sqlite:///{path}", foreigner=PlainSqlite(path))


class PlainSqlite(ForeignClient):
    """The published statements on ``mutex_locks``, by Python's own sqlite3."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def take(self, name: Name, ticket: str) -> bool:
        try:
            self._run(
                "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                " VALUES (?, ?, ?)",
                *name,
                ticket,
            )
        except sqlite3.IntegrityError:
            return False
        return True

    def put(self, name: Name, ticket: str) -> None:
        self._run(
            "INSERT OR REPLACE INTO mutex_locks (resource_type, resource_id, ticket)"
            " VALUES (?, ?, ?)",
            *name,
            ticket,
        )

    def free(self, name: Name, ticket: str) -> bool:
        deleted, _ = self._run(
            "DELETE FROM mutex_locks"
            " WHERE resource_type = ? AND resource_id = ? AND ticket = ?",
            *name,
            ticket,
        )
        return deleted == 1

    def clean(self, name: Name) -> None:
        where = "resource_type = ? AND resource_id = ?"
        self._run(f"DELETE FROM doormans WHERE {where}", *name)  # noqa: S608

    def read(self, name: Name) -> str | None:
        _, row = self._run(
            "SELECT ticket FROM mutex_locks"
            " WHERE resource_type = ? AND resource_id = ?",
            *name,
        )
        return None if row is None else str(row[0])

    def _run(self, sql: str, *values: object) -> tuple[int, tuple[object, ...] | None]:
        db = sqlite3.connect(self._path, timeout=10)
        try:
            with db:
                cursor = db.execute(sql, values)
                row = cursor.fetchone()
                return cursor.rowcount, row
        finally:
            db.close()
