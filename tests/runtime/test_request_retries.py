"""How requests are repeated: in the background, by one task for all that failed."""

from __future__ import annotations

from contextlib import suppress

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, Locks
from aiorwlock_remote.core.commands import Command, Release, Withdraw
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.runtime import cleanup
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import Fate, FaultyLink
from tests.runtime.cleanup import (
    LEASE,
    NAME,
    asked_again,
    cancelled,
    ends_fail,
    held_back,
    is_free_once_the_store_hears,
    near_sees_it_wait,
)

pytestmark = [pytest.mark.anyio, pytest.mark.no_uvloop("it sends nothing")]


async def test_closed_while_it_is_asked_again(link: FaultyLink, locks: Locks) -> None:
    """What is on its way may be lost: closing asks nonetheless."""
    ask = locks.mutex(*NAME, lease=LEASE).acquire
    link.fate = ends_fail
    await cancelled(link, ask)
    link.fate, link.hold_back = lambda _: Fate.PASS, True
    await wait_until(lambda: held_back(link), 10)
    sent = len(link.sent)
    await locks.aclose()
    assert await asked_again(link, sent)
    link.let_through()


async def test_once_answered_it_is_not_asked_again(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    ask = locks.mutex(*NAME, lease=LEASE).acquire
    link.fate = ends_fail
    await cancelled(link, ask)
    await is_free_once_the_store_hears(link, near)
    sent = len(link.sent)
    await locks.aclose()
    assert not await asked_again(link, sent)


async def test_others_of_the_process_keep_their_place(
    link: FaultyLink, locks: Locks, near: Locks
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
        await wait_until(near_sees_it_wait(near), 10)
        sent = len(link.sent)
        await wait_until(lambda: asked_again(link, sent), 10)
        assert (await near.mutex(*NAME).info()).queue
        await other.release()
        await entered.wait()


def ends_forbidden(command: Command) -> Fate:
    """Rights were taken away, for a while."""
    return Fate.FORBID if isinstance(command, Withdraw | Release) else Fate.PASS


async def test_a_release_that_is_forbidden(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """When the right is there again, nobody waits for the lease."""
    held = await locks.mutex(*NAME, lease=LEASE).acquire()
    link.fate = ends_forbidden
    with pytest.raises(Unsupported):
        await held.release()
    await is_free_once_the_store_hears(link, near)


async def test_forbidden_after_it_failed(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """A store that comes back may be one that refuses, at first."""
    held = await locks.mutex(*NAME, lease=LEASE).acquire()
    link.fate = ends_fail
    with pytest.raises(BackendUnavailable):
        await held.release()
    link.fate, sent = ends_forbidden, len(link.sent)
    await wait_until(lambda: asked_again(link, sent), 10)
    await is_free_once_the_store_hears(link, near)


async def test_a_forbidden_acquire_leaves_no_retries(
    link: FaultyLink, locks: Locks
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
    await wait_until(lambda: asked_again(link, sent, 3), 10)
    again = [command for command in link.sent[sent:] if isinstance(command, Release)]
    assert again == link.sent[sent:]


@pytest.mark.slow
async def test_one_that_is_not_answered_keeps_no_other_back(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """Its request hangs; the others are asked again meanwhile."""
    held = await locks.mutex("hangs", 1, lease=LEASE).acquire()
    link.fate = ends_fail
    with pytest.raises(BackendUnavailable):
        await held.release()
    link.hold_back, link.fate = True, lambda _: Fate.PASS
    await wait_until(lambda: held_back(link), 10)
    link.hold_back = False
    held = await locks.mutex(*NAME, lease=LEASE).acquire()
    link.fate = ends_fail
    with pytest.raises(BackendUnavailable):
        await held.release()
    await is_free_once_the_store_hears(link, near)
    assert link.held_back


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Before which attempts there was a pause; there is none here."""
    found = list[int]()

    def pause(attempt: int, _: float) -> float:
        found.append(attempt)
        return 0.0

    monkeypatch.setattr(cleanup, "back_off", pause)
    return found


async def test_the_pauses_grow_as_long_as_it_fails(
    link: FaultyLink, locks: Locks, attempts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not for those that wait behind one that was answered."""
    monkeypatch.setattr(cleanup, "MAX_REQUESTS_IN_FLIGHT", 1)
    grants = [await locks.mutex("far", n, lease=LEASE).acquire() for n in (1, 2)]
    link.fate, sent = ends_fail, len(link.sent)
    for held in grants:
        with pytest.raises(BackendUnavailable):
            await held.release()
    await wait_until(lambda: asked_again(link, sent, 6), 10)
    link.fate, asked = lambda _: Fate.PASS, len(link.sent) - sent
    await wait_until(lambda: asked_again(link, sent, asked + 2), 10)
    failed = asked - len(grants)
    assert attempts == [*range(failed + 1), 0]
