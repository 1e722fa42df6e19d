"""A grant that is no one's keeps nobody out, though its release failed.

The release is repeated, in the background, until it is answered or the lease ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from aiorwlock_remote import AcquireUncertain, BackendUnavailable, Locks
from aiorwlock_remote.core.commands import Command, Release, Withdraw
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import Fate, FaultyLink
from tests.runtime.cleanup import (
    LEASE,
    NAME,
    Ask,
    cancelled,
    ends_fail,
    held_back,
    is_free_once_the_store_hears,
    near_sees_it_wait,
)

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("it sends nothing")]

Way = Callable[[Locks], Awaitable[Ask]]


async def waits(locks: Locks) -> Ask:
    return locks.mutex(*NAME, lease=LEASE).acquire


async def tries(locks: Locks) -> Ask:
    return locks.mutex(*NAME, lease=LEASE).try_acquire


async def several(locks: Locks) -> Ask:
    other = locks.mutex("far", 2, lease=LEASE)

    async def both() -> None:
        await locks.multi(locks.mutex(*NAME, lease=LEASE), other)

    return both


async def downgrades(locks: Locks) -> Ask:
    held = await locks.rwlock(*NAME, lease=LEASE).writer.acquire()
    return held.downgrade


async def upgrades(locks: Locks) -> Ask:
    held = await locks.rwlock(*NAME, lease=LEASE).reader.acquire()
    return held.upgrade


async def adopts(locks: Locks) -> Ask:
    ticket = (await locks.mutex(*NAME, lease=LEASE).acquire()).detach()
    return partial(locks.adopt, ticket)


def ends_fail_and_no_answer(command: Command) -> Fate:
    """Nor do the answers to anything else."""
    return Fate.REFUSE if isinstance(command, Withdraw | Release) else Fate.LOSE


@pytest.fixture(params=[waits, tries, several, downgrades, upgrades, adopts])
def way(request: pytest.FixtureRequest) -> Way:
    """To something that the store grants."""
    found: Way = request.param
    return found


async def test_a_cancelled_acquire_is_cleaned_up(
    link: FaultyLink, locks: Locks, near: Locks, way: Way
) -> None:
    ask = await way(locks)
    link.fate = ends_fail
    await cancelled(link, ask)
    await is_free_once_the_store_hears(link, near)


async def test_an_acquire_with_an_unknown_outcome_is_cleaned_up(
    link: FaultyLink, locks: Locks, near: Locks, way: Way
) -> None:
    ask = await way(locks)
    link.fate = ends_fail_and_no_answer
    with pytest.raises((AcquireUncertain, BackendUnavailable)):
        await ask()
    await is_free_once_the_store_hears(link, near)


async def test_closing_cleans_up_once_more(
    link: FaultyLink, locks: Locks, near: Locks, way: Way
) -> None:
    """Whoever closes asks once more."""
    ask = await way(locks)
    link.fate = ends_fail
    await cancelled(link, ask)
    link.fate = lambda _: Fate.PASS
    await locks.aclose()
    async with near.mutex(*NAME).acquire(timeout=0):
        pass


@pytest.mark.only_on("asyncio", "elsewhere a granted caller gets an error")
async def test_granted_and_cancelled_at_once(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    other = await near.mutex(*NAME).acquire()
    acquisition = locks.mutex(*NAME, lease=LEASE).acquire()
    task = asyncio.create_task(acquisition)
    await wait_until(near_sees_it_wait(near), 10)
    link.hold_back = True
    await other.release()
    await wait_until(lambda: held_back(link), 10)
    link.fate = ends_fail
    link.let_through()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await is_free_once_the_store_hears(link, near)


@pytest.mark.only_on("asyncio", "elsewhere a refused caller gets the refusal")
async def test_turned_away_and_cancelled_at_once(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """It was granted, and the answer was lost."""
    link.hold_back, link.fate = True, lambda _: Fate.LOSE
    task = asyncio.create_task(locks.mutex(*NAME, lease=LEASE).acquire())
    await wait_until(lambda: held_back(link), 10)
    link.fate = lambda _: Fate.PASS
    link.let_through()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with near.mutex(*NAME).acquire(timeout=20):
        pass


@pytest.mark.only_on("asyncio", "trio cancels no single task")
async def test_a_program_that_cancels_all_its_tasks_stops_no_repetition(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """Nothing else fails afterwards, which would begin them again."""
    before = asyncio.all_tasks()
    held = await locks.mutex(*NAME, lease=LEASE).acquire()
    link.fate = ends_fail
    releasing = asyncio.create_task(held.release())
    retrier = locks._session.client.cleanup
    await wait_until(lambda: retrier.retried > 0, 10)
    for task in asyncio.all_tasks() - before:
        task.cancel()
    with pytest.raises((asyncio.CancelledError, BackendUnavailable)):
        await releasing
    await is_free_once_the_store_hears(link, near)
