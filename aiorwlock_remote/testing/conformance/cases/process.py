"""Cases: real processes exclude each other, and may be killed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import anyio

from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance.cases.base import Cases, Loop
from aiorwlock_remote.testing.conformance.child import child


class ProcessCases(Cases):
    """Real processes exclude each other, and may be killed."""

    needs = Capability.MANY_PROCESSES

    async def test_two_processes_exclude_each_other(self, loop: Loop) -> None:
        """A lock that one process holds is refused to another, in every mode.

        If its process ends without any clean-up, a waiter enters when the lease is
        over.
        """
        async with child(self.store, loop) as one, child(self.store, loop) as two:
            first = await one.ask("acquire", mode="writer")
            assert await two.ask("acquire", mode="reader", timeout=0) == "LockTimeout"
            assert await two.ask("acquire", mode="mutex", timeout=0.1) == "LockTimeout"
            (holder,) = (await self.locks.mutex("order", 1).info()).holders
            assert holder.pid == one.pid
            assert await self.locks.mutex("order", 1).try_acquire() is None
            assert await one.ask("release") is True
            second = await two.ask("acquire", mode="mutex", timeout=0)
            assert second > first
            assert await one.ask("acquire", mode="mutex", timeout=0) == "LockTimeout"
            assert await two.ask("release") is True
            third = await two.ask("acquire", mode="writer", lease=self.harness.kept)
            waiting = await self.actors.queues(self.locks.mutex("order", 1))
            await two.tell("vanish")
            assert (await waiting.inside()).fence > third

    async def test_nothing_is_counted_twice(self, tmp_path: Path, loop: Loop) -> None:
        """A number that processes increment under the lock loses no increment."""
        number, turns = tmp_path / "number", 40
        number.write_text("0")
        async with (
            child(self.store, loop) as one,
            child(self.store, loop) as two,
            anyio.create_task_group() as group,
        ):
            for process in (one, two):
                work = partial(process.ask, path=str(number), turns=turns)
                group.start_soon(work, "count")
        assert int(number.read_text()) == 2 * turns

    async def test_a_release_wakes_another_process(self, loop: Loop) -> None:
        """A release in another process lets a waiter of this process enter."""
        async with child(self.store, loop) as one:
            fence = await one.ask("acquire", mode="mutex")
            waiting = await self.actors.queues(self.locks.mutex("order", 1))
            assert await one.ask("release") is True
            assert (await waiting.inside()).fence > fence

    async def test_a_killed_holder(self, loop: Loop) -> None:
        """If a holder's process is killed, a waiter enters when the lease is over."""
        async with child(self.store, loop) as one:
            fence = await one.ask("acquire", mode="mutex", lease=self.harness.kept)
            waiting = await self.actors.queues(self.locks.mutex("order", 1))
            one.kill()
            assert (await waiting.inside()).fence > fence

    async def test_a_killed_waiter(self, loop: Loop) -> None:
        """A killed process that is first in the queue delays the next only briefly."""
        async with child(self.store, loop) as one:
            first = await self.actors.enters(self.locks.mutex("order", 1))
            await one.tell("acquire", mode="mutex")
            await self.actors.queue_has(self.locks.mutex("order", 1), 1)
            # Its entry stays at the head of the queue until the store drops it.
            one.kill()
            waiting = await self.actors.queues(self.others.mutex("order", 1))
            await first.hand_over_to(waiting)
