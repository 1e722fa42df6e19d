"""A grant that is no one's keeps nobody out, though the store could not be told.

It is told again, in the background, until it has answered or the lease is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import anyio
import pytest

from aiorwlock_remote import AcquireUncertain, BackendUnavailable, Locks
from aiorwlock_remote.core.commands import Command, Release, Withdraw
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.testing.conformance.party import until
from aiorwlock_remote.testing.faults import Fate, Link

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("it sends nothing")]

NAME = ("far", 1)
LEASE = 60.0
"""Longer than anybody waits here."""

Ask = Callable[[], Awaitable[object]]
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


def ends_fail(command: Command) -> Fate:
    """What would end a grant does not arrive."""
    return Fate.REFUSE if isinstance(command, Withdraw | Release) else Fate.PASS


def ends_fail_and_no_answer(command: Command) -> Fate:
    """Nor do the answers to anything else."""
    return Fate.REFUSE if isinstance(command, Withdraw | Release) else Fate.LOSE


@pytest.fixture(params=[waits, tries, several, downgrades, upgrades, adopts])
def way(request: pytest.FixtureRequest) -> Way:
    """To something that the store grants."""
    found: Way = request.param
    return found


async def held_back(link: Link) -> bool:
    return link.held_back > 0


async def cancelled(link: Link, ask: Ask) -> None:
    """While the answer is on its way."""
    link.hold_back = True
    async with anyio.create_task_group() as group:

        async def wait() -> None:
            await ask()

        group.start_soon(wait)
        await until(lambda: held_back(link), 10)
        group.cancel_scope.cancel()
    link.let_through()


async def is_free_once_the_store_hears(link: Link, near: Locks) -> None:
    """And not before."""
    assert await near.mutex(*NAME).locked()
    link.fate = lambda _: Fate.PASS
    async with near.mutex(*NAME).acquire(timeout=20):
        pass


async def test_cancelled(link: Link, locks: Locks, near: Locks, way: Way) -> None:
    ask = await way(locks)
    link.fate = ends_fail
    await cancelled(link, ask)
    await is_free_once_the_store_hears(link, near)


async def test_nobody_knows(link: Link, locks: Locks, near: Locks, way: Way) -> None:
    ask = await way(locks)
    link.fate = ends_fail_and_no_answer
    with pytest.raises((AcquireUncertain, BackendUnavailable)):
        await ask()
    await is_free_once_the_store_hears(link, near)


async def test_closed(link: Link, locks: Locks, near: Locks, way: Way) -> None:
    """Whoever closes asks once more."""
    ask = await way(locks)
    link.fate = ends_fail
    await cancelled(link, ask)
    link.fate = lambda _: Fate.PASS
    await locks.aclose()
    async with near.mutex(*NAME).acquire(timeout=0):
        pass


async def test_closed_while_it_is_asked_again(link: Link, locks: Locks) -> None:
    """What is on its way may be lost: closing asks nonetheless."""
    ask = await waits(locks)
    link.fate = ends_fail
    await cancelled(link, ask)
    link.fate, link.hold_back = lambda _: Fate.PASS, True
    await until(lambda: held_back(link), 10)
    sent = len(link.sent)
    await locks.aclose()
    assert await asked_again(link, sent)
    link.let_through()


async def test_once_answered_it_is_not_asked_again(
    link: Link, locks: Locks, near: Locks
) -> None:
    ask = await waits(locks)
    link.fate = ends_fail
    await cancelled(link, ask)
    await is_free_once_the_store_hears(link, near)
    sent = len(link.sent)
    await locks.aclose()
    assert not await asked_again(link, sent)


@pytest.mark.only_on("asyncio", "elsewhere whoever was granted something is told")
async def test_granted_and_cancelled_at_once(
    link: Link, locks: Locks, near: Locks
) -> None:
    other = await near.mutex(*NAME).acquire()
    acquisition = locks.mutex(*NAME, lease=LEASE).acquire()
    task = asyncio.create_task(acquisition)
    await until(near_sees_it_wait(near), 10)
    link.hold_back = True
    await other.release()
    await until(lambda: held_back(link), 10)
    link.fate = ends_fail
    link.let_through()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await is_free_once_the_store_hears(link, near)


@pytest.mark.only_on("asyncio", "elsewhere who is turned away is told of that")
async def test_turned_away_and_cancelled_at_once(
    link: Link, locks: Locks, near: Locks
) -> None:
    """It was granted, and the answer was lost."""
    link.hold_back, link.fate = True, lambda _: Fate.LOSE
    task = asyncio.create_task(locks.mutex(*NAME, lease=LEASE).acquire())
    await until(lambda: held_back(link), 10)
    link.fate = lambda _: Fate.PASS
    link.let_through()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with near.mutex(*NAME).acquire(timeout=20):
        pass


def near_sees_it_wait(near: Locks) -> Callable[[], Awaitable[bool]]:
    async def waits() -> bool:
        return bool((await near.mutex(*NAME).info()).queue)

    return waits


async def test_others_of_the_process_keep_their_place(
    link: Link, locks: Locks, near: Locks
) -> None:
    """Asked again for one who left, those who came after him wait on."""
    entered = anyio.Event()

    async def wait() -> None:
        async with locks.mutex(*NAME):
            entered.set()

    other = await near.mutex(*NAME).acquire()
    async with anyio.create_task_group() as group:
        link.hold_back, link.fate = True, ends_fail
        with suppress(TimeoutError):
            with anyio.fail_after(0.1):
                await locks.mutex(*NAME).acquire()
        link.let_through()
        group.start_soon(wait)
        link.fate = lambda _: Fate.PASS
        await until(near_sees_it_wait(near), 10)
        sent = len(link.sent)
        await until(lambda: asked_again(link, sent), 10)
        assert (await near.mutex(*NAME).info()).queue
        await other.release()
        await entered.wait()


async def asked_again(link: Link, sent: int, times: int = 1) -> bool:
    ends = (isinstance(command, Withdraw | Release) for command in link.sent[sent:])
    return sum(ends) >= times


def ends_forbidden(command: Command) -> Fate:
    """Rights were taken away, for a while."""
    return Fate.FORBID if isinstance(command, Withdraw | Release) else Fate.PASS


async def test_a_release_that_is_forbidden(
    link: Link, locks: Locks, near: Locks
) -> None:
    """When the right is there again, nobody waits for the lease."""
    held = await locks.mutex(*NAME, lease=LEASE).acquire()
    link.fate = ends_forbidden
    with pytest.raises(Unsupported):
        await held.release()
    await is_free_once_the_store_hears(link, near)


async def test_forbidden_after_it_failed(link: Link, locks: Locks, near: Locks) -> None:
    """A store that comes back may be one that refuses, at first."""
    held = await locks.mutex(*NAME, lease=LEASE).acquire()
    link.fate = ends_fail
    with pytest.raises(BackendUnavailable):
        await held.release()
    link.fate, sent = ends_forbidden, len(link.sent)
    await until(lambda: asked_again(link, sent), 10)
    await is_free_once_the_store_hears(link, near)


async def test_who_may_not_acquire_leaves_nothing_to_be_asked(
    link: Link, locks: Locks
) -> None:
    """What was refused was not granted: no request is repeated for each attempt."""
    link.fate = lambda _: Fate.FORBID
    for attempt in range(1, 4):
        for ask in (locks.mutex("near", attempt).acquire, locks.mutex(*NAME).acquire):
            with pytest.raises(Unsupported):
                await ask()
        with pytest.raises(Unsupported):
            await locks.mutex(*NAME).try_acquire()
    link.fate = ends_fail
    held = await locks.mutex("other", 1, lease=LEASE).acquire()
    with pytest.raises(BackendUnavailable):
        await held.release()
    sent = len(link.sent)
    await until(lambda: asked_again(link, sent, 3), 10)
    again = [command for command in link.sent[sent:] if isinstance(command, Release)]
    assert again == link.sent[sent:]


async def test_one_that_is_not_answered_keeps_no_other_back(
    link: Link, locks: Locks, near: Locks
) -> None:
    """Its request hangs; the others are asked again meanwhile."""
    held = await locks.mutex("hangs", 1, lease=LEASE).acquire()
    link.fate = ends_fail
    with pytest.raises(BackendUnavailable):
        await held.release()
    link.hold_back, link.fate = True, lambda _: Fate.PASS
    await until(lambda: held_back(link), 10)
    link.hold_back = False
    held = await locks.mutex(*NAME, lease=LEASE).acquire()
    link.fate = ends_fail
    with pytest.raises(BackendUnavailable):
        await held.release()
    await is_free_once_the_store_hears(link, near)
    assert link.held_back
