"""The floor under SQLite: what any lock in such a file costs at least.

Two committed transactions with the store's own pragmas, a row in and the row out, in a
worker thread as an event loop needs it. Who waits in another process polls each
millisecond. No lease, no fence, no queue, no safety.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

from anyio import Lock, to_thread

from benchmarks.peer import Cycle, Peer

POLL = 0.001
"""Seconds between two looks of a process that waits: what a simple lock does."""


class Bare:
    """A file with one row, or none."""

    def __init__(self, folder: Path) -> None:
        """Open it with the pragmas of our own store."""
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
        """BEGIN IMMEDIATE, INSERT, COMMIT; again and again while the row is there."""
        while True:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._db.execute(
                    "INSERT INTO mutex_locks (resource_type, resource_id, ticket)"
                    " VALUES ('bench', 1, '0123456789abcdef0123456789abcdef')"
                )
            except sqlite3.IntegrityError:
                self._db.execute("ROLLBACK")
                time.sleep(POLL)
            else:
                self._db.execute("COMMIT")
                return

    def delete(self) -> None:
        """BEGIN IMMEDIATE, DELETE, COMMIT."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.execute(
            "DELETE FROM mutex_locks WHERE resource_type = 'bench' AND resource_id = 1"
        )
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the file."""
        self._db.close()


class Threaded:
    """Both transactions in a worker thread; one task of the process at a time."""

    def __init__(self, bare: Bare) -> None:
        """Over an open file."""
        self._bare = bare
        self._turn = Lock()

    async def __aenter__(self) -> None:
        await self._turn.acquire()
        await to_thread.run_sync(self._bare.insert)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await to_thread.run_sync(self._bare.delete)
        self._turn.release()


class Blocking:
    """Both transactions in the loop's own thread, which they block."""

    def __init__(self, bare: Bare) -> None:
        """Over an open file."""
        self._bare = bare

    async def __aenter__(self) -> None:
        self._bare.insert()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bare.delete()


@asynccontextmanager
async def _threaded(folder: Path) -> AsyncIterator[Callable[[], Cycle]]:
    bare = Bare(folder)
    cycle = Threaded(bare)
    yield lambda: cycle
    bare.close()


@asynccontextmanager
async def _blocking(folder: Path) -> AsyncIterator[Callable[[], Cycle]]:
    bare = Bare(folder)
    cycle = Blocking(bare)
    yield lambda: cycle
    bare.close()


PEERS = [
    Peer("bare SQLite in a thread", "sqlite", _threaded, floor=True, processes=True),
    Peer("bare SQLite", "sqlite", _blocking, waits=False),
]
