"""Cases: ``locks.multi`` acquires several locks, all or none."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import LockLost, Locks, LockTimeout
from aiorwlock_remote.testing.conformance.actors import Condition
from aiorwlock_remote.testing.conformance.cases.base import Cases


def others_see(others: Locks, *names: int) -> Condition:
    """Return a condition that is true if ``others.list()`` yields just these ids."""

    async def condition() -> bool:
        listed = [d.resource_id async for d in others.list()]
        return listed == [str(name) for name in names]

    return condition


class MultiCases(Cases):
    """``locks.multi`` acquires all locks or none, without deadlock."""

    async def test_all_are_held(self) -> None:
        """``multi`` gives grants in the order of its locks, and releases them all."""
        b, a = self.locks.mutex("order", "b"), self.locks.mutex("order", "a")
        rw = self.locks.rwlock("catalog", 7)
        async with self.locks.multi(b, rw.reader, a) as (held_b, held_rw, held_a):
            assert held_b.resource == "order/b"
            assert held_a.resource == "order/a"
            assert held_rw.mode == "read"
            for name in ("a", "b"):
                assert await self.others.mutex("order", name).try_acquire() is None
            assert await self.others.rwlock("catalog", 7).writer.try_acquire() is None
        assert [d async for d in self.others.list()] == []

    async def test_awaited(self) -> None:
        """Grants of ``await locks.multi(…)`` can be released one by one."""
        held = await self.locks.multi(
            self.locks.mutex("o", 1), self.locks.mutex("o", 2), timeout=0
        )
        assert [h.resource for h in held] == ["o/1", "o/2"]
        for grant in held:
            assert await self.others.mutex("o", int(grant.resource[-1])).locked()
            await grant.release()
        assert [d async for d in self.others.list()] == []

    @pytest.mark.parametrize("form", ["with", "await"])
    @pytest.mark.parametrize("taken", [1, 2, 3])
    async def test_none_is_kept_if_one_is_not_obtained(
        self, form: str, taken: int
    ) -> None:
        """If ``multi`` does not obtain one lock, it releases the others."""
        wanted = self.locks.multi(
            *(self.locks.mutex("o", n) for n in (3, 1, 2)), timeout=0
        )
        async with self.others.mutex("o", taken):
            with pytest.raises(LockTimeout) as caught:
                if form == "await":
                    await wanted
                else:
                    async with wanted:
                        raise AssertionError("one was taken")
            assert caught.value.resource == f"o/{taken}"
            await self.actors.until(others_see(self.others, taken))

    async def test_cancelled_gives_back(self) -> None:
        """A ``multi`` that is cancelled while it waits keeps no lock."""
        wanted = self.locks.multi(self.locks.mutex("o", 1), self.locks.mutex("o", 2))
        async with self.others.mutex("o", 2):
            with anyio.move_on_after(0.05) as scope:
                await wanted
            assert scope.cancelled_caught
            lock = self.others.mutex("o", 1)
            await self.enter_and_leave(lock.acquire(timeout=self.harness.patience))

    async def test_opposite_orders_do_not_deadlock(self) -> None:
        """Two ``multi`` with the same locks in opposite orders do not deadlock."""
        done: list[str] = []

        async def work(each: Locks, names: list[int]) -> None:
            for _ in range(5):
                async with each.multi(*(each.mutex("o", name) for name in names)):
                    await anyio.lowlevel.checkpoint()
            done.append("done")

        async with anyio.create_task_group() as group:
            group.start_soon(work, self.locks, [1, 2, 3])
            group.start_soon(work, self.others, [3, 2, 1])
        assert len(done) == 2

    async def test_ten_want_the_same(self) -> None:
        """While one lock is taken, ten ``multi`` of two processes wait and keep none;
        then one at a time gets all.
        """
        names, order = (1, 2, 3), list[str]()
        inside = 0

        async def work(each: Locks, rank: int) -> None:
            nonlocal inside
            wanted = names[rank % 3 :] + names[: rank % 3]
            async with each.multi(*(each.mutex("o", name) for name in wanted)):
                inside += 1
                await anyio.lowlevel.checkpoint()
                order.append("alone" if inside == 1 else "beside others")
                inside -= 1

        async with anyio.create_task_group() as group:
            taken = await self.actors.enters(self.locks.mutex("o", 1))
            for rank in range(10):
                group.start_soon(work, (self.locks, self.others)[rank % 2], rank)
            await self.actors.queue_has(self.locks.mutex("o", 1), 2)
            await self.actors.until(others_see(self.others, 1))
            assert order == []
            await taken.leave()
        assert order == ["alone"] * 10
        await self.actors.until(others_see(self.others))

    @pytest.mark.usefixtures("renewed_often")
    async def test_losing_one_ends_all(self) -> None:
        """If ``multi`` loses one lock, its body is cancelled and the rest released."""
        first = self.locks.mutex("o", 1)
        with pytest.raises(LockLost) as caught:
            async with self.locks.multi(self.locks.mutex("o", 2), first):
                await self.force(first)
                await anyio.sleep_forever()
        assert caught.value.resource == "o/1"
        await self.actors.until(others_see(self.others))
