"""Cases: a request that fails after it was carried out leaves no grant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from aiorwlock_remote import Held, Locks
from aiorwlock_remote.core.commands import Acquire, Adopt, Command, Downgrade, Upgrade
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import Name, lock_of
from aiorwlock_remote.testing.faults import Fate, FaultyLink

AcquireCall = Callable[[Locks, Name], Awaitable[object]]

MAY_GRANT = Acquire | Adopt | Downgrade | Upgrade


# A script may lack a right in its middle, or meet a damaged record after half of its
# writes. The leases in these cases are endless: none would end a grant left behind.
def _fails_late(command: Command) -> Fate:
    return Fate.FAIL_LATE if isinstance(command, MAY_GRANT) else Fate.PASS


async def _acquire(locks: Locks, name: Name) -> object:
    return await locks.mutex(*name).acquire()


async def _try_writer(locks: Locks, name: Name) -> object:
    return await locks.rwlock(*name).writer.try_acquire()


async def _read(locks: Locks, name: Name) -> object:
    async with locks.rwlock(*name).reader as held:
        return held


async def _several(locks: Locks, name: Name) -> object:
    return await locks.multi(locks.mutex("other", 1), locks.mutex(*name))


ASKS: dict[str, AcquireCall] = {
    "acquire": _acquire,
    "try": _try_writer,
    "read": _read,
    "multi": _several,
}
MOVES: dict[str, Callable[[Held], Awaitable[object]]] = {
    "downgrade": Held.downgrade,
    "upgrade": Held.upgrade,
    "try_upgrade": Held.try_upgrade,
}


class FailingCases(Cases):
    """If a request is carried out but reported as failed, its grant is withdrawn."""

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[tuple[Locks, Name, FaultyLink]]:
        # Yields a client, the name of a lock and the link to the store; the lock must
        # become free although the client stays connected.
        name, link = self.store.name(), FaultyLink()
        async with self.store.connect(link=link, lease=None) as locks:
            yield locks, name, link
            lock = self.others.mutex(*name)
            await self.actors.nothing_left(lock)
            await self.enter_and_leave(lock.acquire(timeout=0))

    @pytest.mark.parametrize("ask", ASKS)
    async def test_an_acquire_that_fails_late(self, ask: str) -> None:
        """If a store fails after granting, ``acquire`` raises and frees the lock."""
        async with self._client() as (locks, name, link):
            link.fate = _fails_late
            await self.all_raise(Unsupported, partial(ASKS[ask], locks, name))

    @pytest.mark.parametrize("move", MOVES)
    async def test_a_move_that_fails_late(self, move: str) -> None:
        """If an up- or downgrade fails after it was carried out, no grant remains."""
        async with self._client() as (locks, name, link):
            mode = "writer" if move == "downgrade" else "reader"
            held = await lock_of(locks, mode, name).acquire()
            link.fate = _fails_late
            await self.all_raise(Unsupported, partial(MOVES[move], held))

    async def test_an_adoption_that_fails_late(self) -> None:
        """If ``adopt`` fails after it was carried out, the lock is freed."""
        async with self._client() as (locks, name, link):
            ticket = (await locks.mutex(*name).acquire()).detach()
            link.fate = _fails_late
            await self.all_raise(Unsupported, partial(locks.adopt, ticket))

    async def test_a_store_that_hangs_while_two_wait(self) -> None:
        """Waiters whose replies come late enter all the same, one by one, in order."""
        name, link, theirs = self.store.name(), FaultyLink(), FaultyLink()
        async with (
            self.store.connect(link=link) as locks,
            self.store.connect(link=theirs) as others,
        ):
            first = await self.actors.enters(self.others.mutex(*name), "first")
            second = await self.actors.queues(locks.mutex(*name), "second")
            third = await self.actors.queues(others.mutex(*name), "third")
            link.hold_back = theirs.hold_back = True
            await first.leave()
            # Not held back is a poll that was on its way, and finds the lock free.
            await self.actors.until(lambda: link.held_back > 0 or not second.waits)
            assert third.waits
            link.let_through()
            theirs.let_through()
            await second.inside()
            assert third.waits
            await second.hand_over_to(third)
            await third.leave()
            await self.actors.nothing_left(self.others.mutex(*name))
        assert self.actors.order == ["first", "second", "third"]

    async def test_taken_back_when_the_store_lets_us(self) -> None:
        """If the withdrawal of a grant fails, it is repeated until it succeeds."""
        async with self._client() as (locks, name, link):
            link.fate = lambda command: (
                _fails_late(command) if isinstance(command, MAY_GRANT) else Fate.FORBID
            )
            await self.all_raise(Unsupported, locks.mutex(*name).acquire)
            # Neither the grant nor its withdrawal was reported: the lock is held by no
            # task until a repeated withdrawal gets through.
            assert await self.others.mutex(*name).locked()
            link.fate = lambda _: Fate.PASS
