"""A keeper whose thread cannot be started, or in which something goes wrong."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
import pytest

from aiorwlock_remote import BackendUnavailable, LockLost, Locks
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.testing.faults import FaultyLink
from tests.refused_threads import RefusedThreads
from tests.renewals import renewed

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("threads are the same there"),
    pytest.mark.usefixtures("renewed_often"),
]

NAME = ("kept", 1)
FOR_EVER = 1000

Way = Callable[[Locks], Awaitable[object]]


async def acquire(locks: Locks) -> object:
    return await locks.mutex(*NAME).acquire()


async def try_acquire(locks: Locks) -> object:
    return await locks.mutex(*NAME).try_acquire()


async def both(locks: Locks) -> object:
    return await locks.multi(locks.mutex(*NAME), locks.mutex("kept", 2))


@pytest.mark.parametrize("way", [acquire, try_acquire, both])
async def test_nothing_is_asked_for_that_could_not_be_kept(
    link: FaultyLink, locks: Locks, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    RefusedThreads(monkeypatch, "keeper")
    with pytest.raises(BackendUnavailable, match="no thread could be st") as caught:
        await way(locks)
    assert caught.value.nothing_done
    assert not link.sent
    async with locks.mutex(*NAME, lease=30) as held:
        await renewed(held)


async def test_no_grant_is_adopted_without_a_keeper(
    locks: Locks, near: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = (await locks.mutex(*NAME, lease=30).acquire()).detach()
    RefusedThreads(monkeypatch, "keeper")
    with pytest.raises(BackendUnavailable):
        await near.adopt(ticket)
    await (await near.adopt(ticket)).release()


async def test_closed_without_a_keeper(
    locks: Locks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    RefusedThreads(monkeypatch, "keeper", FOR_EVER)
    with pytest.raises(BackendUnavailable):
        await acquire(locks)
    await locks.aclose()
    assert not caplog.records


async def test_endless_grants_need_no_keeper(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    RefusedThreads(monkeypatch, "keeper", FOR_EVER)
    async with locks.mutex(*NAME, lease=None) as held:
        held.check()


async def test_a_lane_without_a_thread(
    link: FaultyLink, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is renewed in the keeper's own."""
    link.lane = lambda resource: resource.type
    refused = RefusedThreads(monkeypatch, "keeper lane", FOR_EVER)
    async with locks.mutex(*NAME, lease=30) as held:
        await renewed(held)
    assert refused.left < FOR_EVER


async def test_one_defect(
    link: FaultyLink, locks: Locks, caplog: pytest.LogCaptureFixture
) -> None:
    """The defect is logged, and nothing is lost."""
    defects = [ValueError("a defect")]

    def lane(_: Resource) -> None:
        if defects:
            raise defects.pop()

    link.lane = lane
    async with locks.mutex(*NAME, lease=30) as held:
        await renewed(held)
    (logged,) = caplog.records
    assert (logged.levelno, logged.message) == (logging.ERROR, "keeper_failed")


async def test_a_defect_with_one_lock(link: FaultyLink, locks: Locks) -> None:
    """It is lost at its deadline, the others are kept; new ones, too."""

    def lane(resource: Resource) -> None:
        if resource.type == "cursed":
            raise ValueError("a defect")

    link.lane = lane
    async with locks.mutex(*NAME, lease=30) as before:
        with pytest.raises(LockLost) as caught:
            async with locks.mutex("cursed", 1):
                await anyio.sleep_forever()
        assert caught.value.reason == "unreachable"
        async with locks.mutex("kept", 2, lease=30) as after:
            await renewed(after)
        await renewed(before)
