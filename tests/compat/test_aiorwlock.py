"""``RWLock`` with aiorwlock's signature and rules, on several stores."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Protocol

import aiorwlock
import pytest

from aiorwlock_remote import ConfigurationError, Held, LockLost, connect
from aiorwlock_remote.compat.aiorwlock import RWLock
from aiorwlock_remote.locks.session import HeldState

pytestmark = pytest.mark.asyncio

NAME = "catalog", 7


def held_of(grant: HeldState) -> Held:
    assert grant.face is not None
    held = grant.face()
    assert isinstance(held, Held)
    return held


async def test_the_lock_has_the_names_of_aiorwlock() -> None:
    async with connect("memory://") as locks:
        ours, theirs = RWLock(locks=locks, name=NAME), aiorwlock.RWLock()
        for one, other in ((ours, theirs), (ours.reader, theirs.reader)):
            names = {name for name in dir(other) if not name.startswith("_")}
            assert names - {"core"} <= set(dir(one))


async def test_two_processes_exclude_each_other(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    async with connect(url) as here, connect(url) as there:
        ours, other = (RWLock(locks=one, name=NAME) for one in (here, there))
        async with connect(url) as third, ours.reader_lock, other.reader_lock:
            assert ours.reader.locked
            assert other.reader.locked
            assert not await third.mutex(*NAME).try_acquire()
        await ours.writer_lock.acquire()
        waiting = asyncio.create_task(other.reader.acquire())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert not other.writer.locked  # of its own process
        ours.writer_lock.release()
        await waiting
        # By the task that acquired, as in aiorwlock.
        with pytest.raises(RuntimeError, match="un-acquired"):
            other.reader.release()


async def test_a_reader_inside_of_a_writer_keeps_the_writers_grant() -> None:
    async with connect("memory://") as locks:
        lock = RWLock(locks=locks, name=NAME)
        await lock.writer.acquire()
        await lock.reader.acquire()
        lock.writer.release()
        assert lock.reader.locked
        assert not lock.writer.locked
        (holder,) = (await locks.rwlock(*NAME).info()).holders
        assert holder.mode == "write"
        with pytest.raises(RuntimeError, match="upgrade"):
            await lock.writer.acquire()
        lock.reader.release()
        async with lock.writer:
            pass


@pytest.mark.usefixtures("renewed_often")
async def test_a_loss_cancels_the_block_and_is_raised() -> None:
    async with connect("memory://") as locks:
        lock = RWLock(locks=locks, name=NAME)

        async def lose() -> None:
            seen = await locks.rwlock(*NAME).info()
            assert await locks.force_release(seen, reason="test") == 1

        with pytest.raises(LockLost):
            async with lock.writer, lock.reader:
                await lose()
                await asyncio.sleep(60)
        async with lock.writer:
            pass
        await lock.writer.acquire()
        await lose()
        (grant,) = locks._session.grants()
        with pytest.raises(LockLost):
            await held_of(grant).extend()
        with pytest.raises(LockLost):
            lock.writer.release()


async def test_an_error_of_the_block_comes_first() -> None:
    async with connect("memory://") as locks:
        lock = RWLock(locks=locks, name=NAME)
        with pytest.raises(ZeroDivisionError):
            async with lock.writer:
                _ = 1 / 0
        with pytest.raises(RuntimeError, match="async with"), lock.writer:
            pass
        assert (
            repr(lock) == "<RWLock: <ReaderLock: [unlocked]> <WriterLock: [unlocked]>>"
        )
        assert not await locks.rwlock(*NAME).locked()


@pytest.mark.parametrize("side", ["reader", "writer"])
async def test_another_event_loop_is_refused_as_by_aiorwlock(side: str) -> None:
    """Two tests of aiorwlock 1.5.1: in loops of other threads, the lock held or not."""
    async with connect("memory://") as locks:
        for lock in (RWLock(locks=locks, name=NAME), aiorwlock.RWLock()):
            ours = getattr(lock, side)

            async with ours:
                threads = [asyncio.to_thread(refused, ours) for _ in range(2)]
                await asyncio.gather(*threads)
                assert ours.locked
            assert not ours.locked
            await asyncio.to_thread(refused, ours)
            async with lock.writer:
                pass


class Side(Protocol):
    """One side of a lock, ours or aiorwlock's."""

    async def acquire(self) -> object: ...

    def release(self) -> None: ...


def refused(side: Side) -> None:
    async def released() -> None:
        side.release()

    for call in (side.acquire, released):
        with pytest.raises(RuntimeError, match="is bound to a different"):
            asyncio.run(call())


async def test_the_lock_needs_a_store_and_a_name() -> None:
    with pytest.raises(ConfigurationError, match="a store and a name"):
        RWLock()
