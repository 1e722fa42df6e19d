"""A grant that nothing refers to ends with its lease, whoever keeps the warning."""

from __future__ import annotations

import gc
import os
import warnings

import anyio
import pytest

from aiorwlock_remote import Locks, connect
from tests.forking import exit_code, fork

pytestmark = pytest.mark.anyio

LEASE = 1.0


async def drop(locks: Locks) -> None:
    await locks.mutex("order", 1, lease=LEASE).acquire()


async def test_a_recorded_warning_does_not_keep_it() -> None:
    async with connect("memory://") as locks:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drop, locks)
            gc.collect()
            (warning,) = told
            assert warning.source is not None, "the warning keeps the Held"
            async with locks.mutex("order", 1).acquire(5 * LEASE):
                pass


async def test_who_dropped_it_may_ask_again() -> None:
    async with connect("memory://") as locks:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            await drop(locks)
            gc.collect()
            assert len(told) == 1
            async with locks.mutex("order", 1).acquire(5 * LEASE):
                pass


async def test_one_without_a_lease_ends_when_it_is_closed() -> None:
    async with connect("memory://dropped") as others:
        locks = await connect("memory://dropped")
        with pytest.warns(ResourceWarning, match="stays until the Locks is closed"):
            await acquire_and_drop(locks)
        assert await others.mutex("order", 1).locked()
        await locks.aclose()
        assert not await others.mutex("order", 1).locked()


async def acquire_and_drop(locks: Locks) -> None:
    await locks.mutex("order", 1, lease=None).acquire()
    gc.collect()


async def test_a_forked_child_tells_nothing() -> None:
    """It is its parent's."""
    async with connect("memory://") as locks:
        held = await locks.mutex("order", 1).acquire()
        pid = fork()
        if pid == 0:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                del held
                os._exit(len(told))
        assert exit_code(pid) == 0
        await held.release()
