"""Cases: a mutex and a readers-writer lock are acquired and released."""

from __future__ import annotations

import gc
import math

import pytest

from aiorwlock_remote import LockTimeout
from aiorwlock_remote.runtime.event_loop import SystemClock
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import MODES, lock_of

CYCLES = 20
MOST_LATE = 1.0
"""Seconds by which a timeout may be late, at most."""


class MutexCases(Cases):
    """A mutex is acquired, refused and released."""

    async def test_async_with_holds_it(self) -> None:
        """The lock is held inside ``async with``, and free after it."""
        lock, theirs = self.locks.mutex("order", 42), self.others.mutex("order", 42)
        async with lock as held:
            held.check()
            assert await lock.locked()
            assert await theirs.locked()
            assert await theirs.try_acquire() is None
        assert not held.valid
        assert not await theirs.locked()
        async with theirs:
            assert await lock.locked()

    async def test_await_gives_the_grant(self) -> None:
        """``await lock.acquire()`` returns a grant that lasts until ``release``."""
        held = await self.locks.mutex("order", 42).acquire()
        assert await self.others.mutex("order", 42).try_acquire() is None
        assert await held.release() is True
        assert not await self.others.mutex("order", 42).locked()

    async def test_try_acquire(self) -> None:
        """``try_acquire`` returns the grant, or None if busy, and never waits."""
        held = await self.locks.mutex("order", 42).try_acquire()
        assert held is not None
        assert await self.others.mutex("order", 42).try_acquire() is None
        assert await held.release()
        theirs = await self.others.mutex("order", 42).try_acquire()
        assert theirs is not None
        assert theirs.fence > held.fence
        await theirs.release()

    async def test_timeout_zero_says_who_holds_it(self) -> None:
        """``acquire(timeout=0)`` tries once; its ``LockTimeout`` names the holders."""
        async with self.locks.mutex("order", 42).acquire(reason="refund") as held:
            with pytest.raises(LockTimeout) as caught:
                await self.others.mutex("order", 42).acquire(timeout=0)
        assert (caught.value.resource, caught.value.mode) == ("order/42", "write")
        assert caught.value.timeout == 0
        (holder,) = caught.value.holders
        assert holder.startswith(f"write {held.holder}")
        assert holder.endswith("refund")
        assert isinstance(caught.value, TimeoutError)

    async def test_timeout_ends_the_wait(self) -> None:
        """``acquire`` ends after its ``timeout``, not much later, and leaves no queue
        entry.
        """
        clock, timeout, waited = SystemClock(), self.harness.short, math.inf
        latest = timeout + self.harness.slowness * MOST_LATE
        async with self.locks.mutex("order", 42) as held:
            # Again only if it came late: a busy machine may hold one or two of them up.
            for _ in range(3):
                asked = clock.now()
                with pytest.raises(LockTimeout) as caught:
                    await self.others.mutex("order", 42).acquire(timeout)
                waited = clock.now() - asked
                assert waited >= timeout
                assert held.holder in caught.value.holders[0]
                await self.actors.queue_has(self.locks.mutex("order", 42), 0)
                if waited < latest:
                    break
        assert waited < latest

    async def test_no_timeout_waits_for_the_release(self) -> None:
        """``acquire`` without a timeout waits until the lock is granted."""
        first = await self.actors.enters(self.locks.mutex("order", 42), "first")
        second = await self.actors.queues(self.others.mutex("order", 42), "second")
        assert second.waits
        await first.hand_over_to(second)
        assert self.actors.order == ["first", "second"]

    async def test_a_failing_body_releases(self) -> None:
        """An error in the body passes unchanged, and the lock is released."""
        error = ValueError("mine")
        with pytest.raises(ValueError, match="mine") as caught:
            async with self.locks.mutex("order", 42):
                raise error
        assert caught.value is error
        # The release was sent but not awaited: the acquire may have to wait for it.
        held = await self.others.mutex("order", 42).acquire(
            timeout=self.harness.patience
        )
        assert await held.release()

    @pytest.mark.parametrize("mode", MODES)
    async def test_a_cycle_leaves_no_garbage(self, mode: str) -> None:
        """Acquire and release leave no objects for the garbage collector."""
        lock = lock_of(self.locks, mode, ("order", 42))
        await self.enter_and_leave(lock)
        bound = CYCLES * (1 + self.harness.garbage)
        left = list[int]()
        # Once in which it leaves none is enough: what a driver does in the background,
        # such as opening connections again on a busy machine, may leave some.
        while min(left, default=bound) >= bound and len(left) < 20:
            gc.collect()
            gc.disable()
            try:
                for _ in range(CYCLES):
                    async with lock:
                        pass
                left.append(gc.collect())
            finally:
                gc.enable()
        hint = "if the driver leaves cycles behind, raise Harness.garbage"
        assert min(left) < bound, f"{left} objects of {CYCLES} locks; {hint}"


class RWLockCases(Cases):
    """Readers hold the lock together, a writer holds it alone."""

    async def test_readers_share(self) -> None:
        """Readers of all processes hold the lock together."""
        inside = [
            await self.actors.enters(each.rwlock("c", 7).reader)
            for each in (self.locks, self.others, self.locks, self.others)
        ]
        assert len((await self.locks.rwlock("c", 7).info()).holders) == 4
        for actor in inside:
            held = await actor.inside()
            held.check()
            assert held.mode == "read"
            await actor.leave()
        assert not await self.locks.rwlock("c", 7).locked()

    async def test_a_writer_is_alone(self) -> None:
        """While a writer holds the lock, neither readers nor writers get it."""
        async with self.locks.rwlock("catalog", 7).writer as held:
            assert held.mode == "write"
            assert await self.others.rwlock("catalog", 7).reader.try_acquire() is None
            assert await self.others.rwlock("catalog", 7).writer.try_acquire() is None

    async def test_the_last_reader_lets_the_writer_in(self) -> None:
        """A writer waits until the last reader has left."""
        reader, writer = (
            self.locks.rwlock("c", 7).reader,
            self.others.rwlock("c", 7).writer,
        )
        first = await self.actors.enters(reader, "r1")
        second = await self.actors.enters(self.others.rwlock("c", 7).reader, "r2")
        third = await self.actors.enters(reader, "r3")
        waiting = await self.actors.queues(writer, "w")
        for actor in (second, first):
            await actor.leave()
            assert await self.locks.rwlock("c", 7).writer.try_acquire() is None
            assert waiting.waits
        await third.hand_over_to(waiting)
        assert self.actors.order[-1] == "w"

    async def test_readers_wait_for_the_writer(self) -> None:
        """Readers that ask while a writer holds the lock enter after its release."""
        writer = await self.actors.enters(self.locks.rwlock("c", 7).writer, "w")
        readers = [
            await self.actors.queues(each.rwlock("c", 7).reader, "r")
            for each in (self.locks, self.others)
        ]
        assert all(reader.waits for reader in readers)
        await writer.hand_over_to(*readers)
        assert len((await self.locks.rwlock("c", 7).info()).holders) == 2

    async def test_a_reader_gone_leaves_the_others(self) -> None:
        """A reader's release ends its own grant only, not the other readers'."""
        first, second, third = [
            await self.actors.enters(each.rwlock("c", 7).reader)
            for each in (self.locks, self.others, self.locks)
        ]
        await second.leave()
        left = [await first.inside(), await third.inside()]
        shown = await self.others.rwlock("c", 7).info()
        assert {h.holder for h in shown.holders} == {held.holder for held in left}
        assert set(shown.active_readers) == {held.holder for held in left}
        for held in left:
            await held.extend()
