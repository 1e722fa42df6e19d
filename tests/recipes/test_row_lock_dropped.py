"""Row locks that nobody can give back any more: told, and not renewed for ever."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import anyio
import pytest

from aiorwlock_remote import LockLost, Locks, WouldDeadlock, connect
from aiorwlock_remote.recipes import RowLock
from tests.forked_children import exit_code, fork
from tests.recipes.fix_rows import LocksSite
from tests.recipes.row_sites import FREE, LOCKED, PATIENCE

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("what differs is in the driver's sockets, and tested there"),
]

LEASE = 1.5


@pytest.fixture
async def locks(sqlite: LocksSite) -> AsyncIterator[Locks]:
    async with connect(sqlite.url) as locks:
        yield locks


@pytest.fixture
async def other(sqlite: LocksSite) -> AsyncIterator[RowLock]:
    """The row as another process sees it."""
    async with connect(sqlite.url) as locks:
        yield locks.row_lock("invoices", 1, lease=30)


@contextmanager
def told() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield told
        gc.collect()


async def drop(lock: RowLock) -> None:
    await lock.write()


async def test_it_ends_with_its_lease(locks: Locks, other: RowLock) -> None:
    """Though the warning refers to it."""
    lock = locks.row_lock("invoices", 1, lease=LEASE)
    with told() as warned:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drop, lock)
    (warning,) = warned
    assert warning.category is ResourceWarning
    assert "invoices/1" in str(warning.message)
    assert str(warning.message).endswith("it ends with its lease")
    async with other.write(timeout=PATIENCE):
        pass


async def test_who_dropped_it_may_ask_again(locks: Locks) -> None:
    lock = locks.row_lock("invoices", 1, lease=LEASE)
    with told() as warned:
        await drop(lock)
    assert len(warned) == 1
    async with lock.write(timeout=PATIENCE) as held:
        await anyio.sleep(1.2 * LEASE)
        held.check()


async def test_without_a_lease_it_stays(sqlite: LocksSite) -> None:
    """Until the ``Locks`` is closed."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1)
        with told() as warned:
            await drop(lock)
        (warning,) = warned
        assert warning.category is ResourceWarning
        assert str(warning.message).endswith("the row stays locked")
        with pytest.raises(WouldDeadlock):
            await drop(lock)
        assert sqlite.plain.state() == LOCKED["write"]
    assert sqlite.plain.state() == FREE


@pytest.mark.parametrize("lease", [None, 30.0])
async def test_nothing_is_told_of_what_is_over(
    sqlite: LocksSite, lease: float | None
) -> None:
    with told() as warned:
        async with connect(sqlite.url) as locks:
            lock = locks.row_lock("invoices", 1, lease=lease)
            async with lock.write():
                pass
            held = await lock.write()
            await held.release()
            del held
            gc.collect()
            held = await lock.write()
        del held
    assert not warned


@pytest.mark.only_on("asyncio", "no loop has a part in it")
async def test_nothing_is_told_of_what_was_lost(
    sqlite: LocksSite, locks: Locks
) -> None:
    held = await locks.row_lock("invoices", 1, lease=LEASE).write()
    sqlite.plain.step("WUnlock")
    with told() as warned:
        with pytest.raises(LockLost):
            await held.extend()
        del held
    assert not warned


async def test_a_block_keeps_it(locks: Locks, other: RowLock) -> None:
    """Its ``RowHeld`` is not needed for that."""
    async with locks.row_lock("invoices", 1, lease=LEASE).write():
        gc.collect()
        await anyio.sleep(1.2 * LEASE)
        assert await other.try_write() is None


@pytest.mark.only_on("asyncio", "trio does not let a task end inside of a block")
async def test_who_entered_has_ended(locks: Locks, other: RowLock) -> None:
    acquisition = locks.row_lock("invoices", 1, lease=LEASE).write()
    await asyncio.ensure_future(acquisition.__aenter__())
    async with other.write(timeout=PATIENCE):
        pass


@pytest.mark.only_on("asyncio", "no loop has a part in it")
@pytest.mark.parametrize("lease", [None, 30.0])
async def test_a_forked_child_tells_nothing(locks: Locks, lease: float | None) -> None:
    held = await locks.row_lock("invoices", 1, lease=lease).write()
    pid = fork()
    if pid == 0:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            del held
            os._exit(len(warned))
    assert exit_code(pid) == 0
    await held.release()


async def test_it_is_not_copied(locks: Locks) -> None:
    """A copy that is dropped would end the care for what is still held."""
    held = await locks.row_lock("invoices", 1, lease=LEASE).write()
    with pytest.raises(TypeError, match="neither copied"):
        copy.copy(held)
    await held.release()
