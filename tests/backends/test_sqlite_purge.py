"""Doormen that nobody uses any more, of which there may be very many."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from aiorwlock_remote import connect
from aiorwlock_remote._util import purge
from aiorwlock_remote.backends.sqlite import store
from aiorwlock_remote.backends.sqlite.store import SqliteConnection
from aiorwlock_remote.embedded import store as embedded
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.backends.redis.connections import eventually

OLD = """
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT ?)
INSERT INTO doormans SELECT 'order', n, '{}', 0, NULL,
  datetime('now', '-2 hours'), datetime('now', '-2 hours'), '', '{}' FROM numbers
"""
SIT = "INSERT INTO mutex_locks (resource_type, resource_id, ticket) VALUES (?, ?, ?)"
USED = "UPDATE doormans SET updated_at = datetime('now') WHERE resource_id = ?"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ROWS_PER_REQUEST", 3)


def run(path: Path, text: str, *values: object) -> list[int]:
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        return [row[0] for row in db.execute(text, values).fetchall()]


def left(path: Path) -> list[int]:
    return run(path, "SELECT resource_id FROM doormans ORDER BY resource_id")


def test_a_portion_at_a_time(tmp_path: Path) -> None:
    """The file is locked meanwhile: for as long in any table."""
    path = tmp_path / "locks.db"
    connection = SqliteConnection(str(path), SystemClock())
    connection.open(1.0)
    run(path, OLD, 8)
    run(path, SIT, "order", 2, "theirs")
    run(path, USED, 5)
    assert connection.forget(3600) == ("order", 3)
    assert left(path) == [2, 4, 5, 6, 7, 8]
    assert connection.forget(3600, ("order", 3)) == ("order", 6)
    assert left(path) == [2, 5, 7, 8]
    assert connection.forget(3600, ("order", 6)) == ("order", 8)
    assert left(path) == [2, 5]
    assert connection.forget(3600, ("order", 8)) is None
    connection.close()


def test_no_more_is_looked_at_than_a_portion(tmp_path: Path) -> None:
    """The key leads to both ends of it, in the midst of a type as well."""
    path = tmp_path / "locks.db"
    connection = SqliteConnection(str(path), SystemClock())
    connection.open(1.0)
    run(path, OLD, 50_000)
    steps = 0

    def counted() -> None:
        nonlocal steps
        steps += 1

    assert connection._file._db is not None
    connection._file._db.set_progress_handler(counted, 100)
    assert connection.forget(3600, ("order", 40_000)) == ("order", 40_003)
    assert steps < 50
    connection.close()


@pytest.mark.anyio
async def test_all_old_doormen_are_purged_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step begins it; other steps are carried out in between."""
    path = tmp_path / "locks.db"
    monkeypatch.setattr(embedded, "PURGE_EVERY", 1)
    monkeypatch.setattr(purge, "choice", min)
    monkeypatch.setattr(purge, "PAUSE_BETWEEN_REQUESTS", 0.001)
    async with connect(f"sqlite:///{path}") as locks:
        run(path, OLD, 100)
        async with locks.mutex("order", 1000):
            await eventually(lambda: left(path) == [1000], "all but the one in use")
