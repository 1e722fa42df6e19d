"""Renewals that fail: no grant is lost before its local deadline."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Hashable, Iterator, Sized
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest

from aiorwlock_remote import Held, LockLost, Locks, connect
from aiorwlock_remote.runtime.lease_keeper import reply_timeout
from aiorwlock_remote.testing.conformance.actors import wait_until
from aiorwlock_remote.testing.faults import FaultyLink
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.renewals import renewed

pytestmark = pytest.mark.anyio

NAME = ("kept", 1)


@pytest.mark.usefixtures("renewed_often")
async def test_short_outage_loses_nothing(link: FaultyLink, locks: Locks) -> None:
    """Renewals that fail for less than the lease are retried, and then it goes on."""
    tries: list[float] = []
    link.before_renewal = lambda _, timeout: tries.append(timeout)
    async with locks.mutex(*NAME, lease=30) as held:
        link.renewals_fail = True
        await wait_until(lambda: more_than(tries, 2), 30)
        link.renewals_fail = False
        await renewed(held)


@pytest.mark.slow
async def test_long_outage_is_a_loss_before_the_store_lets_others_in(
    link: FaultyLink, locks: Locks, near: Locks
) -> None:
    """The body is cancelled at the local deadline, while the store still holds it."""
    held_by_store = None
    with pytest.raises(LockLost) as caught:
        async with locks.mutex(*NAME, lease=2, margin=0.9):
            link.renewals_fail = True
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    held_by_store = await near.mutex(*NAME).locked()
    assert caught.value.reason == "unreachable"
    assert held_by_store


@pytest.fixture
def renewals_hang(link: FaultyLink) -> Iterator[threading.Event]:
    """Until this is set, a renewal that is begun does not come back."""
    over = threading.Event()
    link.before_renewal = lambda _, __: over.wait(60)
    yield over
    over.set()


@pytest.mark.slow
async def test_a_renewal_that_hangs_is_a_loss_at_the_deadline(
    locks: Locks, near: Locks, renewals_hang: threading.Event
) -> None:
    """The body is cancelled then, however long the store is waited for."""
    held_by_store = None
    with pytest.raises(LockLost) as caught:
        async with locks.mutex(*NAME, lease=2, margin=0.9):
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    held_by_store = await near.mutex(*NAME).locked()
    renewals_hang.set()
    assert caught.value.reason == "unreachable"
    assert held_by_store


@pytest.mark.usefixtures("renewed_often")
async def test_a_renewal_is_waited_for_until_before_the_deadline(
    link: FaultyLink, locks: Locks
) -> None:
    """What was renewed beside one that is not answered is known in time."""
    times: list[tuple[float, float | None]] = []
    held = await locks.mutex(*NAME, lease=30).acquire()
    link.before_renewal = lambda _, timeout: times.append((timeout, held.expires_in))
    await renewed(held)
    await held.release()
    assert times
    assert all(left is None or timeout < left for timeout, left in times)


@pytest.mark.slow
async def test_closing_waits_for_no_renewal(
    link: FaultyLink, store: FaultyMemory, renewals_hang: threading.Event
) -> None:
    """A closing session tells the keeper to give the lease up."""
    begun = threading.Event()
    wait = link.before_renewal

    def begin(lane: Hashable, seconds: float) -> None:
        begun.set()
        wait(lane, seconds)

    link.before_renewal = begin
    link.give_up = renewals_hang.set
    async with store.connect(lease=3) as locks:
        held = await locks.mutex(*NAME).acquire()
        await anyio.to_thread.run_sync(begun.wait, 20)
        assert held.valid
    assert renewals_hang.is_set()


@pytest.mark.slow
async def test_closing_waits_for_no_lane(
    link: FaultyLink, store: FaultyMemory, renewals_hang: threading.Event
) -> None:
    """Nor for one of several connections."""
    link.lane = lambda resource: resource.id
    await test_closing_waits_for_no_renewal(link, store, renewals_hang)


async def test_a_dead_link_leaves_time_for_another_try() -> None:
    """As long as an answer that is only slow is waited for, too."""
    assert [reply_timeout(left) for left in (20.0, 4.0, 1.5)] == [10.0, 2.0, 1.0]
    assert reply_timeout(1.0) == pytest.approx(0.9)
    assert reply_timeout(0.0) == 0.05


@pytest.mark.slow
async def test_a_renewal_that_hangs_hides_no_other_loss(
    locks: Locks, renewals_hang: threading.Event
) -> None:
    """A lease that was to be renewed behind it ends at its deadline, too."""
    first = await locks.mutex(*NAME, on_lost="flag").acquire()
    with pytest.raises(LockLost) as caught:
        async with locks.mutex("kept", 2, lease=1.5):
            await anyio.sleep_forever()
    renewals_hang.set()
    assert caught.value.reason == "unreachable"
    assert not await first.release()


@pytest.mark.slow
async def test_grants_of_one_moment_are_renewed_together(
    link: FaultyLink, locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they came: what is due within a tenth of the pause goes in one batch."""
    monkeypatch.setattr(
        "aiorwlock_remote.runtime.lease.RENEWALS_PER_LEASE", 30
    )  # a second
    monkeypatch.setattr("aiorwlock_remote.runtime.lease_keeper.BATCHING_DIVISOR", 300)
    batches: list[int] = []
    link.before_renewal = lambda _, __: batches.append(1)
    async with AsyncExitStack() as stack:
        grants: list[Held] = []
        for number in range(200):
            lock = locks.mutex("kept", number, lease=30)
            grants.append(await stack.enter_async_context(lock))
            await anyio.sleep(0.001)
        took = (grants[-1].acquired_at - grants[0].acquired_at).total_seconds()
        async with anyio.create_task_group() as group:
            for held in grants:
                group.start_soon(renewed, held, 1)
    assert len(batches) <= 3 * (took / 0.1 + 2)  # some a second and a third time


@pytest.mark.slow
async def test_file_locked_by_another_program(tmp_path: Path) -> None:
    """SQLite: somebody keeps a write transaction open for longer than a lease."""
    path = tmp_path / "locks.db"
    async with connect(f"sqlite:///{path}", lease=2) as locks:
        other = sqlite3.connect(path, isolation_level=None)
        with pytest.raises(LockLost) as caught:
            async with locks.mutex(*NAME):
                other.execute("BEGIN IMMEDIATE")
                try:
                    await anyio.sleep_forever()
                finally:
                    other.execute("ROLLBACK")
        assert caught.value.reason == "unreachable"
        other.close()


async def test_max_hold(locks: Locks) -> None:
    """``max_hold`` ends a grant however well it is renewed."""
    with pytest.raises(LockLost) as caught:
        async with locks.mutex(*NAME, lease=30, max_hold=0.3):
            await anyio.sleep_forever()
    assert caught.value.reason == "stalled"


@pytest.mark.slow
@pytest.mark.usefixtures("renewed_often")
async def test_max_stall_spares_a_loop_that_runs(locks: Locks) -> None:
    """``max_stall`` is about a loop that hangs, not about one that works."""
    async with locks.mutex(*NAME, lease=30, max_stall=2) as held:
        await anyio.sleep(2.5)
        held.check()


@pytest.mark.usefixtures("renewed_often")
async def test_max_stall_gives_up_for_a_loop_that_hangs(locks: Locks) -> None:
    """A loop that hangs for longer than ``max_stall`` loses the grant."""
    with pytest.raises(LockLost) as caught:
        async with locks.mutex(*NAME, lease=30, max_stall=0.2):
            time.sleep(0.8)  # noqa: ASYNC251 - the point of the test
            await anyio.sleep_forever()
    assert caught.value.reason == "stalled"


async def more_than(these: Sized, number: int) -> bool:
    return len(these) > number
