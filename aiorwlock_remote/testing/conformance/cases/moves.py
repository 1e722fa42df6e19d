"""Cases: a grant is converted to the other mode, or passed to another owner."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import (
    ConfigurationError,
    Held,
    Locks,
    LockTimeout,
    NotOwner,
    StaleFence,
    UpgradeConflict,
)
from aiorwlock_remote.fencing.sql import FencedTable
from aiorwlock_remote.testing.conformance.actors import task_actors
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.cancellation import (
    CANCEL_POINTS,
    nothing_left,
)
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest


class MovesCases(Cases):
    """A downgrade or upgrade is one atomic step to a new phase and a new grant."""

    async def test_downgrade_has_no_gap(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """When a writer downgrades, waiting readers join; a waiting writer does not."""
        async with task_actors(store) as actors:
            held = await locks.rwlock("c", 1).writer.acquire()
            writer = await actors.queues(others.rwlock("c", 1).writer, "w")
            reader = await actors.queues(others.rwlock("c", 1).reader, "r")
            moved = await held.downgrade()
            assert (held.mode, moved.mode) == ("write", "read")
            assert moved.fence > held.fence
            assert (await reader.inside()).fence == moved.fence
            assert writer.waits
            assert await moved.release()
            assert writer.waits
            await reader.leave()
            await writer.inside()
        assert actors.order == ["r", "w"]

    async def test_what_was_moved_is_over(self, locks: Locks) -> None:
        """After a downgrade the old ``Held`` raises ``NotOwner``; the new is valid."""
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
        """``info`` shows an upgraded grant with a new holder id and the old reason."""
        lock = locks.rwlock("c", 1)
        held = await lock.writer.acquire(reason="refund")
        for _ in range(2):
            held = await (await held.downgrade()).upgrade()
            (shown,) = (await lock.writer.info()).holders
            assert (shown.holder, shown.reason) == (held.holder, "refund")
        assert await held.release()

    async def test_the_only_reader_upgrades(self, locks: Locks, others: Locks) -> None:
        """A reader that is alone upgrades at once, with a greater fence."""
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
        """If there are other readers, ``try_upgrade`` returns None without effect."""
        async with task_actors(store) as actors:
            await actors.enters(others.rwlock("c", 1).reader)
            held = await locks.rwlock("c", 1).reader.acquire()
            assert await held.try_upgrade() is None
            held.check()
            # A refused upgrade has not closed the read phase to new readers.
            await actors.enters(others.rwlock("c", 1).reader)
            assert await held.release()

    async def test_upgrade_waits_for_the_others(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """An upgrade waits for the other readers, and precedes waiting writers."""
        async with task_actors(store) as actors:
            first = await actors.enters(others.rwlock("c", 1).reader, "r1")
            second = await actors.enters(others.rwlock("c", 1).reader, "r2")
            held = await locks.rwlock("c", 1).reader.acquire()
            writer = await actors.queues(others.rwlock("c", 1).writer, "w")
            got: list[Held] = []
            upgraded = anyio.Event()

            async def upgrade() -> None:
                got.append(await held.upgrade())
                upgraded.set()

            actors.group.start_soon(upgrade)
            await first.leave()
            assert not upgraded.is_set()
            await second.leave()
            await actors.within(upgraded)
            assert got[0].fence > held.fence
            assert writer.waits
            await got[0].release()
            await writer.inside()

    async def test_two_upgraders_conflict(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """If two readers upgrade, one of them gets ``UpgradeConflict`` at once."""
        async with task_actors(store) as actors:
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

            actors.group.start_soon(rival)
            await actors.within(ready)
            moved = await mine.upgrade()
            assert leave.is_set() or moved.valid
            await moved.release()

    async def test_upgrade_times_out(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """If an upgrade times out, its reader keeps the lock, and readers can join."""
        async with task_actors(store) as actors:
            await actors.enters(others.rwlock("c", 1).reader)
            held = await locks.rwlock("c", 1).reader.acquire()
            with pytest.raises(LockTimeout) as caught:
                await held.upgrade(timeout=self.harness.answers_in)
            assert caught.value.resource == "c/1"
            with pytest.raises(LockTimeout):
                await held.upgrade(timeout=0)
            held.check()
            await actors.enters(others.rwlock("c", 1).reader)
            assert await held.release()

    async def test_a_cancelled_upgrade_leaves_no_slot(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """After a cancelled upgrade, new readers and writers are not kept out."""
        async with task_actors(store) as actors:
            reader = await actors.enters(others.rwlock("c", 1).reader)
            held = await locks.rwlock("c", 1).reader.acquire()
            with anyio.move_on_after(0.05):
                await held.upgrade()
            await actors.enters(others.rwlock("c", 1).reader)
            if held.valid:
                await held.release()
            actors.all_may_leave()
            await reader.gone()
            await actors.enters(others.rwlock("c", 1).writer)

    async def test_wrong_modes(self, locks: Locks) -> None:
        """Downgrading a reader or upgrading a writer: ``ConfigurationError``."""
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
        """If its body up- or downgraded, ``async with`` releases the new grant."""
        lock = locks.rwlock("c", 1)
        async with lock.writer.acquire() as held:
            moved = await held.downgrade()
            assert await others.rwlock("c", 1).writer.try_acquire() is None
            moved.check()
        assert not await others.rwlock("c", 1).locked()
        async with lock.reader.acquire() as held:
            assert await held.try_upgrade() is not None
        assert not await others.rwlock("c", 1).locked()


class PassingCases(Cases):
    """``detach`` gives up a grant; ``adopt`` takes the grant over by its ticket."""

    async def test_adopt_in_another_process(self, locks: Locks, others: Locks) -> None:
        """Another process can ``adopt`` a grant; the old ``Held`` then is invalid."""
        held = await locks.rwlock("c", "ü,{}").writer.acquire()
        ticket = held.detach()
        assert ticket not in repr(held)
        assert await others.rwlock("c", "ü,{}").reader.try_acquire() is None
        with pytest.raises(NotOwner):
            held.check()
        with pytest.raises(NotOwner):
            await held.release()
        with pytest.raises(NotOwner):
            held.detach()
        theirs = await others.adopt(ticket)
        assert theirs.mode == "write"
        assert theirs.fence > held.fence
        assert theirs.holder != held.holder
        assert theirs.resource == "c/ü,{}"
        theirs.check()
        assert await theirs.release()
        assert not await locks.rwlock("c", "ü,{}").locked()

    async def test_adopted_is_kept(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """The lease of an adopted grant is renewed by its new owner."""
        async with store.connect(lease=self.harness.kept) as giver:
            ticket = (await giver.mutex("order", 1).acquire()).detach()
        held = await locks.adopt(ticket)
        with pytest.raises(LockTimeout):
            await others.mutex("order", 1).acquire(timeout=1.5 * self.harness.kept)
        held.check()
        await held.release()

    async def test_adopt_after_release(self, locks: Locks, others: Locks) -> None:
        """``adopt`` of a ticket whose grant was released raises ``NotOwner``."""
        ticket = (await locks.mutex("order", 1).acquire()).detach()
        first = await others.adopt(ticket)
        assert await first.release()
        with pytest.raises(NotOwner):
            await others.adopt(ticket)
        with pytest.raises(NotOwner):
            await locks.adopt(ticket)

    @pytest.mark.parametrize("mode", ["read", "write"])
    async def test_of_two_adopters_one_gets_it(
        self, store: StoreUnderTest, locks: Locks, others: Locks, mode: str
    ) -> None:
        """If two clients adopt one ticket, exactly one of them gets the grant."""
        lock = locks.rwlock("c", 1)
        side = lock.reader if mode == "read" else lock.writer
        async with task_actors(store) as actors:
            for _ in range(CANCEL_POINTS):
                ticket = (await side.acquire()).detach()
                got: list[Held] = []
                refused: list[NotOwner] = []

                async def adopt(
                    by: Locks,
                    ticket: str = ticket,
                    got: list[Held] = got,
                    refused: list[NotOwner] = refused,
                ) -> None:
                    try:
                        got.append(await by.adopt(ticket))
                    except NotOwner as exc:
                        refused.append(exc)

                async with anyio.create_task_group() as group:
                    group.start_soon(adopt, locks)
                    group.start_soon(adopt, others)
                assert (len(got), len(refused)) == (1, 1)
                (shown,) = (await lock.reader.info()).holders
                assert (shown.holder, shown.fence) == (got[0].holder, got[0].fence)
                got[0].check()
                assert await got[0].release()
            await nothing_left(actors, side)

    async def test_what_the_giver_still_sends_is_stale(
        self, locks: Locks, others: Locks
    ) -> None:
        """After a write by the adopter, a former owner's write is a ``StaleFence``."""
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute("CREATE TABLE orders (id PRIMARY KEY, state, fence BIGINT)")
            db.execute("INSERT INTO orders VALUES (1, '', 0)")
            orders = FencedTable("orders", style="qmark")
            given = await locks.mutex("order", 1).acquire()
            first = await others.adopt(given.detach())
            assert orders.write(db.cursor(), 1, given.fence, {"state": "given"})
            second = await locks.adopt(first.detach())
            assert orders.write(db.cursor(), 1, second.fence, {"state": "adopted"})
            for late in (given, first):
                with pytest.raises(StaleFence):
                    orders.write(db.cursor(), 1, late.fence, {"state": "late"})
            assert await second.release()

    async def test_an_adopted_reader_shares(self, locks: Locks, others: Locks) -> None:
        """An adopted read grant stays in the read phase that other readers share."""
        lock = locks.rwlock("c", 1)
        given = await lock.reader.acquire()
        beside = await others.rwlock("c", 1).reader.acquire()
        theirs = await others.adopt(given.detach())
        assert (theirs.mode, theirs.fence) == ("read", beside.fence)
        assert len((await lock.reader.info()).holders) == 2
        assert await beside.release()
        assert await lock.writer.try_acquire() is None
        assert await theirs.release()
        assert not await lock.writer.locked()

    async def test_nobody_is_let_in_by_an_adoption(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """The adoption of a grant does not let a waiter in."""
        async with task_actors(store) as actors:
            given = await locks.rwlock("c", 1).writer.acquire()
            reader = await actors.queues(others.rwlock("c", 1).reader, "r")
            theirs = await others.adopt(given.detach())
            assert reader.waits
            assert len((await locks.rwlock("c", 1).reader.info()).holders) == 1
            assert await theirs.release()
            assert (await reader.inside()).fence > theirs.fence

    async def test_an_adopted_grant_is_shown(self, locks: Locks, others: Locks) -> None:
        """``info`` of an adopted grant shows old reason and lease, new start time."""
        lock = locks.mutex("order", 1)
        given = await lock.acquire(reason="refund", lease=300)
        (before,) = (await lock.info()).holders
        theirs = await others.adopt(given.detach())
        (after,) = (await lock.info()).holders
        assert (after.holder, after.reason) == (theirs.holder, "refund")
        assert after.since > before.since
        assert theirs.expires_in is not None
        assert theirs.expires_in > 200
        assert await theirs.release()

    async def test_adopting_cancelled_at_every_step(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """After a cancelled adoption, the lock is free or the ticket still valid."""
        lock = locks.mutex("order", 1)
        async with task_actors(store) as actors:
            for steps in range(CANCEL_POINTS):
                ticket = (await lock.acquire()).detach()

                async def adopt(ticket: str = ticket) -> None:
                    await (await others.adopt(ticket)).release()

                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        group.start_soon(adopt)
                        for _ in range(steps):
                            await checkpoint()
                        scope.cancel()
                with suppress(NotOwner):
                    await (await others.adopt(ticket)).release()
                await nothing_left(actors, lock)

    async def test_adopt_after_expiry(self, locks: Locks, others: Locks) -> None:
        """``adopt`` of an expired ticket raises ``NotOwner``; the next holder stays."""
        ticket = (
            await locks.mutex("order", 1, lease=self.harness.short).acquire()
        ).detach()
        async with others.mutex("order", 1) as held:
            with pytest.raises(NotOwner):
                await locks.adopt(ticket)
            held.check()

    async def test_bad_tickets(self, locks: Locks) -> None:
        """``adopt`` of what is no ticket of ``detach``: ``ConfigurationError``."""
        good = (await locks.mutex("order", 1).acquire()).detach()
        for bad in ("", "rwl1.", "nonsense", good[:-8], good[5:], "rwl9." + good[5:]):
            with pytest.raises(ConfigurationError):
                await locks.adopt(bad)
        await (await locks.adopt(good)).release()

    async def test_detached_survives_closing(
        self, store: StoreUnderTest, others: Locks
    ) -> None:
        """Closing a ``Locks`` releases every grant except detached ones."""
        async with store.connect() as locks:
            ticket = (await locks.mutex("order", 1).acquire()).detach()
        assert await others.mutex("order", 1).try_acquire() is None
        await (await others.adopt(ticket)).release()
        assert not await others.mutex("order", 1).locked()
