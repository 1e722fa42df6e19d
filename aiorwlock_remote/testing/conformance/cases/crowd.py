"""Cases with many clients, tasks or requests, and with waits of several seconds."""

from __future__ import annotations

from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import LockTimeout
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.cases.cancellation import CANCEL_POINTS
from aiorwlock_remote.testing.conformance.cases.histories import random_visits

READERS = 50
WAITERS = 40
CLIENTS, POLLING_CLIENTS = 30, 10
"""Clients on one lock. All of them run on one core here, which the polls of thirty
would keep busy.
"""
LEASES = 3
"""Leases for which grants are renewed, or entries in a queue refreshed."""


class CrowdCases(Cases):
    """Locks keep their promises among many, and for long."""

    async def test_fifty_readers_are_kept(self) -> None:
        """Readers of two processes are renewed for three leases."""
        kept, theirs = self.harness.kept, self.others.rwlock("c", 1)
        mine = self.locks.rwlock("c", 1, lease=kept).reader
        sides = mine, self.others.rwlock("c", 1, lease=kept).reader
        readers = [
            await self.actors.asks(sides[number % 2]) for number in range(READERS)
        ]
        grants = [await reader.inside() for reader in readers]
        with pytest.raises(LockTimeout):
            await theirs.writer.acquire(LEASES * kept)
        assert len((await theirs.info()).holders) == READERS
        for held in grants:
            held.check()
        await self.actors.finish()
        await self.take_at_once(theirs.writer)

    async def test_long_waits_keep_their_places(self) -> None:
        """Who waits for several lives of a queue entry keeps place and order."""
        # Once more if not: a machine that stands still may refresh none of them.
        assert await self._places_are_kept() or await self._places_are_kept()

    async def _places_are_kept(self) -> bool:
        # Without a refresh an entry would end after one life.
        life, name, places = self.harness.kept, self.store.name(), ["a", "b", "c"]
        poll_policy = PollPolicy(poll_min=life / 6, poll_max=life / 4, entry_ttl=life)
        lock, before = self.locks.mutex(*name), len(self.actors.order)
        async with AsyncExitStack() as stack:
            first = await self.actors.enters(lock, "first")
            for place in places:
                patient = await stack.enter_async_context(
                    self.store.connect(poll_policy=poll_policy)
                )
                await self.actors.queues(patient.mutex(*name), place)
            early = (await lock.info()).queue
            await anyio.sleep(LEASES * life)
            late = (await lock.info()).queue
            await first.leave()
            await self.actors.finish()
        # An entry that was dropped and made anew would be younger.
        aged = [new.age - old.age for old, new in zip(early, late, strict=False)]
        kept = len(aged) == len(places) and min(aged) > (LEASES - 1) * life
        return kept and self.actors.order[before:] == ["first", *places]

    async def test_forty_waiters_cancelled_at_every_step_of_a_release(self) -> None:
        """Tasks of two processes that are cancelled together leave nothing behind."""
        lock = self.locks.mutex("order", 1)
        async with self.store.connect() as third:
            theirs = self.others.mutex("order", 1), third.mutex("order", 1)
            for steps in range(CANCEL_POINTS):
                first = await self.actors.enters(lock)
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as group:
                        for number in range(WAITERS):
                            waits = theirs[number % 2]
                            group.start_soon(self.enter_and_leave, waits)
                        await self.actors.queue_has(lock, 2)
                        first.may_leave()
                        for _ in range(steps):
                            await checkpoint()
                        scope.cancel()
                assert await first.gone() is None
                await self.actors.nothing_left(lock)

    async def test_thirty_clients(self) -> None:
        """So many processes get one lock in the order in which they asked, and then
        share it as readers.
        """
        notifies = Capability.NOTIFIES in self.harness.capabilities
        number_of_clients = CLIENTS if notifies else POLLING_CLIENTS
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(self.store.connect())
                for _ in range(number_of_clients)
            ]
            first = await self.actors.enters(self.locks.mutex("order", 1), "first")
            waiting = [
                await self.actors.queues(each.mutex("order", 1), f"{number}")
                for number, each in enumerate(clients)
            ]
            for leaves, enters in pairwise((first, *waiting)):
                await leaves.hand_over_to(enters)
            await waiting[-1].leave()
            names = [f"{number}" for number in range(number_of_clients)]
            assert self.actors.order == ["first", *names]
            fences = [(await actor.inside()).fence for actor in waiting]
            assert fences == sorted(set(fences))
            readers = [
                await self.actors.asks(each.rwlock("order", 1).reader)
                for each in clients
            ]
            assert len({(await reader.inside()).fence for reader in readers}) == 1
            shown = await self.locks.mutex("order", 1).info()
            assert len(shown.holders) == number_of_clients
            await self.actors.finish()

    async def test_a_thousand_acquires_of_twenty_names(self, tmp_path: Path) -> None:
        """Tasks of two processes acquire locks in random modes and order."""
        verdict = await random_visits(
            (self.locks, self.others), tmp_path, names=20, tasks=10, visits=50
        )
        assert verdict.violations == ()
        for number in range(20):
            await self.actors.nothing_left(self.locks.mutex("random", number))
