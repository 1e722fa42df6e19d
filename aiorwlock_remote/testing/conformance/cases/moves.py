"""Cases: a grant is converted to the other mode, or passed to another owner."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from functools import partial

import anyio
import pytest

from aiorwlock_remote import (
    Held,
    Locks,
    LockTimeout,
    NotOwner,
    StaleFence,
    UpgradeConflict,
)
from aiorwlock_remote.core.commands import Acquire
from aiorwlock_remote.fencing.sql import FencedTable
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.cancellation import CANCEL_POINTS
from aiorwlock_remote.testing.conformance.harness import lock_of
from aiorwlock_remote.testing.faults import FaultyLink

MOVED_FROM = {"downgrade": "writer", "upgrade": "reader", "adopt": "mutex"}
"""Moves, each with the lock whose grant is moved."""


class MovesCases(Cases):
    """A downgrade or upgrade is one atomic step to a new phase and a new grant."""

    async def test_downgrade_has_no_gap(self) -> None:
        """When a writer downgrades, waiting readers join; a waiting writer does not."""
        held = await self.locks.rwlock("c", 1).writer.acquire()
        writer = await self.actors.queues(self.others.rwlock("c", 1).writer, "w")
        reader = await self.actors.queues(self.others.rwlock("c", 1).reader, "r")
        moved = await held.downgrade()
        assert (held.mode, moved.mode) == ("write", "read")
        assert moved.fence > held.fence
        assert (await reader.inside()).fence == moved.fence
        assert writer.waits
        assert await moved.release()
        assert writer.waits
        await reader.hand_over_to(writer)
        assert self.actors.order == ["r", "w"]

    async def test_a_late_release_of_what_was_moved(self) -> None:
        """A release of the ticket before a move, sent after the move, ends no grant."""
        link = FaultyLink()
        async with self.store.connect(link=link) as locks:
            for move, side in MOVED_FROM.items():
                name = self.store.name()
                held = await lock_of(locks, side, name).acquire()
                acquires = [sent for sent in link.sent if isinstance(sent, Acquire)]
                ticket = acquires[-1].claims[0].ticket
                moved = await (
                    self.others.adopt(held.detach())
                    if move == "adopt"
                    else getattr(held, move)()
                )
                for late in (
                    self.others.release_writer_lock,
                    locks.release_readers_lock,
                    self.others.release_mutex_lock,
                ):
                    assert not await late(*name, ticket)
                (shown,) = (await self.locks.mutex(*name).info()).holders
                assert (shown.holder, shown.fence) == (moved.holder, moved.fence)
                await moved.extend()
                assert await moved.release()

    async def test_what_is_shown_of_a_moved_grant(self) -> None:
        """``info`` shows an upgraded grant with a new holder id and the old reason."""
        lock = self.locks.rwlock("c", 1)
        held = await lock.writer.acquire(reason="refund")
        for _ in range(2):
            held = await (await held.downgrade()).upgrade()
            (shown,) = (await lock.writer.info()).holders
            assert (shown.holder, shown.reason) == (held.holder, "refund")
        assert await held.release()

    async def test_the_only_reader_upgrades(self) -> None:
        """A reader that is alone upgrades at once, with a greater fence."""
        held = await self.locks.rwlock("c", 1).reader.acquire()
        moved = await held.try_upgrade()
        assert moved is not None
        assert moved.mode == "write"
        assert moved.fence > held.fence
        assert await self.others.rwlock("c", 1).reader.try_acquire() is None
        again = await (await moved.downgrade()).upgrade(timeout=0)
        assert again.fence > moved.fence
        await again.release()

    async def test_try_upgrade_beside_others(self) -> None:
        """If there are other readers, ``try_upgrade`` returns None without effect."""
        await self.actors.enters(self.others.rwlock("c", 1).reader)
        held = await self.locks.rwlock("c", 1).reader.acquire()
        assert await held.try_upgrade() is None
        held.check()
        # A refused upgrade has not closed the read phase to new readers.
        await self.actors.enters(self.others.rwlock("c", 1).reader)
        assert await held.release()

    async def test_upgrade_waits_for_the_others(self) -> None:
        """An upgrade waits for the other readers, and precedes waiting writers."""
        first = await self.actors.enters(self.others.rwlock("c", 1).reader, "r1")
        second = await self.actors.enters(self.others.rwlock("c", 1).reader, "r2")
        held = await self.locks.rwlock("c", 1).reader.acquire()
        writer = await self.actors.queues(self.others.rwlock("c", 1).writer, "w")
        upgrader = await self.actors.upgrades(held)
        await first.leave()
        assert upgrader.waits
        await second.leave()
        assert (await upgrader.inside()).fence > held.fence
        assert writer.waits
        await upgrader.hand_over_to(writer)

    async def test_two_upgraders_conflict(self) -> None:
        """If two readers upgrade, one of them gets ``UpgradeConflict`` at once."""
        mine = await self.locks.rwlock("c", 1).reader.acquire()
        theirs = await self.others.rwlock("c", 1).reader.acquire()
        upgrader = await self.actors.upgrades(mine)
        with pytest.raises(UpgradeConflict) as caught:
            while True:
                assert await theirs.try_upgrade() is None
                await anyio.sleep(0.005)
        assert caught.value.resource == "c/1"
        await self.all_raise(UpgradeConflict, theirs.upgrade)
        theirs.check()
        await theirs.release()
        (await upgrader.inside()).check()

    async def test_upgrade_times_out(self) -> None:
        """If an upgrade times out, its reader keeps the lock, and readers can join."""
        await self.actors.enters(self.others.rwlock("c", 1).reader)
        held = await self.locks.rwlock("c", 1).reader.acquire()
        with pytest.raises(LockTimeout) as caught:
            await held.upgrade(timeout=self.harness.answers_in)
        assert caught.value.resource == "c/1"
        with pytest.raises(LockTimeout):
            await held.upgrade(timeout=0)
        held.check()
        await self.actors.enters(self.others.rwlock("c", 1).reader)
        assert await held.release()

    async def test_a_cancelled_upgrade_leaves_no_slot(self) -> None:
        """After a cancelled upgrade, new readers and writers are not kept out."""
        await self.actors.enters(self.others.rwlock("c", 1).reader)
        held = await self.locks.rwlock("c", 1).reader.acquire()
        with anyio.move_on_after(0.05):
            await held.upgrade()
        await self.actors.enters(self.others.rwlock("c", 1).reader)
        if held.valid:
            await held.release()
        await self.actors.finish()
        await self.actors.enters(self.others.rwlock("c", 1).writer)


class PassingCases(Cases):
    """``detach`` gives up a grant; ``adopt`` takes the grant over by its ticket."""

    async def test_adopt_in_another_process(self) -> None:
        """Another process can ``adopt`` a grant; the old ``Held`` then is invalid."""
        held = await self.locks.rwlock("c", "ü,{}").writer.acquire()
        ticket = held.detach()
        assert ticket not in repr(held)
        assert await self.others.rwlock("c", "ü,{}").reader.try_acquire() is None
        await self.all_raise(NotOwner, held.check, held.release, held.detach)
        theirs = await self.others.adopt(ticket)
        assert theirs.mode == "write"
        assert theirs.fence > held.fence
        assert theirs.holder != held.holder
        assert theirs.resource == "c/ü,{}"
        theirs.check()
        assert await theirs.release()
        assert not await self.locks.rwlock("c", "ü,{}").locked()

    async def test_adopted_is_kept(self) -> None:
        """The lease of an adopted grant is renewed by its new owner."""
        async with self.store.connect(lease=self.harness.kept) as giver:
            ticket = (await giver.mutex("order", 1).acquire()).detach()
        held = await self.locks.adopt(ticket)
        with pytest.raises(LockTimeout):
            await self.others.mutex("order", 1).acquire(timeout=1.5 * self.harness.kept)
        held.check()
        await held.release()

    async def test_adopt_after_release(self) -> None:
        """``adopt`` of a ticket whose grant was released raises ``NotOwner``."""
        ticket = (await self.locks.mutex("order", 1).acquire()).detach()
        first = await self.others.adopt(ticket)
        assert await first.release()
        for each in (self.others, self.locks):
            await self.all_raise(NotOwner, partial(each.adopt, ticket))

    @pytest.mark.parametrize("mode", ["read", "write"])
    async def test_of_two_adopters_one_gets_it(self, mode: str) -> None:
        """If two clients adopt one ticket, exactly one of them gets the grant."""
        lock = self.locks.rwlock("c", 1)
        side = lock.reader if mode == "read" else lock.writer
        for _ in range(CANCEL_POINTS):
            ticket = (await side.acquire()).detach()
            answers: list[Held] = []

            async def adopt(
                by: Locks, ticket: str = ticket, answers: list[Held] = answers
            ) -> None:
                with suppress(NotOwner):
                    answers.append(await by.adopt(ticket))

            async with anyio.create_task_group() as group:
                group.start_soon(adopt, self.locks)
                group.start_soon(adopt, self.others)
            assert len(answers) == 1
            held = answers[0]
            (shown,) = (await lock.reader.info()).holders
            assert (shown.holder, shown.fence) == (held.holder, held.fence)
            held.check()
            assert await held.release()
        await self.actors.nothing_left(side)

    async def test_what_the_giver_still_sends_is_stale(self) -> None:
        """After a write by the adopter, a former owner's write is a ``StaleFence``."""
        with closing(sqlite3.connect(":memory:")) as db:
            db.execute("CREATE TABLE orders (id PRIMARY KEY, state, fence BIGINT)")
            db.execute("INSERT INTO orders VALUES (1, '', 0)")
            orders = FencedTable("orders", style="qmark")
            given = await self.locks.mutex("order", 1).acquire()
            first = await self.others.adopt(given.detach())
            assert orders.write(db.cursor(), 1, given.fence, {"state": "given"})
            second = await self.locks.adopt(first.detach())
            assert orders.write(db.cursor(), 1, second.fence, {"state": "adopted"})
            for late in (given, first):
                with pytest.raises(StaleFence):
                    orders.write(db.cursor(), 1, late.fence, {"state": "late"})
            assert await second.release()

    async def test_an_adopted_reader_shares(self) -> None:
        """An adopted read grant stays in the read phase that other readers share."""
        lock = self.locks.rwlock("c", 1)
        given = await lock.reader.acquire()
        beside = await self.others.rwlock("c", 1).reader.acquire()
        theirs = await self.others.adopt(given.detach())
        assert (theirs.mode, theirs.fence) == ("read", beside.fence)
        assert len((await lock.reader.info()).holders) == 2
        assert await beside.release()
        assert await lock.writer.try_acquire() is None
        assert await theirs.release()
        assert not await lock.writer.locked()

    async def test_nobody_is_let_in_by_an_adoption(self) -> None:
        """The adoption of a grant does not let a waiter in."""
        given = await self.locks.rwlock("c", 1).writer.acquire()
        reader = await self.actors.queues(self.others.rwlock("c", 1).reader, "r")
        theirs = await self.others.adopt(given.detach())
        assert reader.waits
        assert len((await self.locks.rwlock("c", 1).reader.info()).holders) == 1
        assert await theirs.release()
        assert (await reader.inside()).fence > theirs.fence

    async def test_an_adopted_grant_is_shown(self) -> None:
        """``info`` of an adopted grant shows old reason and lease, new start time."""
        lock = self.locks.mutex("order", 1)
        given = await lock.acquire(reason="refund", lease=300)
        (before,) = (await lock.info()).holders
        theirs = await self.others.adopt(given.detach())
        (after,) = (await lock.info()).holders
        assert (after.holder, after.reason) == (theirs.holder, "refund")
        assert after.since > before.since
        assert self.lease_left(theirs) > 200
        assert await theirs.release()

    async def test_adopting_cancelled_at_every_step(self) -> None:
        """After a cancelled adoption, the lock is free or the ticket still valid."""
        lock = self.locks.mutex("order", 1)
        for steps in range(CANCEL_POINTS):
            ticket = (await lock.acquire()).detach()

            async def adopt(ticket: str = ticket) -> None:
                await (await self.others.adopt(ticket)).release()

            await self.cancelled_after(steps, adopt)
            with suppress(NotOwner):
                await (await self.others.adopt(ticket)).release()
            await self.actors.nothing_left(lock)

    async def test_adopt_after_expiry(self) -> None:
        """``adopt`` of an expired ticket raises ``NotOwner``; the next holder stays."""
        lock = self.locks.mutex("order", 1, lease=self.harness.short)
        ticket = (await lock.acquire()).detach()
        async with self.others.mutex("order", 1) as held:
            with pytest.raises(NotOwner):
                await self.locks.adopt(ticket)
            held.check()

    async def test_detached_survives_closing(self) -> None:
        """Closing a ``Locks`` releases every grant except detached ones."""
        async with self.store.connect() as locks:
            ticket = (await locks.mutex("order", 1).acquire()).detach()
        assert await self.others.mutex("order", 1).try_acquire() is None
        await (await self.others.adopt(ticket)).release()
        assert not await self.others.mutex("order", 1).locked()
