"""SQLite whose file cannot grow any more."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from aiorwlock_remote.backends.sqlite.store import SqliteConnection
from aiorwlock_remote.core.commands import Granted, Release, Released
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.cas.tables import ORDER, acquire, orders


def grow(connection: SqliteConnection, pages: int) -> None:
    """It may have so many pages; those that it has are not taken away."""
    assert connection._file._db is not None
    connection._file._db.execute(f"PRAGMA max_page_count={pages}")


def test_a_step_on_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    """The error says so; when there is space again, all is as before."""
    path = tmp_path / "locks.db"
    connection = SqliteConnection(str(path), SystemClock())
    connection.open(1.0)
    with closing(connection):
        (step,) = connection.steps([(ORDER, acquire("t"))], 1.0)
        assert not isinstance(step, Exception)
        assert isinstance(step.reply, Granted)
        grow(connection, 1)
        many = [(one, acquire("t")) for one in orders(100) if one != ORDER]
        with pytest.raises(BackendUnavailable, match="make room") as caught:
            connection.steps(many, 1.0)
        assert caught.value.nothing_done
        grow(connection, 1_000)
        (step,) = connection.steps([(ORDER, Release("t"))], 1.0)
        assert not isinstance(step, Exception)
        assert isinstance(step.reply, Released)
        assert step.reply.held
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM mutex_locks").fetchall() == []


def test_a_step_on_a_locked_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    connection = SqliteConnection(str(path), SystemClock())
    connection.open(1.0)
    with (
        closing(connection),
        closing(sqlite3.connect(path, isolation_level=None)) as db,
    ):
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(BackendUnavailable, match="locked") as caught:
            connection.steps([(ORDER, acquire("t"))], 0.0)
        assert caught.value.nothing_done
