"""Several locks in one table: by other keys, and by other columns of the same row."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from aiorwlock_remote import ConfigurationError, Locks, LockTimeout, connect
from aiorwlock_remote.recipes import RowLock
from tests.recipes.fix_rows import LocksSite
from tests.recipes.row_sites import PATIENCE

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("no socket has a part in it"),
]


@pytest.fixture
async def locks(sqlite: LocksSite) -> AsyncIterator[Locks]:
    """Rows 1 and 2 have numbers 2 and 1; all are of one customer."""
    for text in (
        "ALTER TABLE invoices ADD COLUMN number INTEGER",
        "ALTER TABLE invoices ADD COLUMN customer TEXT DEFAULT 'A'",
        "ALTER TABLE invoices ADD COLUMN mark TEXT NOT NULL DEFAULT 'Unlock'",
        "ALTER TABLE invoices ADD COLUMN readers INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE invoices ADD COLUMN why TEXT",
        "UPDATE invoices SET number = 3 - id",
    ):
        sqlite.plain.run(text)
    async with connect(sqlite.url) as locks:
        yield locks


async def test_they_do_not_exclude_each_other(locks: Locks) -> None:
    one = locks.row_lock("invoices", 1)
    other_row = locks.row_lock("invoices", 1, key="number")
    beside = locks.row_lock("invoices", 1, mark="mark", count="readers", reason="why")
    async with one.write(), other_row.write(timeout=1), beside.write(timeout=1):
        pass


async def test_who_waits_for_one_is_not_in_the_way_of_another(
    sqlite: LocksSite, locks: Locks
) -> None:
    one = locks.row_lock("invoices", 1)
    other_row = locks.row_lock("invoices", 1, key="number")
    assert sqlite.plain.step("WLock", 1)
    assert sqlite.plain.step("WLock", 2)
    let_in = anyio.Event()

    async def wait(lock: RowLock) -> None:
        async with lock.write(timeout=PATIENCE):
            let_in.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait, one)
        with pytest.raises(LockTimeout):
            await one.write(timeout=0.1)
        group.start_soon(wait, other_row)
        with pytest.raises(LockTimeout):
            await other_row.write(timeout=0.1)
        assert sqlite.plain.step("WUnlock", 2)
        await let_in.wait()
        assert sqlite.plain.step("WUnlock", 1)


async def test_a_key_that_is_not_unique_is_refused_beside_one_that_is(
    sqlite: LocksSite, locks: Locks
) -> None:
    """Nothing of the rows that it names is changed."""
    async with locks.row_lock("invoices", 3).write("ours"):
        assert sqlite.plain.step("WLock", 4)
        with pytest.raises(ConfigurationError, match="column customer must be unique"):
            await locks.row_lock("invoices", "A", key="customer").write(timeout=0)
        assert sqlite.plain.stands(3) == ("WriteLock", 0, "ours")
        assert sqlite.plain.stands(4) == ("WriteLock", 0, "theirs")
