"""Waiters of SQLite are woken when another process writes to its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aiorwlock_remote.backends.sqlite import store
from aiorwlock_remote.backends.sqlite.store import SqliteConnection
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.embedded import store as embedded_store
from aiorwlock_remote.embedded.connection import PlainWakeEvent
from aiorwlock_remote.embedded.watcher import WatchIntervals
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.backends.test_sqlite_file_replaced import remove
from tests.embedded.test_inotify import LONG, hand_over, waits

SELDOM = PollPolicy(poll_min=3600, poll_max=3600, entry_ttl=12_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def connection(path: Path) -> Iterator[SqliteConnection]:
    connection = opened(path)
    yield connection
    connection.close()


def opened(path: Path) -> SqliteConnection:
    connection = SqliteConnection(str(path), SystemClock())
    connection.open(LONG)
    return connection


def write(path: Path) -> None:
    """A transaction of another connection."""
    other = opened(path)
    with other._file.mapped:
        other._file.atomically(
            lambda: other._run("UPDATE boots SET shift = shift + 1"), LONG
        )
    other.close()


def test_a_transaction_is_noticed(path: Path, connection: SqliteConnection) -> None:
    alarm = connection.alarm()
    assert alarm.hears
    assert waits(alarm, LONG, lambda: write(path)) < LONG / 2
    alarm.close()


def test_the_database_is_not_opened(path: Path, connection: SqliteConnection) -> None:
    """Closing a descriptor of it would end the locks of SQLite's own connections."""

    def descriptors() -> list[str]:
        folder = Path("/proc/self/fd")
        return sorted(str(fd.readlink()) for fd in folder.iterdir() if fd.is_symlink())

    def of_the_database() -> list[str]:
        return [name for name in descriptors() if name.startswith(str(path))]

    before = of_the_database()
    assert len(before) == 3
    alarm = connection.alarm()
    assert of_the_database() == before
    alarm.close()
    assert of_the_database() == before


def test_another_file_has_another_log(path: Path, connection: SqliteConnection) -> None:
    """The alarm of the log that was removed would be set by nobody."""
    connection.alarm().close()
    connection.version()
    remove(path)
    with pytest.raises(BackendUnavailable, match="was replaced"):
        connection.version()
    connection.open(LONG)
    alarm = connection.alarm()
    connection.version()
    assert waits(alarm, LONG, lambda: write(path)) < LONG / 2
    alarm.close()


@pytest.mark.anyio
async def test_a_waiter_is_woken_by_the_notice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking would take it an hour."""
    hours = WatchIntervals(3600.0, 3600.0)
    monkeypatch.setattr(embedded_store, "WatchIntervals", lambda: hours)
    monkeypatch.setattr(embedded_store.EmbeddedStore, "poll_policy", SELDOM)
    await hand_over(f"sqlite:///{path}")


@pytest.mark.anyio
async def test_without_notices(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "alarm", lambda _: PlainWakeEvent())
    await hand_over(f"sqlite:///{path}")
