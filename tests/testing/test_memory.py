"""A store that fails on demand: what holders learn, and what other clients see."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import get_args

import anyio
import pytest

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    ConfigurationError,
    Held,
    LockLost,
    Locks,
    LockTimeout,
    LossReason,
    connect,
    sync,
)
from aiorwlock_remote.core.commands import Acquire
from aiorwlock_remote.testing.faults import Fate
from aiorwlock_remote.testing.memory import FaultyMemory

pytestmark = pytest.mark.anyio
NAME = "order", 42


@pytest.fixture
def store() -> FaultyMemory:
    return FaultyMemory()


@pytest.fixture
async def locks(store: FaultyMemory) -> AsyncIterator[Locks]:
    async with store.connect() as locks:
        yield locks


@pytest.fixture
async def rival(store: FaultyMemory) -> AsyncIterator[Locks]:
    async with store.connect_rival() as locks:
        yield locks


async def test_both_see_the_same_locks(locks: Locks, rival: Locks) -> None:
    async with locks.mutex(*NAME):
        assert await rival.mutex(*NAME).try_acquire() is None
    async with rival.mutex(*NAME):
        assert await locks.mutex(*NAME).try_acquire() is None


async def test_another_store_has_other_locks(locks: Locks) -> None:
    async with locks.mutex(*NAME), FaultyMemory().connect() as others:
        assert not await others.mutex(*NAME).locked()


async def test_options_are_those_of_connect(store: FaultyMemory) -> None:
    async with store.connect(lease=5) as locks, locks.mutex(*NAME) as held:
        assert held.expires_in is not None
        assert held.expires_in < 5
    with pytest.raises(ConfigurationError):
        async with store.connect(lease=-1):
            pass


# ------------------------------------------------------------------------ lost


@pytest.mark.parametrize("reason", get_args(LossReason))
async def test_a_loser_gets_lock_lost(
    store: FaultyMemory, locks: Locks, rival: Locks, reason: LossReason
) -> None:
    with pytest.raises(LockLost) as caught:
        async with locks.mutex(*NAME) as held:
            store.lose(*NAME, reason)
            assert held.lost == reason
            async with rival.mutex(*NAME).acquire(timeout=0):
                await anyio.sleep_forever()
    assert caught.value.reason == reason


async def test_a_waiter_gets_the_lock_after_a_loss(
    store: FaultyMemory, locks: Locks, rival: Locks
) -> None:
    got = anyio.Event()

    async def wait() -> None:
        async with rival.mutex(*NAME):
            got.set()

    async with anyio.create_task_group() as tasks:
        held = await locks.mutex(*NAME).acquire()
        tasks.start_soon(wait)
        await queued(rival)
        store.lose(*NAME)
        await got.wait()
    with pytest.raises(LockLost):
        held.check()


async def test_every_reader_loses_it(
    store: FaultyMemory, locks: Locks, rival: Locks
) -> None:
    async with rival.mutex("order", 43) as other:
        ours = await locks.rwlock(*NAME).reader.acquire()
        theirs = await rival.rwlock(*NAME).reader.acquire()
        store.lose(*NAME)
        assert (ours.lost, theirs.lost, other.lost) == ("expired", "expired", None)


async def test_a_free_lock_cannot_be_lost(store: FaultyMemory, locks: Locks) -> None:
    with pytest.raises(LookupError, match="order/42"):
        store.lose(*NAME)
    async with locks.mutex(*NAME):
        pass
    with pytest.raises(ConfigurationError, match="known: expired, "):
        store.lose(*NAME, "late")  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        store.lose(*NAME)


async def test_a_grant_of_a_lost_reply_cannot_be_lost(
    store: FaultyMemory, locks: Locks, rival: Locks
) -> None:
    """The store has granted, as ``locked()`` shows; the acquire has not returned."""
    store.link.hold_back = True

    async def wait() -> None:
        await locks.mutex(*NAME).acquire()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        while not await rival.mutex(*NAME).locked():
            await anyio.lowlevel.checkpoint()
        with pytest.raises(LookupError, match="its acquire has not returned yet"):
            store.lose(*NAME)
        tasks.cancel_scope.cancel()


# ------------------------------------------------------------------------ time


async def test_a_holder_that_was_paused_does_not_know(
    store: FaultyMemory, locks: Locks, rival: Locks
) -> None:
    """It relies on its lease, and only the fence shows that it is late."""
    late = await locks.mutex(*NAME).acquire()
    store.advance(60)
    async with rival.mutex(*NAME).acquire(timeout=0) as held:
        assert late.valid
        assert held.fence > late.fence
        with pytest.raises(LockLost) as caught:
            await late.extend()
    assert caught.value.reason in ("expired", "stolen")


async def test_a_waiter_need_not_wait_for_the_lease(
    store: FaultyMemory, locks: Locks, rival: Locks
) -> None:
    got: list[Held] = []

    async def wait() -> None:
        got.append(await rival.mutex(*NAME).acquire())

    async with anyio.create_task_group() as tasks:
        late = await locks.mutex(*NAME, lease=3600).acquire()
        tasks.start_soon(wait)
        await queued(rival)
        store.advance(3599)
        await queued(rival)
        assert not got
        store.advance(1)
    assert got[0].fence > late.fence
    await got[0].release()
    with pytest.raises(LockLost):
        await late.extend()


async def test_time_does_not_go_back(store: FaultyMemory) -> None:
    for seconds in (-1, float("nan")):
        with pytest.raises(ConfigurationError):
            store.advance(seconds)


# ---------------------------------------------------------------- out of reach


async def test_requests_to_a_store_that_is_down_fail(
    store: FaultyMemory, locks: Locks, rival: Locks
) -> None:
    lock = locks.mutex(*NAME)
    with store.down():
        for acquire in (lock.acquire, lock.try_acquire):
            with pytest.raises(AcquireUncertain):
                await acquire()
        for look in (lock.locked, partial(scan, locks)):
            with pytest.raises(BackendUnavailable):
                await look()
        with pytest.raises(BackendUnavailable):
            async with store.connect():
                pass
        async with rival.mutex(*NAME):
            pass
    async with lock:
        assert await rival.mutex(*NAME).locked()


async def test_a_release_during_an_outage_ends_with_the_lease(
    store: FaultyMemory, locks: Locks, rival: Locks
) -> None:
    held = await locks.mutex(*NAME).acquire()
    with store.down(), pytest.raises(BackendUnavailable):
        await held.release()
    assert await rival.mutex(*NAME).locked()
    store.advance(30)
    assert not await rival.mutex(*NAME).locked()


async def test_a_waiter_goes_on_through_an_outage(
    store: FaultyMemory, locks: Locks, rival: Locks
) -> None:
    got = anyio.Event()

    async def wait() -> None:
        async with locks.mutex(*NAME):
            got.set()

    async with anyio.create_task_group() as tasks:
        held = await rival.mutex(*NAME).acquire()
        tasks.start_soon(wait)
        await queued(rival)
        with store.down():
            await held.release()
            await anyio.wait_all_tasks_blocked()
            assert not got.is_set()
        await got.wait()


@pytest.mark.slow
async def test_renewals_fail_with_the_rest(store: FaultyMemory) -> None:
    with pytest.raises(LockLost) as caught:
        async with store.connect(lease=2) as locks, locks.mutex(*NAME):
            with store.down():
                await anyio.sleep_forever()
    assert caught.value.reason == "unreachable"


async def test_a_lost_answer_is_not_guessed(store: FaultyMemory, locks: Locks) -> None:
    store.link.fate = lambda c: Fate.LOSE if isinstance(c, Acquire) else Fate.REFUSE
    with pytest.raises(AcquireUncertain):
        await locks.mutex(*NAME).acquire()
    store.link.fate = lambda _: Fate.PASS
    with pytest.raises(LockTimeout):
        await locks.mutex(*NAME).acquire(timeout=0)


async def test_a_faulty_memory_store_is_a_backend(
    store: FaultyMemory, locks: Locks
) -> None:
    """It is accepted by code that calls ``connect`` itself."""
    async with connect(store) as others, others.mutex(*NAME):
        assert await locks.mutex(*NAME).locked()


async def queued(locks: Locks) -> None:
    """Wait until a task waits in the store's queue."""
    while not (await locks.mutex(*NAME).info()).queue:
        await anyio.wait_all_tasks_blocked()
    await anyio.wait_all_tasks_blocked()


async def scan(locks: Locks) -> None:
    async for _ in locks.list():
        pass


# -------------------------------------------------- programs that connect by themselves


async def test_a_lock_of_a_program_that_connects_by_itself_is_lost(
    store: FaultyMemory,
) -> None:
    with pytest.raises(LockLost, match="forced"):
        async with connect(store) as own, own.mutex(*NAME):
            store.lose(*NAME, reason="forced")
            await anyio.sleep_forever()


def test_a_thread_learns_of_its_loss(store: FaultyMemory) -> None:
    locks, rival = sync.connect(store), sync.connect(store.rival)
    lost = pytest.raises(LockLost, match="stolen")
    with locks, rival, lost, locks.mutex(*NAME) as held:
        store.lose(*NAME, reason="stolen")
        assert held.lost == "stolen"
        with rival.mutex(*NAME).acquire(timeout=0) as others:
            assert others.fence > held.fence


def test_a_thread_that_was_paused_does_not_know(store: FaultyMemory) -> None:
    with sync.connect(store) as locks, sync.connect(store.rival) as rival:
        held = locks.mutex(*NAME).acquire()
        store.advance(60)
        with rival.mutex(*NAME).acquire(timeout=0):
            held.check()
        with pytest.raises(LockLost):
            held.release()


def test_requests_of_threads_to_a_store_that_is_down_fail(store: FaultyMemory) -> None:
    with sync.connect(store) as locks, sync.connect(store.rival) as rival:
        with store.down():
            with pytest.raises(AcquireUncertain):
                locks.mutex(*NAME).acquire(timeout=0)
            with rival.mutex(*NAME).acquire(timeout=0):
                pass
        with locks.mutex(*NAME).acquire(timeout=0):
            pass


def test_a_free_lock_of_threads_cannot_be_lost(store: FaultyMemory) -> None:
    with sync.connect(store), pytest.raises(LookupError, match="order/42 is not held"):
        store.lose(*NAME)
