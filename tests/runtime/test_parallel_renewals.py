"""Renewals over several connections: one that hangs delays only its own."""

from __future__ import annotations

import threading
from collections.abc import Hashable

import anyio
import pytest

from aiorwlock_remote import LockLost, Locks
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.testing.faults import FaultyLink
from tests.renewals import renewed

pytestmark = pytest.mark.anyio


def type_of(resource: Resource) -> str:
    return resource.type


@pytest.mark.usefixtures("renewed_often")
async def test_a_lane_that_hangs_delays_no_other(
    link: FaultyLink, locks: Locks
) -> None:
    """Its locks are lost at their deadline; the others are kept for several leases."""
    go_on = threading.Event()

    def hang(lane: Hashable, timeout: float) -> None:
        if lane == "hangs" and not go_on.wait(timeout):
            raise BackendUnavailable(what="no answer")

    link.lane, link.before_renewal = type_of, hang
    async with locks.mutex("goes", 1, lease=30) as kept:
        with pytest.raises(LockLost) as caught:
            async with locks.mutex("hangs", 1, lease=0.5):
                await anyio.sleep_forever()
        assert caught.value.reason == "unreachable"
        await renewed(kept)
    go_on.set()


@pytest.mark.usefixtures("renewed_often")
async def test_lanes_are_renewed_at_the_same_time(
    link: FaultyLink, locks: Locks
) -> None:
    """Each waits for the other, which it could not if they came one by one."""
    both = threading.Barrier(2)
    link.lane = type_of
    link.before_renewal = lambda _, timeout: both.wait(timeout)
    async with (
        locks.mutex("one", 1, lease=30) as one,
        locks.mutex("two", 1, lease=30) as two,
    ):
        await renewed(one)
        await renewed(two)
        both.abort()


@pytest.mark.usefixtures("renewed_often")
async def test_a_failed_renewal_of_a_channel_is_repeated(
    link: FaultyLink, locks: Locks
) -> None:
    failures = iter([True, True, False])

    def fail(_: Hashable, __: float) -> None:
        if next(failures, False):
            raise BackendUnavailable(what="for once")

    link.lane, link.before_renewal = type_of, fail
    async with locks.mutex("tried", 1, lease=30) as held:
        await renewed(held)
    assert next(failures, None) is None


@pytest.mark.usefixtures("renewed_often")
async def test_lanes_share_threads(link: FaultyLink, locks: Locks) -> None:
    """A thread that has renewed over one server renews over the next."""
    threads: set[int] = set()
    link.lane = type_of
    link.before_renewal = lambda _, __: threads.add(threading.get_native_id())
    for number in range(4):
        async with locks.mutex(f"type {number}", 1, lease=30) as held:
            await renewed(held)
            await renewed(held)
    assert len(threads) <= 2  # the next batch may come before a thread is idle
