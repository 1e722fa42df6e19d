"""Several locks, all or none."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import ConfigurationError, LockLost, Locks, LockTimeout
from aiorwlock_remote.testing.conformance.actors import Condition, wait_until
from aiorwlock_remote.testing.conformance.cases.base import Cases


def others_see(others: Locks, *names: int) -> Condition:
    """Asks whether these, and no others, are held or waited for."""

    async def told() -> bool:
        listed = [d.resource_id async for d in others.list()]
        return listed == [str(name) for name in names]

    return told


class MultiCases(Cases):
    """``locks.multi``: several locks, all or none, and no deadlock."""

    async def test_all_are_held(self, locks: Locks, others: Locks) -> None:
        """The grants come in the order of the locks; leaving releases them all."""
        b, a = locks.mutex("order", "b"), locks.mutex("order", "a")
        rw = locks.rwlock("catalog", 7)
        async with locks.multi(b, rw.reader, a) as (held_b, held_rw, held_a):
            assert held_b.resource == "order/b"
            assert held_a.resource == "order/a"
            assert held_rw.mode == "read"
            for name in ("a", "b"):
                assert await others.mutex("order", name).try_acquire() is None
            assert await others.rwlock("catalog", 7).writer.try_acquire() is None
        assert [d async for d in others.list()] == []

    async def test_awaited(self, locks: Locks, others: Locks) -> None:
        """``await locks.multi(…)`` gives the grants, to be released one by one."""
        held = await locks.multi(locks.mutex("o", 1), locks.mutex("o", 2), timeout=0)
        assert [h.resource for h in held] == ["o/1", "o/2"]
        for grant in held:
            assert await others.mutex("o", int(grant.resource[-1])).locked()
            await grant.release()
        assert [d async for d in others.list()] == []

    @pytest.mark.parametrize("form", ["with", "await"])
    @pytest.mark.parametrize("taken", [1, 2, 3])
    async def test_none_is_kept_if_one_is_not_obtained(
        self, locks: Locks, others: Locks, form: str, taken: int
    ) -> None:
        """Whichever is taken by another, those obtained before are given back."""
        wanted = locks.multi(*(locks.mutex("o", n) for n in (3, 1, 2)), timeout=0)
        async with others.mutex("o", taken):
            with pytest.raises(LockTimeout) as caught:
                if form == "await":
                    await wanted
                else:
                    async with wanted:
                        raise AssertionError("one was taken")
            assert caught.value.resource == f"o/{taken}"
            await wait_until(others_see(others, taken), self.harness.patience)

    async def test_cancelled_gives_back(self, locks: Locks, others: Locks) -> None:
        """Cancelled while it waits for one, it keeps none."""
        wanted = locks.multi(locks.mutex("o", 1), locks.mutex("o", 2))
        async with others.mutex("o", 2):
            with anyio.move_on_after(0.05) as scope:
                await wanted
            assert scope.cancelled_caught
            async with others.mutex("o", 1).acquire(timeout=self.harness.patience):
                pass

    async def test_one_resource_twice(self, locks: Locks) -> None:
        """One resource twice, in whatever modes, would wait for itself: refused."""
        rw = locks.rwlock("o", 1)
        other = locks.mutex("o", 2)
        for pair in (
            (locks.mutex("o", 1), other, locks.mutex("o", "1")),
            (rw.reader, rw.writer),
            (other, rw.reader, rw.reader),
        ):
            with pytest.raises(ConfigurationError, match=r"o/1 twice"):
                await locks.multi(*pair)
        with pytest.raises(ConfigurationError, match="at least one"):
            await locks.multi()
        assert [d async for d in locks.list()] == []

    async def test_opposite_orders_do_not_deadlock(
        self, locks: Locks, others: Locks
    ) -> None:
        """Two processes that want the same locks in opposite orders both get them."""
        done: list[str] = []

        async def work(each: Locks, names: list[int]) -> None:
            for _ in range(5):
                async with each.multi(*(each.mutex("o", name) for name in names)):
                    await anyio.lowlevel.checkpoint()
            done.append("done")

        async with anyio.create_task_group() as group:
            group.start_soon(work, locks, [1, 2, 3])
            group.start_soon(work, others, [3, 2, 1])
        assert len(done) == 2

    @pytest.mark.usefixtures("renewed_often")
    async def test_losing_one_ends_all(self, locks: Locks, others: Locks) -> None:
        """Losing any of them cancels the body; the others are released."""
        first = locks.mutex("o", 1)
        with pytest.raises(LockLost) as caught:
            async with locks.multi(locks.mutex("o", 2), first):
                seen = await others.mutex("o", 1).info()
                await others.force_release(seen, reason="test")
                await anyio.sleep_forever()
        assert caught.value.resource == "o/1"
        await wait_until(others_see(others), self.harness.patience)
