"""The floor under SQLite: what any lock in such a file costs at least.

Two committed transactions with the pragmas of our own store put a row in and take the
row out. There is no lease, fence, queue or safety; a process that waits polls.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

from anyio import Lock, to_thread

from benchmarks.harness.lock import Client, Cycle

POLL_INTERVAL = 0.001
"""Seconds between two tries of a waiting process, as a simple lock has it."""


class BareRow:
    """An SQLite file in which one row is there while the lock is held."""

    def __init__(self, folder: Path) -> None:
        self._db = sqlite3.connect(
            folder / "bare.db",
            timeout=30,
            isolation_level=None,
            check_same_thread=False,
        )
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS mutex_locks (resource_type VARCHAR NOT NULL,"
            " resource_id INTEGER NOT NULL, ticket VARCHAR NOT NULL,"
            " acquired_at TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,"
            " PRIMARY KEY (resource_type, resource_id)) WITHOUT ROWID"
        )

    def insert(self) -> None:
        """Insert the row in a transaction; poll while the row is there."""
        while True:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.execute(
                    "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                    " VALUES ('bench', 1, '0123456789abcdef0123456789abcdef')"
                )
            except sqlite3.IntegrityError:
                self._db.execute("ROLLBACK")
                time.sleep(POLL_INTERVAL)
            else:
                self._db.execute("COMMIT")
                return

    def delete(self) -> None:
        """Delete the row in a transaction."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "DELETE FROM mutex_locks WHERE resource_type = 'bench' AND resource_id = 1"
        )
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the SQLite file."""
        self._db.close()


class ThreadedRow:
    """The row, changed in a worker thread, for one task of the process at a time."""

    def __init__(self, row: BareRow) -> None:
        self._row = row
        self._turn = Lock()

    async def lock(self, key: str, mode: str) -> Cycle:
        del key, mode
        return self

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        await to_thread.run_sync(self._row.insert)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await to_thread.run_sync(self._row.delete)
        self._turn.release()


class _BlockingRow:
    """The row, changed in the thread of the event loop, which is blocked meanwhile."""

    def __init__(self, row: BareRow) -> None:
        self._row = row

    async def lock(self, key: str, mode: str) -> Cycle:
        del key, mode
        return self

    async def __aenter__(self) -> None:
        self._row.insert()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._row.delete()


def _folder_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///")).parent


@asynccontextmanager
async def threaded(url: str, lease: float) -> AsyncIterator[Client]:
    """Open the row in a file beside the one of the URL."""
    del lease
    row = BareRow(_folder_of(url))
    yield ThreadedRow(row)
    row.close()


@asynccontextmanager
async def blocking(url: str, lease: float) -> AsyncIterator[Client]:
    """Open the same row, without a thread."""
    del lease
    row = BareRow(_folder_of(url))
    yield _BlockingRow(row)
    row.close()
