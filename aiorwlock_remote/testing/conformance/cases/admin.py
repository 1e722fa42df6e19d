"""Cases: locks are examined, listed and forcibly released from outside."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime

import pytest

from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import MODES, lock_of


@contextmanager
def _left_open() -> Iterator[list[str]]:
    """Return the generators that start here and that no code closes or ends."""
    names: list[str] = []
    first_iter, finalizer = sys.get_asyncgen_hooks()

    def note(generator: AsyncGenerator[object, None]) -> None:
        names.append(repr(generator))
        if finalizer is not None:
            finalizer(generator)

    sys.set_asyncgen_hooks(first_iter, note)
    try:
        yield names
    finally:
        sys.set_asyncgen_hooks(first_iter, finalizer)


class AdminCases(Cases):
    """``info``, ``list``, ``stale``, ``force_release`` reach other clients' grants."""

    @pytest.mark.parametrize("mode", MODES)
    async def test_info(self, mode: str) -> None:
        """``info`` shows a grant's holder, host, process, reason, start and end."""
        async with lock_of(self.locks, mode, ("order", 42)).acquire(
            reason="refund"
        ) as held:
            shown = await self.others.mutex("order", 42).info()
            (holder,) = shown.holders
            assert (shown.resource_type, shown.resource_id) == ("order", "42")
            assert (holder.holder, holder.mode) == (held.holder, held.mode)
            assert (holder.host, holder.pid) == (socket.gethostname(), os.getpid())
            assert holder.reason == "refund"
            assert holder.task
            assert 0 <= holder.age < 60
            assert abs((datetime.now(UTC) - holder.since).total_seconds()) < 60
            assert 0 < self.lease_left(holder) <= 30 + self.harness.grants_more
            assert not holder.foreign
            assert list(shown.active_readers) == (
                [held.holder] if mode == "reader" else []
            )
            assert shown.created_at is not None
            assert shown.updated_at is not None
            assert shown.created_at <= shown.updated_at

    async def test_info_changes_nothing(self) -> None:
        """``info`` of a lock that was never used leaves nothing in the store."""
        shown = await self.locks.mutex("order", 42).info()
        assert (shown.holders, shown.queue, shown.locked) == ((), (), False)
        assert not await self.locks.rwlock("order", 42).locked()
        assert [d async for d in self.others.list()] == []

    async def test_list(self) -> None:
        """``list`` yields the resources held or waited for, of one type or of all."""
        first = await self.actors.enters(self.locks.mutex("order", 1))
        await self.actors.enters(self.locks.rwlock("catalog", 2).reader)
        await self.actors.queues(self.others.mutex("order", 1))
        # A lock that was used and is free again must not be listed.
        await self.enter_and_leave(self.others.mutex("order", 3))
        listed = {(d.resource_type, d.resource_id) async for d in self.others.list()}
        assert listed == {("order", "1"), ("catalog", "2")}
        (order,) = [d async for d in self.others.list("order")]
        assert order.holders[0].holder == (await first.inside()).holder
        assert len(order.queue) == 1
        assert [d async for d in self.others.list("nothing")] == []
        await self.actors.finish()
        assert [d async for d in self.others.list()] == []

    async def test_a_list_that_is_left_early(self) -> None:
        """A loop over ``list`` or ``stale`` may be left after the first resource.

        Nothing stays open: a trio program would be warned of an iterator that is.
        """
        for number in range(3):
            assert await self.locks.acquire_mutex_lock("order", number, "gluww")
        with _left_open() as left_open:
            for found in (self.others.list(), self.others.stale()):
                async with aclosing(found):
                    assert (await anext(found)).resource_type == "order"
                gc.collect()
        assert left_open == []

    async def test_stale(self) -> None:
        """``stale`` yields grants without a lease, filtered by age and type."""
        assert await self.locks.acquire_mutex_lock("order", 1, "gluww")
        # A grant that is held and renewed is not stale.
        async with self.locks.mutex("order", 2):
            (stale,) = [d async for d in self.others.stale()]
            assert stale.resource_id == "1"
            assert [d async for d in self.others.stale(older_than=3600)] == []
            assert [d async for d in self.others.stale(resource_type="other")] == []
        assert await self.others.force_release(stale, reason="test") == 1
        assert [d async for d in self.others.stale()] == []

    async def test_an_expired_grant_is_stale(self) -> None:
        """``stale`` yields an expired grant, but ``info`` shows the lock as free."""
        for number in (1, 2):
            await self.expiring(number)
        # The acquire waits until the second lease has run out; so has the first by
        # then.
        async with self.others.mutex("order", 2):
            shown = await self.others.mutex("order", 1).info()
            assert not shown.locked
            (stale,) = [d async for d in self.others.stale()]
            assert stale.resource_id == "1"
            assert self.lease_left(stale.holders[0]) <= 0

    async def test_force_release_lets_the_next_in(self) -> None:
        """``force_release`` wakes the next waiter, which gets the lock."""
        await self.actors.enters(self.locks.mutex("order", 1, on_lost="flag"))
        waiting = await self.actors.queues(self.others.mutex("order", 1))
        await self.force(self.others.mutex("order", 1))
        await waiting.inside()

    async def test_force_release_spares_who_came_since(self) -> None:
        """``force_release`` of an old ``info`` spares a holder that came later."""
        async with self.locks.mutex("order", 1):
            seen = await self.others.mutex("order", 1).info()
        async with self.locks.mutex("order", 1) as held:
            assert await self.others.force_release(seen, reason="test") == 0
            held.check()
            await held.extend()
        assert await self.others.force_release(seen, reason="test") == 0

    async def test_force_release_of_some_readers(self) -> None:
        """``force_release(info)`` ends and counts only readers that ``info`` shows."""
        for ticket in ("one", "two"):
            assert await self.locks.acquire_readers_lock("order", 1, ticket)
        seen = await self.others.mutex("order", 1).info()
        assert await self.locks.acquire_readers_lock("order", 1, "three")
        assert await self.locks.release_readers_lock("order", 1, "one")
        assert await self.others.force_release(seen, reason="test") == 1
        assert not await self.locks.release_readers_lock("order", 1, "two")
        assert await self.locks.release_readers_lock("order", 1, "three")

    async def test_a_stale_doorman_of_the_same_ticket(self) -> None:
        """``force_release`` of an old ``info`` spares a newer grant of equal ticket."""
        assert await self.locks.acquire_mutex_lock("order", 1, "gluww")
        seen = await self.others.mutex("order", 1).info()
        assert await self.locks.release_mutex_lock("order", 1, "gluww")
        assert await self.locks.acquire_mutex_lock("order", 1, "gluww")
        assert await self.others.force_release(seen, reason="test") == 0
        assert await self.locks.release_mutex_lock("order", 1, "gluww")
