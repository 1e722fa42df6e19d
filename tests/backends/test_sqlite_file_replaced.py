"""SQLite whose file somebody removes or replaces while it is in use.

SQLite goes on with a file that has lost its name, beside whoever opens the new one.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from aiorwlock_remote import ConfigurationError, Held, LockLost, connect
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.renewals import renewed

pytestmark = pytest.mark.anyio


Change = Callable[[Path], object]


def remove(path: Path) -> None:
    """As ``rm -f locks.db*`` does."""
    for name in path.parent.glob(f"{path.name}*"):
        name.unlink()


def restore(path: Path) -> None:
    """An older state takes its place, as from a backup."""
    copy = path.with_name("copy")
    shutil.copy(path, copy)
    remove(path)
    copy.rename(path)


@pytest.mark.parametrize("change", [remove, restore])
async def test_all_processes_continue_with_the_new_file(
    tmp_path: Path, change: Change
) -> None:
    path = tmp_path / "locks.db"
    url = f"sqlite:///{path}"
    async with connect(url, lease=None) as first, connect(url) as second:
        held = await first.mutex("order", 1).acquire()
        async with second.mutex("order", 2):
            pass
        change(path)
        async with connect(url, lease=None) as third:
            theirs = await third.mutex("order", 1).acquire(timeout=10)
            assert theirs.fence > held.fence
            assert await second.mutex("order", 1).try_acquire() is None
            with pytest.raises(LockLost):
                await held.release()
            assert await theirs.release()
            async with second.mutex("order", 1).acquire(timeout=10) as again:
                assert again.fence > theirs.fence
                assert await third.mutex("order", 1).try_acquire() is None


@pytest.mark.usefixtures("renewed_often")
async def test_a_holder_learns_that_its_file_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    async with connect(f"sqlite:///{path}", on_lost="flag") as locks:
        held = await locks.mutex("order", 1).acquire()
        await renewed(held)
        remove(path)
        await wait_until(lambda: lost(held), 10)


async def test_a_moved_folder_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    async with connect(f"sqlite:///{folder}/locks.db") as locks:
        async with locks.mutex("order", 1):
            pass
        folder.rename(tmp_path / "away")
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="its folder must exist"):
                await locks.mutex("order", 1).acquire(timeout=1)
        (tmp_path / "away").rename(folder)
        async with locks.mutex("order", 1):
            pass


async def lost(held: Held) -> bool:
    return held.lost is not None


async def test_a_file_of_rows_that_is_replaced(tmp_path: Path) -> None:
    """As from a backup: the row that others see is the one that is locked."""
    shop, backup = tmp_path / "shop.db", tmp_path / "backup.db"
    with closing(sqlite3.connect(shop)) as db:
        db.execute(
            "CREATE TABLE invoices (id INTEGER PRIMARY KEY, lock_mark TEXT DEFAULT"
            " 'Unlock', read_lock_count INTEGER DEFAULT 0, lock_reason TEXT)"
        )
        db.execute("INSERT INTO invoices (id) VALUES (1)")
        db.commit()
    shutil.copy(shop, backup)
    url = f"sqlite:///{tmp_path}/locks.db?rows={shop}"
    async with connect(url) as locks:
        lock = locks.row_lock("invoices", 1)
        async with lock.write("before"):
            pass
        backup.replace(shop)
        assert (await lock.look()).reason == ""
        async with lock.write("after"):
            with closing(sqlite3.connect(shop)) as db:
                ((reason,),) = db.execute("SELECT lock_reason FROM invoices")
            assert reason == "after"
