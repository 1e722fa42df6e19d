"""Cases: a ``Locks`` is closed, or used in another event loop or after a fork."""

from __future__ import annotations

import anyio

from aiorwlock_remote import Closed
from aiorwlock_remote.testing.conformance.cases.base import Cases, Loop
from aiorwlock_remote.testing.conformance.child import child


class CloseCases(Cases):
    """A closed ``Locks`` holds nothing, and every use of it raises ``Closed``."""

    async def test_close_releases(self) -> None:
        """Closing a ``Locks`` releases every grant, however it was acquired."""
        locks = await self.store.connect()
        held = [
            await locks.mutex("order", 1).acquire(),
            await locks.rwlock("order", 2).reader.acquire(),
            await locks.mutex("order", 3, lease=None).acquire(),
        ]
        await locks.aclose()
        assert [d async for d in self.others.list()] == []
        assert not any(grant.valid for grant in held)

    async def test_close_ends_the_waiting(self) -> None:
        """A waiter whose ``Locks`` is closed gets ``Closed``, and leaves the queue."""
        async with self.locks.mutex("order", 1):
            closing = await self.store.connect()
            waiting = [
                await self.actors.queues(closing.mutex("order", 1)),
                await self.actors.asks(closing.mutex("order", 1)),
                await self.actors.queues(closing.rwlock("order", 1).reader),
            ]
            await closing.aclose()
            for actor in waiting:
                error = await actor.gone()
                assert isinstance(error, Closed)
                assert error.reason == "closed"
            # An entry that stays would cost the others a claim window.
            await self.actors.queue_has(self.others.mutex("order", 1), 0)
        assert not await self.others.mutex("order", 1).locked()

    async def test_close_inside_a_body(self) -> None:
        """The body of ``async with`` may close its ``Locks``, and end without error."""
        locks = await self.store.connect()
        async with locks.mutex("order", 1) as held:
            await locks.aclose()
            assert not held.valid
        assert not await self.others.mutex("order", 1).locked()

    async def test_close_under_a_body(self) -> None:
        """If another task closes a ``Locks``, lock bodies end by raising ``Closed``."""
        locks = await self.store.connect()
        holder = await self.actors.enters(locks.mutex("order", 1))
        await locks.aclose()
        assert isinstance(await holder.gone(), Closed)
        assert not await self.others.mutex("order", 1).locked()

    async def test_cancelled_close_is_carried_out(self) -> None:
        """A close whose caller is cancelled still releases every grant."""
        locks = await self.store.connect()
        held = await locks.mutex("order", 1).acquire()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await locks.aclose()
        assert not held.valid
        await self.all_raise(Closed, locks.mutex("order", 1).acquire)
        await self.enter_and_leave(self.others.mutex("order", 1))

    async def test_await_and_close(self) -> None:
        """A ``Locks`` from ``await connect()`` works without a context manager."""
        locks = await self.store.connect()
        try:
            async with locks.mutex("order", 1):
                assert await self.others.mutex("order", 1).locked()
        finally:
            await locks.aclose()

    async def test_after_a_fork(self, loop: Loop) -> None:
        """In a forked child any use raises ``Closed``; the parent keeps its lock."""
        async with child(self.store, loop) as process:
            answer = await process.ask("fork")
            assert answer == {"child": ["forked"], "parent": "held"}

    async def test_a_body_left_in_a_fork(self, loop: Loop) -> None:
        """A forked child that leaves ``async with`` does not release the lock."""
        async with child(self.store, loop) as process:
            answer = await process.ask("leave_in_a_fork", raising=True)
            assert answer == {"child": "_OfTheBody", "parent": "held"}
            answer = await process.ask("leave_in_a_fork", raising=False)
            assert answer == {"child": "Closed", "parent": "held"}
