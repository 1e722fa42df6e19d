"""SQLite under users who do odd things: each of these broke something once."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import BadRecord, ConfigurationError, LockLost, connect
from aiorwlock_remote.backends.sqlite.store import SqliteConnection
from aiorwlock_remote.errors import BackendError
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.renewals import renewed

pytestmark = pytest.mark.anyio


def spoil(path: Path, resource_id: int, **fields: object) -> None:
    """Put odd values into a stored record."""
    with sqlite3.connect(path) as db:
        where = "WHERE resource_id = ?"
        row = db.execute(f"SELECT record FROM doormans {where}", (resource_id,))  # noqa: S608
        record = json.dumps(json.loads(row.fetchone()[0]) | fields)
        db.execute(f"UPDATE doormans SET record = ? {where}", (record, resource_id))  # noqa: S608
    db.close()


@pytest.mark.usefixtures("renewed_often")
async def test_relative_path_and_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file stays the one that was opened, wherever the process goes."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(here)
    async with connect("sqlite:///locks.db") as locks:
        monkeypatch.chdir(elsewhere)
        async with locks.mutex("a", 1) as held:
            await renewed(held)
    assert list(elsewhere.iterdir()) == []


async def test_the_current_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means nothing there; an absolute one does."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    absolute = f"sqlite:///{tmp_path}/locks.db"
    for url in ("sqlite:///locks.db", f"{absolute}?rows=shop.db"):
        with pytest.raises(ConfigurationError, match="which was removed"):
            await connect(url)
    async with connect(absolute) as locks, locks.mutex("a", 1):
        pass


async def test_one_spoilt_record_harms_no_other(tmp_path: Path) -> None:
    """Its own users get an error; the others keep, get and list their locks."""
    path = tmp_path / "locks.db"
    async with connect(f"sqlite:///{path}", lease=1.0, on_lost="flag") as locks:
        bad = await locks.mutex("a", 0).acquire()
        good = [await locks.mutex("a", number).acquire() for number in (1, 2, 3)]
        spoil(path, 0, created=10**30)
        await anyio.sleep(1.5)
        assert bad.lost == "unreachable"
        for held in good:
            held.check()
        with pytest.raises(BadRecord):
            await locks.mutex("a", 0).acquire(timeout=1)
        assert [seen.resource_id async for seen in locks.list()] == ["1", "2", "3"]
        for held in good:
            assert await held.release()


async def test_leaving_in_a_cancelled_scope_closes_everything(tmp_path: Path) -> None:
    """No thread of ours is left behind, and no lock."""
    url = f"sqlite:///{tmp_path}/locks.db"
    # The thread of ``sync`` lives as long as the process; another test may have had it.
    others = ours()
    with anyio.CancelScope() as scope:
        async with connect(url) as locks, locks.mutex("a", 1):
            assert ours() - others
            scope.cancel()
            await anyio.sleep_forever()
    with anyio.fail_after(10):
        while ours() - others:  # noqa: ASYNC110 - a thread ends when it ends
            await anyio.sleep(0.01)
    async with connect(url) as again:
        held = await again.mutex("a", 1).try_acquire()
        assert held is not None
        assert await held.release()


def ours() -> set[threading.Thread]:
    """The threads of this library that run in this process."""
    threads = threading.enumerate()
    return {t for t in threads if t.name.startswith("aiorwlock_remote")}


async def test_failed_cleaning_leaves_the_file_free(tmp_path: Path) -> None:
    """Whatever fails in a transaction, it is rolled back."""
    path = tmp_path / "locks.db"
    connection = SqliteConnection(str(path), SystemClock())
    connection.open(1.0)
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE doormans")
    db.close()
    with pytest.raises(BackendError):
        connection.forget(0.0)
    with sqlite3.connect(path, timeout=0) as db:
        db.execute("CREATE TABLE repaired (x)")
    db.close()
    connection.close()


async def test_asking_again_right_after_a_loss(tmp_path: Path) -> None:
    """A grant found lost while the loop was busy is no reason for WouldDeadlock."""
    path = tmp_path / "locks.db"
    async with connect(f"sqlite:///{path}") as locks:
        mutex = locks.mutex("a", 1, lease=0.3)
        held = await mutex.acquire()
        with sqlite3.connect(path) as db:
            db.execute("DELETE FROM mutex_locks")
        db.close()
        time.sleep(0.3)  # noqa: ASYNC251 - the keeper finds out, the loop does not
        with pytest.raises(LockLost):
            held.check()
        again = await mutex.acquire(timeout=5)
        assert await again.release()
