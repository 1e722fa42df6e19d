"""A timeout reports the store's last reply, or that it did not answer."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from aiorwlock_remote import Locks, LockTimeout
from aiorwlock_remote.core.commands import Acquire
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import FaultyLink
from aiorwlock_remote.testing.memory import FaultyMemory

pytestmark = pytest.mark.anyio

NAME = ("order", 42)


@pytest.fixture
def store() -> FaultyMemory:
    """This test's store, looked at every 1 to 1.5 s, as most are."""
    return FaultyMemory()


@pytest.fixture
async def held(near: Locks) -> AsyncIterator[None]:
    """Another process has it."""
    async with near.mutex(*NAME).acquire(reason="refund"):
        yield


async def timed_out(locks: Locks, mode: str = "writer") -> LockTimeout:
    both = locks.rwlock(*NAME)
    with pytest.raises(LockTimeout) as caught:
        await (both.writer if mode == "writer" else both.reader).acquire(timeout=0.02)
    return caught.value


@pytest.mark.usefixtures("held")
async def test_a_later_waiter_gets_the_last_reply_of_the_store(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """The first one has the place, and nothing is asked for the second one."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_wait, locks)
        await _waits(near, 1)
        sent = len(link.sent)
        for _ in range(3):
            caught = await timed_out(locks)
            assert not caught.unanswered
            assert caught.status_hint == 423
            assert "refund" in caught.holders[0]
            assert caught.retry_after is not None
        assert not any(isinstance(command, Acquire) for command in link.sent[sent:])
        tasks.cancel_scope.cancel()


@pytest.mark.usefixtures("held")
async def test_nor_is_the_store_to_blame_after_it_fell_silent(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """Nothing was asked for the second one; what the store said last is known."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_wait, locks)
        await _waits(near, 1)
        link.hold_back = True
        assert not (await timed_out(locks)).unanswered
        assert (await timed_out(locks, "reader")).unanswered, "it asked for itself"
        tasks.cancel_scope.cancel()
    link.let_through()


async def test_behind_one_of_this_process(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """It reports the grant of the store's last reply."""
    link.hold_back = True
    leave, entered = anyio.Event(), anyio.Event()

    async def work() -> None:
        async with locks.mutex(*NAME).acquire(reason="of our own"):
            entered.set()
            await leave.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(work)
        await wait_until(lambda: _asked(link, 1), 5)
        tasks.start_soon(_wait, locks)  # so that the first one's grant leaves a place
        await anyio.wait_all_tasks_blocked()
        link.let_through()
        await entered.wait()
        await _waits(near, 1)
        caught = await timed_out(locks)
        assert not caught.unanswered
        assert "of our own" in caught.holders[0]
        leave.set()


async def test_behind_one_that_is_not_answered(link: FaultyLink, locks: Locks) -> None:
    """The request of the first is for both."""
    link.hold_back = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_wait, locks)
        await wait_until(lambda: _asked(link, 1), 5)
        caught = await timed_out(locks)
        assert caught.unanswered
        assert caught.holders == ()
        tasks.cancel_scope.cancel()
    link.let_through()


async def test_several_that_are_not_answered(link: FaultyLink, locks: Locks) -> None:
    link.hold_back = True
    with pytest.raises(LockTimeout) as caught:
        await locks.multi(locks.mutex(*NAME), locks.mutex("other", 1), timeout=0.02)
    assert caught.value.unanswered
    link.let_through()


async def _wait(locks: Locks) -> None:
    async with locks.rwlock(*NAME).writer.acquire(timeout=30):
        pass


async def _asked(link: FaultyLink, count: int) -> bool:
    return len(link.sent) >= count


async def _waits(near: Locks, count: int) -> None:
    async def caught() -> bool:
        return len((await near.mutex(*NAME).info()).queue) == count

    await wait_until(caught, 5)
