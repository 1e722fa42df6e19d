"""Cases: a ``Locks`` is closed, or used in another event loop or after a fork."""

from __future__ import annotations

import anyio
import pytest

from aiorwlock_remote import Closed, Locks
from aiorwlock_remote.testing.conformance.actors import task_actors
from aiorwlock_remote.testing.conformance.cases.base import Cases, Loop
from aiorwlock_remote.testing.conformance.child import child
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest


async def every_use(locks: Locks) -> list[str]:
    """Try each way to use a ``Locks``; return the reasons of the ``Closed`` errors."""
    lock, rw = locks.mutex("order", 1), locks.rwlock("order", 2)

    async def enter() -> None:
        async with rw.reader:
            raise AssertionError("it was let in")

    async def scan() -> None:
        async for _ in locks.list():
            raise AssertionError("it was shown something")

    async def multi() -> None:
        async with locks.multi(lock, rw.writer):
            raise AssertionError("it was let in")

    reasons: list[str] = []
    for use in (
        lock.acquire,
        lock.try_acquire,
        lock.locked,
        rw.info,
        enter,
        scan,
        multi,
        lambda: lock.acquire(timeout=0),
        lambda: locks.acquire_writer_lock("order", 3, "gluww"),
        lambda: locks.release_mutex_lock("order", 3, "gluww"),
    ):
        with pytest.raises(Closed) as caught:
            await use()
        reasons.append(caught.value.reason)
    return reasons


class CloseCases(Cases):
    """A closed ``Locks`` holds nothing, and every use of it raises ``Closed``."""

    async def test_use_after_close(self, store: StoreUnderTest) -> None:
        """Use of a closed ``Locks`` raises ``Closed``; another close does nothing."""
        locks = await store.connect()
        await locks.aclose()
        assert set(await every_use(locks)) == {"closed"}
        await locks.aclose()
        async with store.connect() as locks:
            pass
        assert set(await every_use(locks)) == {"closed"}

    async def test_close_releases(self, store: StoreUnderTest, others: Locks) -> None:
        """Closing a ``Locks`` releases every grant, however it was acquired."""
        locks = await store.connect()
        held = [
            await locks.mutex("order", 1).acquire(),
            await locks.rwlock("order", 2).reader.acquire(),
            await locks.mutex("order", 3, lease=None).acquire(),
        ]
        await locks.aclose()
        assert [d async for d in others.list()] == []
        assert not any(grant.valid for grant in held)

    async def test_close_ends_the_waiting(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A waiter whose ``Locks`` is closed gets ``Closed``, and leaves the queue."""
        async with task_actors(store) as actors:
            async with locks.mutex("order", 1):
                closing = await store.connect()
                waiting = [await actors.queues(closing.mutex("order", 1))]
                waiting += [await actors.asks(closing.mutex("order", 1))]
                waiting += [await actors.queues(closing.rwlock("order", 1).reader)]
                await closing.aclose()
                for actor in waiting:
                    error = await actor.gone()
                    assert isinstance(error, Closed)
                    assert error.reason == "closed"
                # An entry that stays would cost the others a claim window.
                await actors.queue_has(others.mutex("order", 1), 0)
            assert not await others.mutex("order", 1).locked()

    async def test_close_inside_a_body(
        self, store: StoreUnderTest, others: Locks
    ) -> None:
        """The body of ``async with`` may close its ``Locks``, and end without error."""
        locks = await store.connect()
        async with locks.mutex("order", 1) as held:
            await locks.aclose()
            assert not held.valid
        assert not await others.mutex("order", 1).locked()

    async def test_close_under_a_body(
        self, store: StoreUnderTest, others: Locks
    ) -> None:
        """If another task closes a ``Locks``, lock bodies end by raising ``Closed``."""
        locks = await store.connect()
        entered, errors = anyio.Event(), list[BaseException]()

        async def work() -> None:
            try:
                async with locks.mutex("order", 1):
                    entered.set()
                    await anyio.sleep_forever()
            except Closed as exc:
                errors.append(exc)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await entered.wait()
            await locks.aclose()
        assert len(errors) == 1
        assert not await others.mutex("order", 1).locked()

    async def test_cancelled_close_is_carried_out(
        self, store: StoreUnderTest, others: Locks
    ) -> None:
        """A close whose caller is cancelled still releases every grant."""
        locks = await store.connect()
        held = await locks.mutex("order", 1).acquire()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await locks.aclose()
        assert not held.valid
        assert set(await every_use(locks)) == {"closed"}
        async with others.mutex("order", 1):
            pass

    async def test_await_and_close(self, store: StoreUnderTest, others: Locks) -> None:
        """A ``Locks`` from ``await connect()`` works without a context manager."""
        locks = await store.connect()
        try:
            async with locks.mutex("order", 1):
                assert await others.mutex("order", 1).locked()
        finally:
            await locks.aclose()

    async def test_another_loop(self, locks: Locks, loop: Loop) -> None:
        """Use of a ``Locks`` from another event loop than its own raises ``Closed``."""
        name, options = loop

        def elsewhere() -> list[str]:
            return anyio.run(every_use, locks, backend=name, backend_options=options)

        reasons = await anyio.to_thread.run_sync(elsewhere)
        assert set(reasons) == {"other loop"}
        async with locks.mutex("order", 1):
            pass

    async def test_after_a_fork(self, store: StoreUnderTest, loop: Loop) -> None:
        """In a forked child any use raises ``Closed``; the parent keeps its lock."""
        async with child(store, loop) as process:
            answer = await process.ask("fork")
            assert answer == {"child": ["forked"], "parent": "held"}

    async def test_a_body_left_in_a_fork(
        self, store: StoreUnderTest, loop: Loop
    ) -> None:
        """A forked child that leaves ``async with`` does not release the lock."""
        async with child(store, loop) as process:
            answer = await process.ask("leave_in_a_fork", raising=True)
            assert answer == {"child": "_OfTheBody", "parent": "held"}
            answer = await process.ask("leave_in_a_fork", raising=False)
            assert answer == {"child": "Closed", "parent": "held"}
