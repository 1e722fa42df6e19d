"""Moves: writer ↔ reader without a gap, and from one owner to another."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import (
    ConfigurationError,
    Held,
    Locks,
    LockTimeout,
    NotOwner,
    UpgradeConflict,
)
from aiorwlock_remote.testing.conformance.actors import party
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest


class MovesCases(Cases):
    """Downgrade and upgrade: one step, a new phase, a new grant."""

    async def test_downgrade_has_no_gap(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A writer becomes a reader; readers join it, the waiting writer waits on."""
        async with party(store) as guests:
            held = await locks.rwlock("c", 1).writer.acquire()
            writer = await guests.queues(others.rwlock("c", 1).writer, "w")
            reader = await guests.queues(others.rwlock("c", 1).reader, "r")
            moved = await held.downgrade()
            assert (held.mode, moved.mode) == ("write", "read")
            assert moved.fence > held.fence
            assert (await reader.inside()).fence == moved.fence
            assert writer.waits
            assert await moved.release()
            assert writer.waits
            await reader.leave()
            await writer.inside()
        assert guests.order == ["r", "w"]

    async def test_what_was_moved_is_over(self, locks: Locks) -> None:
        """The grant that was moved is refused; the new one is the grant."""
        held = await locks.rwlock("c", 1).writer.acquire()
        moved = await held.downgrade()
        assert not held.valid
        with pytest.raises(NotOwner):
            held.check()
        with pytest.raises(NotOwner):
            await held.release()
        with pytest.raises(NotOwner):
            await held.downgrade()
        moved.check()
        assert await moved.release()
        assert not await locks.rwlock("c", 1).locked()

    async def test_what_is_shown_of_a_moved_grant(self, locks: Locks) -> None:
        """It is held for the same reason as before."""
        lock = locks.rwlock("c", 1)
        held = await lock.writer.acquire(reason="refund")
        for _ in range(2):
            held = await (await held.downgrade()).upgrade()
            (shown,) = (await lock.writer.info()).holders
            assert (shown.holder, shown.reason) == (held.holder, "refund")
        assert await held.release()

    async def test_the_only_reader_upgrades(self, locks: Locks, others: Locks) -> None:
        """A reader that is alone becomes the writer at once, in a new phase."""
        held = await locks.rwlock("c", 1).reader.acquire()
        moved = await held.try_upgrade()
        assert moved is not None
        assert moved.mode == "write"
        assert moved.fence > held.fence
        assert await others.rwlock("c", 1).reader.try_acquire() is None
        again = await (await moved.downgrade()).upgrade(timeout=0)
        assert again.fence > moved.fence
        await again.release()

    async def test_try_upgrade_beside_others(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """With other readers ``try_upgrade`` gives None and changes nothing."""
        async with party(store) as guests:
            await guests.enters(others.rwlock("c", 1).reader)
            held = await locks.rwlock("c", 1).reader.acquire()
            assert await held.try_upgrade() is None
            held.check()
            await guests.enters(others.rwlock("c", 1).reader)  # joining is open
            assert await held.release()

    async def test_upgrade_waits_for_the_others(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """An upgrader waits until it is alone, before writers that wait."""
        async with party(store) as guests:
            first = await guests.enters(others.rwlock("c", 1).reader, "r1")
            second = await guests.enters(others.rwlock("c", 1).reader, "r2")
            held = await locks.rwlock("c", 1).reader.acquire()
            writer = await guests.queues(others.rwlock("c", 1).writer, "w")
            got: list[Held] = []
            upgraded = anyio.Event()

            async def upgrade() -> None:
                got.append(await held.upgrade())
                upgraded.set()

            guests.group.start_soon(upgrade)
            await first.leave()
            assert not upgraded.is_set()
            await second.leave()
            await guests.within(upgraded)
            assert got[0].fence > held.fence
            assert writer.waits
            await got[0].release()
            await writer.inside()

    async def test_two_upgraders_conflict(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Two readers cannot both wait to be the only one: one is told at once."""
        async with party(store) as guests:
            mine = await locks.rwlock("c", 1).reader.acquire()
            ready, leave = anyio.Event(), anyio.Event()

            async def rival() -> None:
                theirs = await others.rwlock("c", 1).reader.acquire()
                ready.set()
                with pytest.raises(UpgradeConflict) as caught:
                    while True:
                        assert await theirs.try_upgrade() is None
                        await anyio.sleep(0.005)
                assert caught.value.resource == "c/1"
                with pytest.raises(UpgradeConflict):
                    await theirs.upgrade()
                theirs.check()
                await theirs.release()
                leave.set()

            guests.group.start_soon(rival)
            await guests.within(ready)
            moved = await mine.upgrade()
            assert leave.is_set() or moved.valid
            await moved.release()

    async def test_upgrade_times_out(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Not alone in time, the reader stays a reader, and others may join again."""
        async with party(store) as guests:
            await guests.enters(others.rwlock("c", 1).reader)
            held = await locks.rwlock("c", 1).reader.acquire()
            with pytest.raises(LockTimeout) as caught:
                await held.upgrade(timeout=self.harness.answers_in)
            assert caught.value.resource == "c/1"
            with pytest.raises(LockTimeout):
                await held.upgrade(timeout=0)
            held.check()
            await guests.enters(others.rwlock("c", 1).reader)
            assert await held.release()

    async def test_a_cancelled_upgrade_leaves_no_slot(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Cancelled while it upgrades, it keeps nobody out: a reader, or gone."""
        async with party(store) as guests:
            reader = await guests.enters(others.rwlock("c", 1).reader)
            held = await locks.rwlock("c", 1).reader.acquire()
            with anyio.move_on_after(0.05):
                await held.upgrade()
            await guests.enters(others.rwlock("c", 1).reader)
            if held.valid:
                await held.release()
            guests.all_may_leave()
            await reader.gone()
            await guests.enters(others.rwlock("c", 1).writer)

    async def test_wrong_modes(self, locks: Locks) -> None:
        """A reader cannot be downgraded, a writer cannot be upgraded."""
        async with locks.rwlock("c", 1).reader as held:
            with pytest.raises(ConfigurationError):
                await held.downgrade()
            held.check()
        async with locks.rwlock("c", 1).writer as held:
            with pytest.raises(ConfigurationError):
                await held.upgrade()
            with pytest.raises(ConfigurationError):
                await held.try_upgrade()
            held.check()

    async def test_leaving_releases_the_newest(
        self, locks: Locks, others: Locks
    ) -> None:
        """``async with`` releases whatever its grant was moved to."""
        lock = locks.rwlock("c", 1)
        async with lock.writer.acquire() as held:
            moved = await held.downgrade()
            assert await others.rwlock("c", 1).writer.try_acquire() is None
            moved.check()
        assert not await others.rwlock("c", 1).locked()
        async with lock.reader.acquire() as held:
            assert await held.try_upgrade() is not None
        assert not await others.rwlock("c", 1).locked()
