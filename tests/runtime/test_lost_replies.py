"""Requests that never arrive, answers that never come: resolved by ticket or raised."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from aiorwlock_remote import (
    AcquireUncertain,
    BackendUnavailable,
    Locks,
    LockTimeout,
    NotOwner,
)
from aiorwlock_remote.core.commands import Acquire, Adopt, Command, Release, Withdraw
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import Fate, FaultyLink

pytestmark = pytest.mark.anyio

NAME = ("far", 1)


def once(kind: type[Command], fate: Fate) -> Callable[[Command], Fate]:
    """That fate for the first command of a kind."""
    fates = iter([fate])
    return lambda command: (
        next(fates, Fate.PASS) if isinstance(command, kind) else Fate.PASS
    )


async def test_refused_first_request_is_raised(link: FaultyLink, locks: Locks) -> None:
    """A store that cannot be reached fails an acquire that has no place yet."""
    link.fate = lambda command: (
        Fate.REFUSE if isinstance(command, Acquire) else Fate.PASS
    )
    with pytest.raises(BackendUnavailable):
        await locks.mutex(*NAME).acquire(timeout=1)
    with pytest.raises(BackendUnavailable):
        await locks.mutex(*NAME).try_acquire()


async def test_a_release_that_failed_is_asked_again(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """The caller gets the error; nobody has to wait for the end of the lease."""
    held = await locks.mutex(*NAME).acquire(lease=60)
    link.down = True
    with pytest.raises(BackendUnavailable):
        await held.release()
    assert await near.mutex(*NAME).try_acquire() is None
    link.down = False
    async with near.mutex(*NAME).acquire(timeout=20):
        pass


async def test_a_release_that_failed_is_asked_again_at_the_end(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    held = await locks.mutex(*NAME).acquire(lease=None)
    link.down = True
    with pytest.raises(BackendUnavailable):
        await held.release()
    link.down = False
    await locks.aclose()
    async with near.mutex(*NAME).acquire(timeout=0):
        pass


@pytest.mark.slow
async def test_retries_end_with_the_lease(link: FaultyLink, locks: Locks) -> None:
    held = await locks.mutex(*NAME).acquire(lease=2)
    link.down = True
    with pytest.raises(BackendUnavailable):
        await held.release()
    await wait_until(lambda: quiet(link), 10)


async def quiet(link: FaultyLink) -> bool:
    """Nothing was sent for longer than one waits before one asks again."""
    before = len(link.sent)
    await anyio.sleep(2)
    return len(link.sent) == before


async def test_lost_answer_is_taken_back(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """Granted, but the answer was lost: withdrawn by ticket, and the failure raised."""
    link.fate = once(Acquire, Fate.LOSE)
    with pytest.raises(BackendUnavailable):
        await locks.mutex(*NAME).acquire(timeout=1)
    assert not await near.mutex(*NAME).locked()


async def test_uncertain_when_nothing_comes_back(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """Neither the acquire nor its withdrawal was answered: said so, with the lease."""
    link.fate = lambda command: (
        Fate.LOSE if isinstance(command, Acquire) else Fate.REFUSE
    )
    with pytest.raises(AcquireUncertain) as caught:
        await locks.mutex(*NAME).acquire(timeout=1)
    assert caught.value.lease == 0.5
    (holder,) = (await near.mutex(*NAME).info()).holders
    assert holder.holder == caught.value.holder


async def test_an_adoption_with_a_lost_reply_is_withdrawn(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """The answer was lost: withdrawn by the new ticket; the old one is no good."""
    ticket = (await near.mutex(*NAME).acquire(lease=30)).detach()
    link.fate = once(Adopt, Fate.LOSE)
    with pytest.raises(BackendUnavailable):
        await locks.adopt(ticket)
    assert not await near.mutex(*NAME).locked()
    with pytest.raises(NotOwner):
        await locks.adopt(ticket)


async def test_a_ticket_of_a_lost_adoption_can_be_adopted(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """The request never arrived: the ticket is as good as before."""
    held = await near.mutex(*NAME).acquire(lease=30)
    ticket = held.detach()
    link.fate = once(Adopt, Fate.REFUSE)
    with pytest.raises(BackendUnavailable):
        await locks.adopt(ticket)
    (holder,) = (await near.mutex(*NAME).info()).holders
    assert holder.fence == held.fence
    assert await (await locks.adopt(ticket)).release()


async def test_adopted_or_not_nobody_knows(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """Neither was answered: said so, with the name that the grant may have now."""
    ticket = (await near.mutex(*NAME).acquire(lease=30)).detach()
    link.fate = lambda command: Fate.LOSE if isinstance(command, Adopt) else Fate.REFUSE
    with pytest.raises(AcquireUncertain) as caught:
        await locks.adopt(ticket)
    assert caught.value.lease == 30
    (holder,) = (await near.mutex(*NAME).info()).holders
    assert holder.holder == caught.value.holder


async def test_an_adoption_cancelled_under_way_is_given_back(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """The withdrawal goes behind the request, whatever becomes of that."""
    ticket = (await near.mutex(*NAME).acquire(lease=30)).detach()
    link.hold_back = True
    with anyio.move_on_after(0.05) as scope:
        await locks.adopt(ticket)
    assert scope.cancelled_caught
    adopt, withdraw = link.sent[-2:]
    assert isinstance(adopt, Adopt)
    assert isinstance(withdraw, Withdraw)
    assert withdraw.tickets == (adopt.claim.ticket,)
    link.let_through()
    assert not await near.mutex(*NAME).locked()


async def test_waiter_survives_an_outage(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """Whoever has a place waits on while the store cannot be reached."""
    other = await near.mutex(*NAME).acquire()
    entered = anyio.Event()

    async def wait() -> None:
        async with locks.mutex(*NAME).acquire(timeout=10):
            entered.set()

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await _until(lambda: bool(link.sent))
        link.fate = lambda _: Fate.REFUSE
        failed_from = len(link.sent)
        await _until(lambda: len(link.sent) > failed_from + 2)
        link.fate = lambda _: Fate.PASS
        assert not entered.is_set()
        await other.release()
        await entered.wait()


async def test_lost_answer_of_a_waiter_is_asked_again(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """A waiter's grant whose answer was lost is found again by its ticket."""
    other = await near.mutex(*NAME).acquire()
    async with anyio.create_task_group() as group:
        fences: list[int] = []

        async def wait() -> None:
            async with locks.mutex(*NAME).acquire(timeout=10) as held:
                fences.append(held.fence)

        group.start_soon(wait)
        await _until(lambda: bool(link.sent))
        link.fate = once(Acquire, Fate.LOSE)
        await other.release()
    asked = [c.claims[0].ticket for c in link.sent if isinstance(c, Acquire)]
    assert len(set(asked)) == 1
    assert fences == [other.fence + 1] or fences[0] > other.fence


async def test_timeout_while_the_store_is_silent(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """A request under way when the time is up is withdrawn behind it."""
    link.hold_back = True
    with pytest.raises(LockTimeout):
        await locks.mutex(*NAME).acquire(timeout=0.05)
    assert isinstance(link.sent[-1], Withdraw)
    link.let_through()
    assert not await near.mutex(*NAME).locked()


@pytest.mark.slow
async def test_late_grant_is_given_back(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """An answer that takes longer than the lease is no grant: asked anew."""
    link.hold_back = True

    async def answer_late() -> None:
        await anyio.sleep(0.6)  # longer than the lease of 0.5 s
        link.let_through()

    async with anyio.create_task_group() as group:
        group.start_soon(answer_late)
        held = await locks.mutex(*NAME).acquire()
    held.check()
    tickets = {c.claims[0].ticket for c in link.sent if isinstance(c, Acquire)}
    assert len(tickets) == 2
    assert any(isinstance(command, Release) for command in link.sent)
    await held.release()
    assert not await near.mutex(*NAME).locked()


async def test_failed_release_is_raised_and_ends_with_the_lease(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """``release`` raises if the store failed; nobody renews the grant any more."""
    held = await locks.mutex(*NAME).acquire()
    link.fate = lambda _: Fate.REFUSE
    with pytest.raises(BackendUnavailable):
        await held.release()
    assert not held.valid
    async with near.mutex(*NAME).acquire(timeout=5):
        pass


async def test_body_error_goes_before_a_failed_release(
    link: FaultyLink, locks: Locks
) -> None:
    """Leaving ``async with`` never hides the body's own error."""
    with pytest.raises(KeyError):
        async with locks.mutex(*NAME):
            link.fate = lambda _: Fate.REFUSE
            raise KeyError


async def _until(condition: object) -> None:
    assert callable(condition)
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - no event to be had
            await anyio.sleep(0.005)


async def test_a_late_answer_costs_no_reader_its_grant(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """An upgrade whose time is up while a request is under way waits for that."""
    async with near.rwlock(*NAME).reader:
        held = await locks.rwlock(*NAME, lease=30).reader.acquire()

        async def later() -> None:
            await anyio.sleep(0.2)
            link.let_through()

        link.hold_back = True
        async with anyio.create_task_group() as group:
            group.start_soon(later)
            with pytest.raises(LockTimeout):
                await held.upgrade(timeout=0.01)
        held.check()
        assert await held.release()
    held = await locks.rwlock(*NAME, lease=30).reader.acquire()
    link.hold_back = True
    async with anyio.create_task_group() as group:
        group.start_soon(later)
        writer = await held.upgrade(timeout=0.01)  # granted late, but granted
    writer.check()
    assert await writer.release()
