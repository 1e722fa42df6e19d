"""Cases: the published calls, and programs that use the published mutex record."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from math import floor
from random import Random

import anyio
import pytest

from aiorwlock_remote import Held, LockLost, Locks, LockTimeout, NotOwner
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.testing.conformance.actors import TaskActor
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import MODES, ForeignClient, lock_of

KINDS = ("mutex", "readers", "writer")


async def acquire(locks: Locks, kind: str, number: int, ticket: str) -> bool:
    """Call ``acquire_<kind>_lock("foobar", number, ticket)``; return its result."""
    call = getattr(locks, f"acquire_{kind}_lock")
    return bool(await call("foobar", number, ticket))


async def release(locks: Locks, kind: str, number: int, ticket: str) -> bool:
    """Call ``release_<kind>_lock("foobar", number, ticket)``; return its result."""
    call = getattr(locks, f"release_{kind}_lock")
    return bool(await call("foobar", number, ticket))


class PublishedCallsCases(Cases):
    """Calls like ``acquire_mutex_lock`` take a ticket, never wait, can be repeated."""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_acquire_and_release(self, kind: str) -> None:
        """A ticket holds the lock until any client releases this ticket."""
        assert await acquire(self.locks, kind, 123, "gluww")
        assert await self.locks.mutex("foobar", 123).locked()
        assert not await acquire(self.others, "mutex", 123, "other")
        assert await release(self.others, kind, 123, "gluww")
        assert not await self.locks.mutex("foobar", 123).locked()
        assert await acquire(self.others, "mutex", 123, "other")

    @pytest.mark.parametrize("kind", KINDS)
    async def test_acquire_is_idempotent(self, kind: str) -> None:
        """A repeated acquire of one ticket returns True; one release ends the grant."""
        assert await acquire(self.locks, kind, 123, "gluww")
        (before,) = (await self.locks.mutex("foobar", 123).info()).holders
        for each in (self.locks, self.others, self.locks):
            assert await acquire(each, kind, 123, "gluww")
        (after,) = (await self.locks.mutex("foobar", 123).info()).holders
        assert (after.holder, after.fence) == (before.holder, before.fence)
        assert after.age >= before.age
        assert await release(self.locks, kind, 123, "gluww")
        assert not await release(self.locks, kind, 123, "gluww")

    async def test_another_mode_is_refused(self) -> None:
        """With a ticket that holds the lock, acquire in another mode returns False."""
        assert await acquire(self.locks, "readers", 1, "gluww")
        assert not await acquire(self.locks, "mutex", 1, "gluww")
        assert not await acquire(self.locks, "writer", 1, "gluww")
        assert await acquire(self.locks, "writer", 2, "gluww")
        assert not await acquire(self.locks, "readers", 2, "gluww")
        assert not await release(self.locks, "readers", 2, "gluww")
        assert not await release(self.locks, "mutex", 1, "gluww")
        shown = {d.resource_id: d.holders[0].mode async for d in self.locks.list()}
        assert shown == {"1": "read", "2": "write"}

    @pytest.mark.parametrize("kind", KINDS)
    async def test_release_compares_the_ticket(self, kind: str) -> None:
        """A release with another ticket or another name returns False."""
        assert await acquire(self.locks, kind, 123, "gluww")
        for wrong in ("glubb", "gluw", "gluwww", "GLUWW", "gluww "):
            assert not await release(self.others, kind, 123, wrong)
        assert not await release(self.others, kind, 124, "gluww")
        assert await self.locks.mutex("foobar", 123).locked()
        assert await release(self.others, kind, 123, "gluww")

    async def test_a_late_second_release(self) -> None:
        """A second release of a ticket spares a ticket that holds the lock since."""
        for number, kind in enumerate(KINDS):
            assert await acquire(self.locks, kind, number, "gluww")
            assert await release(self.locks, kind, number, "gluww")
            assert await acquire(self.others, kind, number, "other")
            for each in (self.locks, self.others):
                assert not await release(each, kind, number, "gluww")
            assert await self.locks.mutex("foobar", number).locked()
            assert await release(self.locks, kind, number, "other")

    async def test_it_never_expires(self) -> None:
        """Without a lease a grant never ends, and ``stale`` yields it; others end."""
        assert await acquire(self.locks, "mutex", 1, "gluww")
        short = self.harness.short
        assert await self.locks.acquire_readers_lock("foobar", 2, "gluww", lease=short)
        # The writer waits until the reader's lease has run out.
        async with self.others.rwlock("foobar", 2).writer:
            (stale,) = [d async for d in self.others.stale()]
        assert stale.resource_id == "1"
        assert not await release(self.locks, "readers", 2, "gluww")
        assert await release(self.locks, "mutex", 1, "gluww")

    async def test_readers_share(self) -> None:
        """Reader tickets share the lock with each other and with ``rwlock`` readers."""
        assert await acquire(self.locks, "readers", 1, "one")
        assert await acquire(self.others, "readers", 1, "two")
        async with self.others.rwlock("foobar", 1).reader:
            assert len((await self.locks.mutex("foobar", 1).info()).holders) == 3
        assert await release(self.locks, "readers", 1, "one")
        assert not await acquire(self.locks, "mutex", 1, "three")
        assert await release(self.others, "readers", 1, "two")
        assert await acquire(self.locks, "mutex", 1, "three")

    async def test_a_refused_writer_is_pending(self) -> None:
        """A refused writer keeps new readers out, and gets the lock by a later call."""
        assert await acquire(self.locks, "readers", 1, "reader")
        assert not await acquire(self.others, "writer", 1, "writer")
        assert (await self.locks.rwlock("foobar", 1).info()).has_pending_writer
        assert not await acquire(self.locks, "readers", 1, "late reader")
        assert not await acquire(self.others, "writer", 1, "writer")
        assert len((await self.locks.rwlock("foobar", 1).info()).queue) == 1
        assert await release(self.locks, "readers", 1, "reader")
        assert await acquire(self.others, "writer", 1, "writer")
        assert not (await self.locks.rwlock("foobar", 1).info()).has_pending_writer
        assert not await acquire(self.locks, "readers", 1, "late reader")
        assert await release(self.others, "writer", 1, "writer")
        assert await acquire(self.locks, "readers", 1, "late reader")

    async def test_mutex_and_readers_take_no_place(self) -> None:
        """A refused mutex or reader ticket is not queued (a writer ticket would be)."""
        async with self.others.mutex("foobar", 1):
            assert not await acquire(self.locks, "mutex", 1, "gluww")
            assert not await acquire(self.locks, "readers", 1, "gluww")
            assert (await self.locks.mutex("foobar", 1).info()).queue == ()

    async def test_they_exclude_ours(self) -> None:
        """A task waits while a ticket holds the lock by ``acquire_writer_lock``."""
        assert await acquire(self.locks, "writer", 1, "gluww")
        waiting = await self.actors.queues(self.others.rwlock("foobar", 1).reader)
        assert await release(self.locks, "writer", 1, "gluww")
        await waiting.inside()


NAME = "foobar", 123


class SeatCases(Cases):
    """The published mutex record, which other programs also use, proves a grant."""

    foreign = True

    @pytest.mark.parametrize("mode", MODES)
    async def test_our_grant_sits_there(self, mode: str) -> None:
        """While a lock is held, another program cannot create its mutex record."""
        other = self.store.foreigner
        async with lock_of(self.locks, mode, NAME) as held:
            ticket = other.read(NAME)
            assert ticket is not None
            if mode == "reader":
                assert ticket == "readers"
            else:
                assert holder_of(ticket) == held.holder
            assert not other.take(NAME, "foreign")
        assert other.read(NAME) is None
        assert other.take(NAME, "foreign")

    async def test_a_callers_ticket_sits_there(self) -> None:
        """The mutex record contains the caller's ticket, or ``readers`` for readers."""
        assert await self.locks.acquire_mutex_lock(*NAME, "gluww")
        assert self.store.foreigner.read(NAME) == "gluww"
        assert await self.locks.release_mutex_lock(*NAME, "gluww")
        assert self.store.foreigner.read(NAME) is None
        assert await self.locks.acquire_readers_lock(*NAME, "gluww")
        assert self.store.foreigner.read(NAME) == "readers"
        assert self.store.foreigner.free(NAME, "readers")

    async def test_how_long_a_foreigner_sits_there(self) -> None:
        """``info`` and ``stale`` know the age of another program's mutex record."""
        # Some stores keep the time of a foreign record in whole seconds.
        before = floor(time.time())
        assert self.store.foreigner.take(NAME, "foreign")
        (seen,) = (await self.locks.mutex(*NAME).info()).holders
        assert seen.foreign
        assert before <= seen.since.timestamp() <= time.time()
        # A real pause: the clock of a store cannot be moved.
        await anyio.sleep(0.05)
        (later,) = (await self.locks.mutex(*NAME).info()).holders
        assert later.since == seen.since
        assert [d async for d in self.locks.stale(older_than=0.04)]

    async def test_readers_sit_until_the_last(self) -> None:
        """The mutex record says ``readers`` until the last reader has left."""
        for ticket in ("one", "two"):
            assert await self.locks.acquire_readers_lock(*NAME, ticket)
        assert await self.locks.release_readers_lock(*NAME, "one")
        assert self.store.foreigner.read(NAME) == "readers"
        assert await self.locks.release_readers_lock(*NAME, "two")
        assert self.store.foreigner.read(NAME) is None

    async def test_a_hand_over_keeps_the_seat(self) -> None:
        """After a hand-over the mutex record has the new holder's ticket."""
        first = await self.actors.enters(self.locks.mutex(*NAME))
        second = await self.actors.queues(self.others.mutex(*NAME))
        await first.leave()
        held = await second.inside()
        assert holder_of(self.store.foreigner.read(NAME) or "") == held.holder

    async def test_tickets_are_secret(self) -> None:
        """No ``info``, error or ``repr`` shows the ticket, which proves the grant."""
        async with self.locks.mutex(*NAME) as held:
            ticket = self.store.foreigner.read(NAME)
            assert ticket is not None
            with pytest.raises(LockTimeout) as caught:
                await self.others.mutex(*NAME).acquire(timeout=0)
            shown = await self.others.mutex(*NAME).info()
            for text in (held, held.holder, shown, caught.value, str(caught.value)):
                assert ticket not in repr(text)

    @pytest.mark.parametrize("ticket", ["foreign", "readers"])
    @pytest.mark.parametrize("mode", MODES)
    async def test_a_foreign_seat_keeps_us_out(self, mode: str, ticket: str) -> None:
        """Another program's record, even of ticket ``readers``, excludes every mode."""
        assert self.store.foreigner.take(NAME, ticket)
        lock = lock_of(self.locks, mode, NAME)
        assert await lock.try_acquire() is None
        with pytest.raises(LockTimeout):
            await lock.acquire(timeout=0.05)
        with pytest.raises(LockTimeout) as caught:
            await lock.acquire(timeout=0)
        assert caught.value.holders[0].startswith("foreign ")
        assert not await self.locks.acquire_readers_lock(*NAME, "gluww")
        assert await lock.locked()
        assert self.store.foreigner.read(NAME) == ticket
        assert self.store.foreigner.free(NAME, ticket)
        await self.enter_and_leave(lock)

    async def test_a_foreign_release_lets_us_in(self) -> None:
        """Within a poll after another program deletes its record, a waiter enters."""
        waiting: list[TaskActor] = []
        for mode in MODES:
            name = self.store.name()
            assert self.store.foreigner.take(name, "foreign")
            waiting.append(await self.actors.queues(lock_of(self.locks, mode, name)))
            assert self.store.foreigner.free(name, "foreign")
        for actor in waiting:
            await actor.inside()

    @pytest.mark.usefixtures("renewed_often")
    @pytest.mark.parametrize("mode", MODES)
    async def test_a_deleted_seat_is_a_forced_loss(self, mode: str) -> None:
        """A grant whose mutex record is deleted is lost, with reason ``forced``."""
        with pytest.raises(LockLost) as caught:
            async with lock_of(self.locks, mode, NAME) as held:
                self.store.foreigner.wipe(NAME)
                await anyio.sleep_forever()
        assert caught.value.reason == "forced"
        async with self.locks.mutex(*NAME).acquire(timeout=0) as again:
            assert again.fence > held.fence

    @pytest.mark.usefixtures("renewed_often")
    @pytest.mark.parametrize("mode", MODES)
    async def test_an_overwritten_seat_is_stolen(self, mode: str) -> None:
        """A grant whose mutex record is overwritten is lost, with reason ``stolen``."""
        with pytest.raises(LockLost) as caught:
            async with lock_of(self.locks, mode, NAME):
                self.store.foreigner.put(NAME, "thief")
                await anyio.sleep_forever()
        assert caught.value.reason == "stolen"
        assert self.store.foreigner.read(NAME) == "thief"
        assert await self.locks.mutex(*NAME).try_acquire() is None

    async def test_a_deleted_seat_never_comes_back(self) -> None:
        """A grant whose mutex record was deleted stays lost after the next grant."""
        held = await self.locks.mutex(*NAME, on_lost="flag").acquire()
        self.store.foreigner.wipe(NAME)
        async with self.others.mutex(*NAME) as theirs:
            assert theirs.fence > held.fence
            assert not await held.release()
            theirs.check()
            assert holder_of(self.store.foreigner.read(NAME) or "") == theirs.holder

    @pytest.mark.parametrize("action", ["release", "extend", "downgrade", "adopt"])
    async def test_our_ticket_goes_when_its_holder_learns_of_it(
        self, action: str
    ) -> None:
        """If the doorman is gone, the holder's next call deletes the mutex record."""
        held = await self.locks.rwlock(*NAME, on_lost="flag").writer.acquire()
        self.store.foreigner.clean(NAME)
        # Only the holder can tell our ticket from a foreign program's: left there, it
        # would keep every client out until a person breaks it.
        assert await self.others.mutex(*NAME).try_acquire() is None
        if action == "release":
            assert await held.release()
        elif action == "adopt":
            with pytest.raises(NotOwner):
                await self.others.adopt(held.detach())
        else:
            with pytest.raises(LockLost) as caught:
                await (held.extend() if action == "extend" else held.downgrade())
            assert caught.value.reason == "forced"
        assert self.store.foreigner.read(NAME) is None
        await self.enter_and_leave(self.others.mutex(*NAME).acquire(timeout=0))

    @pytest.mark.usefixtures("renewed_often")
    async def test_our_ticket_goes_when_its_holder_is_not_renewed(self) -> None:
        """If the doorman is gone, the grant's next renewal deletes the mutex record."""
        # When a lease ends, its holder releases it, which lets the others in, too. So
        # the lease is longer than a case may take.
        lease = 3 * self.harness.patience
        held = await self.locks.mutex(*NAME, lease=lease, on_lost="flag").acquire()
        self.store.foreigner.clean(NAME)
        async with self.others.mutex(*NAME) as theirs:
            assert holder_of(self.store.foreigner.read(NAME) or "") == theirs.holder
        # The others may hear of it before the reply of the renewal that deleted it.
        await self.actors.until(lambda: held.lost == "forced")

    async def test_readers_we_do_not_know_stay(self) -> None:
        """If the doorman is gone, a record ``readers`` stays: others may be reading."""
        held = await self.locks.rwlock(*NAME, on_lost="flag").reader.acquire()
        self.store.foreigner.clean(NAME)
        with pytest.raises(LockLost):
            await held.extend()
        await held.release()
        # To remove it could let a writer in beside a foreign program's readers.
        assert self.store.foreigner.read(NAME) == "readers"
        assert await self.others.rwlock(*NAME).reader.try_acquire() is None

    async def test_waiters_survive_a_deleted_seat(self) -> None:
        """If the mutex record is deleted, the queue remains; the next waiter enters."""
        await self.actors.enters(self.locks.mutex(*NAME, on_lost="flag"), "first")
        second = await self.actors.queues(self.others.mutex(*NAME), "second")
        self.store.foreigner.wipe(NAME)
        await second.inside()

    @pytest.mark.usefixtures("renewed_often")
    async def test_all_is_deleted_under_a_holder_and_two_waiters(self) -> None:
        """If doorman and mutex record are deleted, the holder loses it, and the waiters
        enter one by one, with greater fences.
        """
        held = await self.locks.mutex(*NAME, on_lost="flag").acquire()
        async with self.store.connect() as third:
            waiting = [
                await self.actors.queues(each.mutex(*NAME))
                for each in (self.others, third)
            ]
            self.store.foreigner.clean(NAME)
            self.store.foreigner.wipe(NAME)
            await self.actors.until(lambda: not all(one.waits for one in waiting))
            inside, waits = sorted(waiting, key=lambda one: one.waits)
            fence = (await inside.inside()).fence
            assert fence > held.fence
            assert waits.waits
            (shown,) = (await self.locks.mutex(*NAME).info()).holders
            assert shown.fence == fence
            await inside.hand_over_to(waits)
            assert (await waits.inside()).fence > fence
            await waits.leave()
            await self.actors.until(lambda: held.lost is not None)

    async def test_release_of_a_foreign_ticket(self) -> None:
        """``release_mutex_lock`` releases another program's record by its ticket."""
        assert self.store.foreigner.take(NAME, "foreign")
        assert not await self.locks.release_mutex_lock(*NAME, "another")
        assert not await self.locks.release_readers_lock(*NAME, "foreign")
        assert self.store.foreigner.read(NAME) == "foreign"
        assert await self.locks.release_mutex_lock(*NAME, "foreign")
        assert self.store.foreigner.read(NAME) is None

    async def test_a_foreign_seat_is_shown(self) -> None:
        """``list`` and ``stale`` show another program's record without its ticket."""
        assert self.store.foreigner.take(NAME, "foreign")
        (listed,) = [d async for d in self.locks.list()]
        (stale,) = [d async for d in self.locks.stale()]
        assert listed.holders == stale.holders or listed.holders[0].foreign
        assert (stale.resource_type, stale.resource_id) == ("foobar", "123")
        (holder,) = stale.holders
        assert holder.foreign
        assert holder.fence is None
        assert holder.age < 60
        assert "foreign" not in holder.holder
        assert [d async for d in self.locks.stale(older_than=3600)] == []

    async def test_a_foreign_seat_is_broken_by_its_value(self) -> None:
        """``force_release`` spares a foreign record that was changed since ``info``."""
        assert self.store.foreigner.take(NAME, "foreign")
        seen = await self.locks.mutex(*NAME).info()
        self.store.foreigner.put(NAME, "another")
        assert await self.locks.force_release(seen, reason="test") == 0
        assert self.store.foreigner.read(NAME) == "another"
        seen = await self.locks.mutex(*NAME).info()
        assert await self.locks.force_release(seen, reason="test") == 1
        assert self.store.foreigner.read(NAME) is None
        await self.enter_and_leave(self.locks.mutex(*NAME).acquire(timeout=0))

    async def test_foreign_names(self) -> None:
        """Records of other programs may have any 32-bit integer id, also negative."""
        for number in (0, 1, -1, 2**31 - 1, -(2**31)):
            assert self.store.foreigner.take(("foobar", number), "foreign")
            assert await self.locks.mutex("foobar", str(number)).locked()
        listed = {d.resource_id async for d in self.locks.list("foobar")}
        assert listed == {"0", "1", "-1", str(2**31 - 1), str(-(2**31))}


STEPS, SEED = 50, 7
OURS = "acquire", "acquire", "acquire", "release", "release", "extend", "downgrade"
THEIRS = "take", "put", "wipe", "free"


@dataclass
class _Story:
    """Random steps of two clients and of another program, each judged at once."""

    clients: tuple[Locks, Locks]
    other: ForeignClient
    chance: Random
    modes: tuple[str, ...]
    record: str | None = None
    """What the other program has written, and has neither deleted nor overwritten."""
    grants: dict[Locks, Held] = field(default_factory=dict[Locks, Held])
    whole: set[Locks] = field(default_factory=set[Locks])
    """The clients whose grant no other program has ended."""

    async def step(self, action: str) -> None:
        await getattr(self, f"_{action}")(self.chance.choice(self.clients))
        found = self.other.read(NAME)
        if self.record is not None:
            assert found == self.record, f"{action} changed another program's record"
        elif self.whole:
            assert found is not None, f"{action} deleted the record of a grant"

    async def end(self) -> None:
        await self.step("wipe")
        for locks in self.clients:
            await self._release(locks)

    async def _acquire(self, locks: Locks) -> None:
        if locks in self.grants:
            return
        mode = self.chance.choice(self.modes)
        held = await lock_of(locks, mode, NAME).try_acquire(on_lost="flag")
        if held is not None:
            assert self.record is None, "granted beside another program"
            self.grants[locks] = held
            self.whole.add(locks)

    async def _release(self, locks: Locks) -> None:
        if locks in self.grants:
            whole, held = locks in self.whole, self.grants.pop(locks)
            self.whole.discard(locks)
            assert await held.release() == whole

    async def _extend(self, locks: Locks) -> None:
        if locks in self.grants:
            await self._still_held(locks, self.grants[locks].extend())

    async def _downgrade(self, locks: Locks) -> None:
        if locks in self.grants and self.grants[locks].mode == "write":
            moved = await self._still_held(locks, self.grants[locks].downgrade())
            if moved is not None:
                self.grants[locks] = moved

    async def _still_held(
        self, locks: Locks, call: Awaitable[Held | None]
    ) -> Held | None:
        try:
            result = await call
        except LockLost:
            assert locks not in self.whole
            del self.grants[locks]
            return None
        assert locks in self.whole, "it holds what another program has ended"
        return result

    async def _take(self, _: Locks) -> None:
        if self.other.take(NAME, "foreign"):
            assert not self.whole, "taken beside a grant"
            self.record = "foreign"

    async def _free(self, _: Locks) -> None:
        if self.record is not None:
            assert self.other.free(NAME, self.record)
            self.record = None

    async def _put(self, _: Locks) -> None:
        self.other.put(NAME, "thief")
        self.record = "thief"
        self.whole.clear()

    async def _wipe(self, _: Locks) -> None:
        self.other.wipe(NAME)
        self.record = None
        self.whole.clear()


class ForeignHistoryCases(Cases):
    """Another program writes and deletes the mutex record between any two steps."""

    foreign = True

    @pytest.mark.parametrize("modes", [("mutex",), ("reader",), MODES], ids="-".join)
    async def test_another_program_between_any_two_steps(
        self, modes: tuple[str, ...]
    ) -> None:
        """Its record stays until it deletes it, and keeps everybody out meanwhile."""
        chance, clients = Random(SEED), (self.locks, self.others)
        story = _Story(clients, self.store.foreigner, chance, modes)
        for _ in range(STEPS):
            await story.step(chance.choice(OURS + THEIRS))
        await story.end()
        await self.take_at_once(self.locks.mutex(*NAME))

    @pytest.mark.parametrize("waiter", ["same process", "another process"])
    async def test_a_thief_before_a_hand_over(self, waiter: str) -> None:
        """The release hands nothing over that another program has taken."""
        first = await self.actors.enters(self.locks.mutex(*NAME, on_lost="flag"))
        locks = self.locks if waiter == "same process" else self.others
        second = await self.actors.queues(locks.mutex(*NAME))
        self.store.foreigner.put(NAME, "thief")
        await first.leave()
        assert await self.locks.mutex(*NAME).locked()
        assert second.waits
        assert self.store.foreigner.free(NAME, "thief")
        await second.inside()
