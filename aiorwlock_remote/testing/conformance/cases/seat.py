"""Programs that use the published record exclude ours, and are excluded by ours."""

from __future__ import annotations

import time
from math import floor

import anyio
import pytest

from aiorwlock_remote import LockLost, Locks, LockTimeout, NotOwner
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.testing.conformance.actors import TaskActor, party
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.mutex import MODES
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest, lock_of

NAME = "foobar", 123


class SeatCases(Cases):
    """The published mutex record is the seat of every lock."""

    foreign = True

    @pytest.mark.parametrize("mode", MODES)
    async def test_our_grant_sits_there(
        self, store: StoreUnderTest, locks: Locks, mode: str
    ) -> None:
        """While we hold it, in any mode, a published INSERT fails; then it works."""
        other = store.foreigner
        async with lock_of(locks, mode, NAME) as held:
            ticket = other.read(NAME)
            assert ticket is not None
            if mode == "reader":
                assert ticket == "readers"
            else:
                assert holder_of(ticket) == held.holder
            assert not other.take(NAME, "foreign")
        assert other.read(NAME) is None
        assert other.take(NAME, "foreign")

    async def test_a_callers_ticket_sits_there(
        self, store: StoreUnderTest, locks: Locks
    ) -> None:
        """S0's calls write the very ticket they were given."""
        assert await locks.acquire_mutex_lock(*NAME, "gluww")
        assert store.foreigner.read(NAME) == "gluww"
        assert await locks.release_mutex_lock(*NAME, "gluww")
        assert store.foreigner.read(NAME) is None
        assert await locks.acquire_readers_lock(*NAME, "gluww")
        assert store.foreigner.read(NAME) == "readers"
        assert store.foreigner.free(NAME, "readers")

    async def test_how_long_a_foreigner_sits_there(
        self, store: StoreUnderTest, locks: Locks
    ) -> None:
        """Its record tells since when: ``stale(older_than)`` goes by that."""
        before = floor(time.time())  # in whole seconds, in some stores
        assert store.foreigner.take(NAME, "foreign")
        (seen,) = (await locks.mutex(*NAME).info()).holders
        assert seen.foreign
        assert before <= seen.since.timestamp() <= time.time()
        await anyio.sleep(0.05)  # no clock of a store can be turned
        (later,) = (await locks.mutex(*NAME).info()).holders
        assert later.since == seen.since
        assert [d async for d in locks.stale(older_than=0.04)]

    async def test_readers_sit_until_the_last(
        self, store: StoreUnderTest, locks: Locks
    ) -> None:
        """``readers`` stays there while any reader does."""
        for ticket in ("one", "two"):
            assert await locks.acquire_readers_lock(*NAME, ticket)
        assert await locks.release_readers_lock(*NAME, "one")
        assert store.foreigner.read(NAME) == "readers"
        assert await locks.release_readers_lock(*NAME, "two")
        assert store.foreigner.read(NAME) is None

    async def test_a_hand_over_keeps_the_seat(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """Whoever is let in sits there under its own ticket."""
        async with party(store) as guests:
            first = await guests.enters(locks.mutex(*NAME))
            second = await guests.queues(others.mutex(*NAME))
            await first.leave()
            held = await second.inside()
            assert holder_of(store.foreigner.read(NAME) or "") == held.holder

    async def test_tickets_are_secret(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """What sits there proves the grant, so nobody is shown it."""
        async with locks.mutex(*NAME) as held:
            ticket = store.foreigner.read(NAME)
            assert ticket is not None
            with pytest.raises(LockTimeout) as caught:
                await others.mutex(*NAME).acquire(timeout=0)
            shown = await others.mutex(*NAME).info()
            for text in (held, held.holder, shown, caught.value, str(caught.value)):
                assert ticket not in repr(text)

    @pytest.mark.parametrize("ticket", ["foreign", "readers"])
    @pytest.mark.parametrize("mode", MODES)
    async def test_a_foreign_seat_keeps_us_out(
        self, store: StoreUnderTest, locks: Locks, mode: str, ticket: str
    ) -> None:
        """No mode gets past it, not even readers past a foreign ``readers``."""
        assert store.foreigner.take(NAME, ticket)
        lock = lock_of(locks, mode, NAME)
        assert await lock.try_acquire() is None
        with pytest.raises(LockTimeout):
            await lock.acquire(timeout=0.05)
        with pytest.raises(LockTimeout) as caught:
            await lock.acquire(timeout=0)
        assert caught.value.holders[0].startswith("foreign ")
        assert not await locks.acquire_readers_lock(*NAME, "gluww")
        assert await lock.locked()
        assert store.foreigner.read(NAME) == ticket
        assert store.foreigner.free(NAME, ticket)
        async with lock:
            pass

    async def test_a_foreign_release_lets_us_in(
        self, store: StoreUnderTest, locks: Locks
    ) -> None:
        """A waiter gets in after a foreign program's plain DELETE, within a poll."""
        async with party(store) as guests:
            waiting: list[TaskActor] = []
            for mode in MODES:
                name = store.name()
                assert store.foreigner.take(name, "foreign")
                waiting.append(await guests.queues(lock_of(locks, mode, name)))
                assert store.foreigner.free(name, "foreign")
            for guest in waiting:
                await guest.inside()

    @pytest.mark.usefixtures("renewed_often")
    @pytest.mark.parametrize("mode", MODES)
    async def test_a_deleted_seat_is_a_forced_loss(
        self, store: StoreUnderTest, locks: Locks, mode: str
    ) -> None:
        """Deleting our record takes the grant away: ``forced``, and it stays away."""
        with pytest.raises(LockLost) as caught:
            async with lock_of(locks, mode, NAME) as held:
                store.foreigner.wipe(NAME)
                await anyio.sleep_forever()
        assert caught.value.reason == "forced"
        async with locks.mutex(*NAME).acquire(timeout=0) as again:
            assert again.fence > held.fence

    @pytest.mark.usefixtures("renewed_often")
    @pytest.mark.parametrize("mode", MODES)
    async def test_an_overwritten_seat_is_stolen(
        self, store: StoreUnderTest, locks: Locks, mode: str
    ) -> None:
        """Another value in our record takes the grant away: ``stolen``."""
        with pytest.raises(LockLost) as caught:
            async with lock_of(locks, mode, NAME):
                store.foreigner.put(NAME, "thief")
                await anyio.sleep_forever()
        assert caught.value.reason == "stolen"
        assert store.foreigner.read(NAME) == "thief"
        assert await locks.mutex(*NAME).try_acquire() is None

    async def test_a_deleted_seat_never_comes_back(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A grant whose seat vanished is void even if the same record reappears."""
        held = await locks.mutex(*NAME, on_lost="flag").acquire()
        store.foreigner.wipe(NAME)
        async with others.mutex(*NAME) as theirs:
            assert theirs.fence > held.fence
            assert not await held.release()
            theirs.check()
            assert holder_of(store.foreigner.read(NAME) or "") == theirs.holder

    @pytest.mark.parametrize("told", ["release", "extend", "downgrade", "adopt"])
    async def test_our_ticket_goes_when_its_holder_is_told(
        self, store: StoreUnderTest, locks: Locks, others: Locks, told: str
    ) -> None:
        """If all beside the seat is deleted, our ticket does not stay there for ever.

        Nobody else could tell it from a foreign program's: it would keep everybody out
        until a person breaks it.
        """
        held = await locks.rwlock(*NAME, on_lost="flag").writer.acquire()
        store.foreigner.clean(NAME)
        assert await others.mutex(*NAME).try_acquire() is None
        if told == "release":
            assert await held.release()
        elif told == "adopt":
            with pytest.raises(NotOwner):
                await others.adopt(held.detach())
        else:
            with pytest.raises(LockLost) as caught:
                await (held.extend() if told == "extend" else held.downgrade())
            assert caught.value.reason == "forced"
        assert store.foreigner.read(NAME) is None
        async with others.mutex(*NAME).acquire(timeout=0):
            pass

    @pytest.mark.usefixtures("renewed_often")
    async def test_our_ticket_goes_when_its_holder_is_not_renewed(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """So it does when it is the keeper that is told."""
        held = await locks.mutex(*NAME, on_lost="flag").acquire()
        store.foreigner.clean(NAME)
        async with others.mutex(*NAME) as theirs:
            assert holder_of(store.foreigner.read(NAME) or "") == theirs.holder
        assert not held.valid

    async def test_readers_we_do_not_know_stay(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """``readers`` may be a foreign program's when no record tells of it."""
        held = await locks.rwlock(*NAME, on_lost="flag").reader.acquire()
        store.foreigner.clean(NAME)
        with pytest.raises(LockLost):
            await held.extend()
        await held.release()
        assert store.foreigner.read(NAME) == "readers"
        assert await others.rwlock(*NAME).reader.try_acquire() is None

    async def test_waiters_survive_a_deleted_seat(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """The queue outlives it: the next in line gets in."""
        async with party(store) as guests:
            await guests.enters(locks.mutex(*NAME, on_lost="flag"), "first")
            second = await guests.queues(others.mutex(*NAME), "second")
            store.foreigner.wipe(NAME)
            await second.inside()

    async def test_release_of_a_foreign_ticket(
        self, store: StoreUnderTest, locks: Locks
    ) -> None:
        """Who knows the ticket in the record may release it with the published call."""
        assert store.foreigner.take(NAME, "foreign")
        assert not await locks.release_mutex_lock(*NAME, "another")
        assert not await locks.release_readers_lock(*NAME, "foreign")
        assert store.foreigner.read(NAME) == "foreign"
        assert await locks.release_mutex_lock(*NAME, "foreign")
        assert store.foreigner.read(NAME) is None

    async def test_a_foreign_seat_is_shown(
        self, store: StoreUnderTest, locks: Locks
    ) -> None:
        """``list`` and ``stale`` show it, without fence and without its ticket."""
        assert store.foreigner.take(NAME, "foreign")
        (listed,) = [d async for d in locks.list()]
        (stale,) = [d async for d in locks.stale()]
        assert listed.holders == stale.holders or listed.holders[0].foreign
        assert (stale.resource_type, stale.resource_id) == ("foobar", "123")
        (holder,) = stale.holders
        assert holder.foreign
        assert holder.fence is None
        assert holder.age < 60
        assert "foreign" not in holder.holder
        assert [d async for d in locks.stale(older_than=3600)] == []

    async def test_a_foreign_seat_is_broken_by_its_value(
        self, store: StoreUnderTest, locks: Locks
    ) -> None:
        """``force_release`` removes the record that was seen, and no other one."""
        assert store.foreigner.take(NAME, "foreign")
        seen = await locks.mutex(*NAME).info()
        store.foreigner.put(NAME, "another")
        assert await locks.force_release(seen, reason="test") == 0
        assert store.foreigner.read(NAME) == "another"
        seen = await locks.mutex(*NAME).info()
        assert await locks.force_release(seen, reason="test") == 1
        assert store.foreigner.read(NAME) is None
        async with locks.mutex(*NAME).acquire(timeout=0):
            pass

    async def test_foreign_names(self, store: StoreUnderTest, locks: Locks) -> None:
        """Small integers, negative ones too, stand in the published columns."""
        for number in (0, 1, -1, 2**31 - 1, -(2**31)):
            assert store.foreigner.take(("foobar", number), "foreign")
            assert await locks.mutex("foobar", str(number)).locked()
        listed = {d.resource_id async for d in locks.list("foobar")}
        assert listed == {"0", "1", "-1", str(2**31 - 1), str(-(2**31))}
