"""The six published calls: explicit tickets, non-blocking, repeatable."""

from __future__ import annotations

import pytest

from aiorwlock_remote import ConfigurationError, Locks
from aiorwlock_remote.testing.conformance.actors import party
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest

KINDS = ("mutex", "readers", "writer")
BAD_TICKETS = ("", "readers", "a,b", "line\nbreak", "nul\0", "x" * 201, 7, None)


async def acquire(locks: Locks, kind: str, number: int, ticket: str) -> bool:
    """One of the acquire calls."""
    call = getattr(locks, f"acquire_{kind}_lock")
    return bool(await call("foobar", number, ticket))


async def release(locks: Locks, kind: str, number: int, ticket: str) -> bool:
    """One of the release calls."""
    call = getattr(locks, f"release_{kind}_lock")
    return bool(await call("foobar", number, ticket))


class PublishedCallsCases(Cases):
    """The six published calls, with the caller's tickets."""

    @pytest.mark.parametrize("kind", KINDS)
    async def test_acquire_and_release(
        self, locks: Locks, others: Locks, kind: str
    ) -> None:
        """A ticket holds until it is released, by whoever names it."""
        assert await acquire(locks, kind, 123, "gluww")
        assert await locks.mutex("foobar", 123).locked()
        assert not await acquire(others, "mutex", 123, "other")
        assert await release(others, kind, 123, "gluww")
        assert not await locks.mutex("foobar", 123).locked()
        assert await acquire(others, "mutex", 123, "other")

    @pytest.mark.parametrize("kind", KINDS)
    async def test_acquire_is_idempotent(
        self, locks: Locks, others: Locks, kind: str
    ) -> None:
        """The same ticket asks again: True, nothing changes; one release ends it."""
        assert await acquire(locks, kind, 123, "gluww")
        (before,) = (await locks.mutex("foobar", 123).info()).holders
        for each in (locks, others, locks):
            assert await acquire(each, kind, 123, "gluww")
        (after,) = (await locks.mutex("foobar", 123).info()).holders
        assert (after.holder, after.fence) == (before.holder, before.fence)
        assert after.age >= before.age
        assert await release(locks, kind, 123, "gluww")
        assert not await release(locks, kind, 123, "gluww")

    async def test_another_mode_is_refused(self, locks: Locks) -> None:
        """A ticket that reads is not given the other mode, nor the other way round."""
        assert await acquire(locks, "readers", 1, "gluww")
        assert not await acquire(locks, "mutex", 1, "gluww")
        assert not await acquire(locks, "writer", 1, "gluww")
        assert await acquire(locks, "writer", 2, "gluww")
        assert not await acquire(locks, "readers", 2, "gluww")
        assert not await release(locks, "readers", 2, "gluww")
        assert not await release(locks, "mutex", 1, "gluww")
        shown = {d.resource_id: d.holders[0].mode async for d in locks.list()}
        assert shown == {"1": "read", "2": "write"}

    @pytest.mark.parametrize("kind", KINDS)
    async def test_release_compares_the_ticket(
        self, locks: Locks, others: Locks, kind: str
    ) -> None:
        """Nobody can release what another ticket holds."""
        assert await acquire(locks, kind, 123, "gluww")
        for wrong in ("glubb", "gluw", "gluwww", "GLUWW", "gluww "):
            assert not await release(others, kind, 123, wrong)
        assert not await release(others, kind, 124, "gluww")
        assert await locks.mutex("foobar", 123).locked()
        assert await release(others, kind, 123, "gluww")

    async def test_it_never_expires(self, locks: Locks, others: Locks) -> None:
        """Without a lease it stays and shows as stale; with one it ends."""
        assert await acquire(locks, "mutex", 1, "gluww")
        short = self.harness.short
        assert await locks.acquire_readers_lock("foobar", 2, "gluww", lease=short)
        async with others.rwlock("foobar", 2).writer:  # when the lease has run out
            (stale,) = [d async for d in others.stale()]
        assert stale.resource_id == "1"
        assert not await release(locks, "readers", 2, "gluww")
        assert await release(locks, "mutex", 1, "gluww")

    async def test_readers_share(self, locks: Locks, others: Locks) -> None:
        """Readers hold it together, each under its ticket, also with ``rwlock``."""
        assert await acquire(locks, "readers", 1, "one")
        assert await acquire(others, "readers", 1, "two")
        async with others.rwlock("foobar", 1).reader:
            assert len((await locks.mutex("foobar", 1).info()).holders) == 3
        assert await release(locks, "readers", 1, "one")
        assert not await acquire(locks, "mutex", 1, "three")
        assert await release(others, "readers", 1, "two")
        assert await acquire(locks, "mutex", 1, "three")

    async def test_a_refused_writer_is_pending(
        self, locks: Locks, others: Locks
    ) -> None:
        """It keeps new readers out, and enters when it repeats its call."""
        assert await acquire(locks, "readers", 1, "reader")
        assert not await acquire(others, "writer", 1, "writer")
        assert (await locks.rwlock("foobar", 1).info()).has_pending_writer
        assert not await acquire(locks, "readers", 1, "late reader")
        assert not await acquire(others, "writer", 1, "writer")
        assert len((await locks.rwlock("foobar", 1).info()).queue) == 1
        assert await release(locks, "readers", 1, "reader")
        assert await acquire(others, "writer", 1, "writer")
        assert not (await locks.rwlock("foobar", 1).info()).has_pending_writer
        assert not await acquire(locks, "readers", 1, "late reader")
        assert await release(others, "writer", 1, "writer")
        assert await acquire(locks, "readers", 1, "late reader")

    async def test_mutex_and_readers_take_no_place(
        self, locks: Locks, others: Locks
    ) -> None:
        """Refused, they leave nothing behind."""
        async with others.mutex("foobar", 1):
            assert not await acquire(locks, "mutex", 1, "gluww")
            assert not await acquire(locks, "readers", 1, "gluww")
            assert (await locks.mutex("foobar", 1).info()).queue == ()

    async def test_they_exclude_ours(
        self, store: StoreUnderTest, locks: Locks, others: Locks
    ) -> None:
        """A ticket keeps tasks waiting, and its release wakes them."""
        async with party(store) as guests:
            assert await acquire(locks, "writer", 1, "gluww")
            waiting = await guests.queues(others.rwlock("foobar", 1).reader)
            assert await release(locks, "writer", 1, "gluww")
            await waiting.inside()

    async def test_bad_tickets(self, locks: Locks) -> None:
        """A ticket that cannot stand in the published record is refused."""
        for bad in BAD_TICKETS:
            for kind in KINDS:
                with pytest.raises(ConfigurationError):
                    await acquire(locks, kind, 1, bad)  # type: ignore[arg-type]
                with pytest.raises(ConfigurationError):
                    await release(locks, kind, 1, bad)  # type: ignore[arg-type]
        assert [d async for d in locks.list()] == []
