"""``max_hold`` ends: the holder learns of its loss, and the grant is released."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from aiorwlock_remote import Held, LockLost, Locks
from aiorwlock_remote.core.commands import Release
from aiorwlock_remote.locks.held import share_ticket, state_of
from aiorwlock_remote.runtime.lease import LeaseState
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import FaultyLink
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.runtime.cleanup import NAME, ends_fail, is_free_once_the_store_hears

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("nothing is sent")]

LEASE = 600.0
"""Longer than anybody waits here."""
SHORT = 0.1

Hold = Callable[[Locks], AbstractAsyncContextManager[None]]


def lost(held: Held) -> None:
    assert held.lost == "stalled"
    assert not held.valid


@asynccontextmanager
async def by_hand(locks: Locks) -> AsyncIterator[None]:
    held = await locks.mutex(*NAME, lease=LEASE, max_hold=SHORT).acquire()
    yield
    lost(held)
    with pytest.raises(LockLost):
        await held.release()


@asynccontextmanager
async def by_hand_for_ever(locks: Locks) -> AsyncIterator[None]:
    held = await locks.rwlock(*NAME, lease=None, max_hold=SHORT).reader.acquire()
    yield
    lost(held)


@asynccontextmanager
async def in_a_body_that_goes_on(locks: Locks) -> AsyncIterator[None]:
    lock = locks.mutex(*NAME, lease=LEASE, max_hold=SHORT, on_lost="flag")
    async with lock as held:
        yield
        lost(held)


@asynccontextmanager
async def in_a_body_that_cannot_be_cancelled(locks: Locks) -> AsyncIterator[None]:
    with pytest.raises(LockLost):
        async with locks.mutex(*NAME, lease=LEASE, max_hold=SHORT) as held:
            with anyio.CancelScope(shield=True):
                yield
                lost(held)


@asynccontextmanager
async def moved(locks: Locks) -> AsyncIterator[None]:
    lock = locks.rwlock(*NAME, lease=LEASE, max_hold=SHORT)
    held = await (await lock.writer.acquire()).downgrade()
    yield
    lost(held)


@asynccontextmanager
async def several(locks: Locks) -> AsyncIterator[None]:
    lock = locks.mutex(*NAME, lease=LEASE, max_hold=SHORT)
    beside = locks.mutex("far", 2, lease=LEASE)
    held, other = await locks.multi(lock, beside)
    yield
    lost(held)
    assert await other.release()


HOLDS = [
    by_hand,
    by_hand_for_ever,
    in_a_body_that_goes_on,
    in_a_body_that_cannot_be_cancelled,
    moved,
    several,
]


@pytest.mark.parametrize("hold", HOLDS)
async def test_the_store_has_it_back(
    locks: Locks, near: Locks, link: FaultyLink, hold: Hold
) -> None:
    """Each form of a grant, while its lease has long to go; and once is enough."""
    async with hold(locks):
        sent = len(link.sent)
        async with near.mutex(*NAME).acquire(timeout=5):
            pass
    released = [c for c in link.sent[sent:] if isinstance(c, Release)]
    assert len(released) == 1 + (hold is several)


async def test_a_local_waiter_is_next_after_max_hold(
    locks: Locks, link: FaultyLink
) -> None:
    """The request that gives it back carries the acquire of a task that waits."""
    held = await locks.mutex(*NAME, lease=LEASE, max_hold=SHORT).acquire()

    async def wait() -> None:
        async with locks.mutex(*NAME, lease=LEASE).acquire(timeout=5):
            lost(held)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
    released, _ = [c for c in link.sent if isinstance(c, Release)]
    assert released.then


async def test_a_loop_that_hangs_keeps_its_lease(
    locks: Locks, near: Locks, link: FaultyLink
) -> None:
    """What hangs it may write still: it was promised to be alone until its deadline."""
    held = await locks.mutex(*NAME, lease=LEASE, max_hold=SHORT).acquire()
    lease = state_of(held).lease
    while lease.state is LeaseState.HELD:  # without a turn of the loop
        pass
    lost(held)
    assert not [c for c in link.sent if isinstance(c, Release)]
    async with near.mutex(*NAME).acquire(timeout=5):
        pass


async def test_a_failed_release_is_repeated(
    locks: Locks, near: Locks, link: FaultyLink
) -> None:
    link.fate = ends_fail
    held = await locks.mutex(*NAME, lease=LEASE, max_hold=SHORT).acquire()

    async def refused() -> bool:
        return any(isinstance(command, Release) for command in link.sent)

    await wait_until(refused, 20)
    lost(held)
    await is_free_once_the_store_hears(link, near)


async def test_a_ticket_that_others_share_stays(
    locks: Locks, store: FaultyMemory
) -> None:
    """Whoever lent it goes on holding it, and did not agree to that time."""
    held = await locks.mutex(*NAME, lease=LEASE).acquire()
    async with store.connect_rival(max_hold=SHORT) as borrower:
        shared = await borrower.adopt(share_ticket(held))

        async def is_lost() -> bool:
            return shared.lost is not None

        await wait_until(is_lost, 20)
        lost(shared)
        await borrower.mutex(*NAME).info()  # after all that was sent before
        await held.extend()
        assert await held.release()
