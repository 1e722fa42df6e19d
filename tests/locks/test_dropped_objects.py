"""A grant that nothing refers to ends with its lease, whoever keeps the warning."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import warnings
from collections.abc import Callable

import anyio
import pytest

from aiorwlock_remote import Held, Locks, connect
from aiorwlock_remote.locks.client import session_of
from aiorwlock_remote.locks.held import state_of
from tests.forked_children import exit_code, fork

pytestmark = pytest.mark.anyio

LEASE = 1.0


async def drop(locks: Locks) -> None:
    await locks.mutex("order", 1, lease=LEASE).acquire()


@pytest.mark.slow
async def test_a_recorded_warning_does_not_keep_it() -> None:
    async with connect("memory://") as locks:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(drop, locks)
            gc.collect()
            (warning,) = warned
            assert warning.source is not None, "the warning keeps the Held"
            async with locks.mutex("order", 1).acquire(5 * LEASE):
                pass


@pytest.mark.slow
async def test_who_dropped_it_may_ask_again() -> None:
    async with connect("memory://") as locks:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            await drop(locks)
            gc.collect()
            assert len(warned) == 1
            async with locks.mutex("order", 1).acquire(5 * LEASE):
                pass


async def test_one_without_a_lease_ends_when_it_is_closed() -> None:
    async with connect("memory://dropped") as others:
        locks = await connect("memory://dropped")
        with pytest.warns(ResourceWarning, match="stays until the Locks is closed"):
            await acquire_and_drop(locks, lease=None)
        assert await others.mutex("order", 1).locked()
        await locks.aclose()
        assert not await others.mutex("order", 1).locked()


async def acquire_and_drop(locks: Locks, *, lease: float | None) -> None:
    await locks.mutex("order", 1, lease=lease).acquire()
    gc.collect()


async def test_one_with_a_lease_ends_then_at_the_latest() -> None:
    """A script that forgot it, and is started again, need not wait for its lease."""
    async with connect("memory://forgotten") as others:
        locks = await connect("memory://forgotten")
        with pytest.warns(ResourceWarning, match="its lease or when"):
            await acquire_and_drop(locks, lease=3600)
        async with locks.mutex("order", 2):
            assert await others.mutex("order", 1).locked()
        await locks.aclose()
        assert not await others.mutex("order", 1).locked()


async def test_ended_objects_do_not_pile_up() -> None:
    async with connect("memory://piled") as locks:
        dropped = session_of(locks).dropped
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number, length in enumerate([None, LEASE, LEASE, LEASE, LEASE]):
                await locks.mutex("pile", number).acquire(lease=length)
            gc.collect()
        for lease in dropped:
            if lease.terms.lease is not None:
                lease.lose("expired")
        for _ in range(5):
            async with locks.mutex("order", 9):
                pass
        assert [lease.terms.lease for lease in dropped] == [None]


async def test_a_forked_child_tells_nothing() -> None:
    """It is its parent's."""
    async with connect("memory://") as locks:
        held = await locks.mutex("order", 1).acquire()
        pid = fork()
        if pid == 0:
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                del held
                os._exit(len(warned))
        assert exit_code(pid) == 0
        await held.release()


async def test_nor_does_it_give_it_back() -> None:
    """As when a wait for several locks falls apart there; observers would be called."""
    async with connect("memory://") as locks:
        held = await locks.mutex("order", 1).acquire()
        pid = fork()
        if pid == 0:
            state_of(held).give_back()
            os._exit(7 if held.valid else 1)
        assert exit_code(pid) == 7
        await held.release()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_a_held_is_not_copied(copied: Callable[[Held], object]) -> None:
    """A copy that is dropped would end the keeper's care for what is still held."""
    async with connect("memory://") as locks:
        held = await locks.mutex("order", 1).acquire()
        with pytest.raises(TypeError, match=r"detach\(\)"):
            copied(held)
        await held.release()


async def test_locks_that_nobody_closed() -> None:
    """They keep connections and threads: a warning says so, as of sockets."""
    with pytest.warns(ResourceWarning, match=r"<Locks memory://.*> was never closed"):
        await connect("memory://")
    locks = await connect("memory://")
    await locks.aclose()
    del locks
    gc.collect()
