"""Row locks whose ``RowHeld`` is dropped. What holds for all grants is tested in
tests/locks/test_dropped_objects.py.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest

from aiorwlock_remote import WouldDeadlock, connect
from aiorwlock_remote.recipes import RowLock
from tests.recipes.fix_rows import LocksSite
from tests.recipes.row_sites import FREE, LOCKED, PATIENCE

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("what differs is in the driver's sockets, and tested there"),
]

LEASE = 1.5


@contextmanager
def recorded_warnings() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        yield recorded
        gc.collect()


async def drop(lock: RowLock) -> None:
    await lock.write()


async def test_it_ends_with_its_lease(sqlite: LocksSite) -> None:
    """Though the warning refers to it."""
    async with connect(sqlite.url) as locks, connect(sqlite.url) as others:
        lock = locks.row_lock("invoices", 1, lease=LEASE)
        with recorded_warnings() as recorded:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drop, lock)
        (warning,) = recorded
        assert warning.category is ResourceWarning
        assert "invoices/1" in str(warning.message)
        assert str(warning.message).endswith("it ends with its lease")
        async with others.row_lock("invoices", 1, lease=30).write(timeout=PATIENCE):
            pass


async def test_without_a_lease_it_stays(sqlite: LocksSite) -> None:
    """Until the ``Locks`` is closed."""
    async with connect(sqlite.url) as locks:
        lock = locks.row_lock("invoices", 1)
        with recorded_warnings() as recorded:
            await drop(lock)
        (warning,) = recorded
        assert warning.category is ResourceWarning
        assert str(warning.message).endswith("the row stays locked")
        with pytest.raises(WouldDeadlock):
            await drop(lock)
        assert sqlite.plain.state() == LOCKED["write"]
    assert sqlite.plain.state() == FREE
