"""Cases: a message of the store lets a waiting writer in, and only while it is true."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held, LockLost, Locks
from aiorwlock_remote.core.commands import Acquire, Command
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.ports import Capability
from aiorwlock_remote.testing.conformance.actors import TaskActor
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.faults import Fate, FaultyLink, Tell

LOOP_TURNS = 20
"""Turns of the loop in which a task enters if a message lets it in."""


def cut_confirmations(command: Command) -> Fate:
    """Refuse the requests that confirm a pushed grant; the others pass."""
    confirms = isinstance(command, Acquire) and command.confirms
    return Fate.REFUSE if confirms else Fate.PASS


def window_of(message: PushedGrant) -> float:
    """Return for how many seconds the grant of a message lasts unless confirmed."""
    return (message.expires - message.since) / 1e6


@dataclass
class Messages:
    """The wake-ups of one client, kept until a case passes them on."""

    link: FaultyLink
    kept: list[PushedGrant] = field(default_factory=list[PushedGrant])
    tell: Tell = lambda _: None

    def keep(self) -> None:
        """Keep all wake-ups from now on."""
        self.link.hear = self._keep

    def pass_on(self) -> None:
        """Let wake-ups pass from now on, and wake the client once."""
        self.link.hear = None
        self.tell(None)

    def only_one(self) -> PushedGrant:
        """Return the one grant of all messages; who polls may see it twice."""
        (message,) = set(self.kept)
        return message

    def _keep(self, message: PushedGrant | None, tell: Tell) -> None:
        self.tell = tell
        if message is not None:
            self.kept.append(message)


class ListeningCases(Cases):
    """Base of cases with a client whose messages can be kept, and sent again."""

    needs = Capability.PUSHES

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[tuple[Locks, FaultyLink, Messages]]:
        link = FaultyLink()
        async with self.store.connect(link=link) as locks:
            await self._listens(locks)
            yield locks, link, Messages(link)

    async def _listens(self, locks: Locks) -> None:
        # A store may begin to listen when the first task waits.
        async def is_pushed() -> bool:
            lock, theirs = locks.mutex("warm", 1), self.others.mutex("warm", 1)
            first = await self.actors.enters(theirs)
            second = await self.actors.queues(lock)
            await first.hand_over_to(second)
            await second.leave()
            return locks.statistics().wakeups["pushed"] > 0

        await self.actors.until(is_pushed)

    async def _three(self, locks: Locks) -> tuple[TaskActor, TaskActor, TaskActor]:
        """Return a holder, and two waiters in order; the first one is of ``locks``."""
        first = await self.actors.enters(self.others.mutex("order", 1))
        second = await self.actors.queues(locks.mutex("order", 1))
        third = await self.actors.queues(self.locks.mutex("order", 1))
        return first, second, third

    async def _first_of(self, messages: Messages) -> PushedGrant:
        await self.actors.until(lambda: bool(messages.kept))
        return messages.kept[0]

    async def _holds(self, held: Held) -> None:
        (holder,) = (await self.others.mutex("order", 1).info()).holders
        assert holder.fence == held.fence
        assert self.lease_left(holder) > 0

    async def _some_turns(self) -> None:
        for _ in range(LOOP_TURNS):
            await checkpoint()


class PushedCases(ListeningCases):
    """A writer that waits in another process enters by the message of its grant."""

    async def test_a_message_lets_the_waiter_in(self) -> None:
        """The waiter enters before the store has replied to any request of it."""
        async with self._client() as (locks, link, _):
            first = await self.actors.enters(self.others.mutex("order", 1))
            fence = (await first.inside()).fence
            second = await self.actors.queues(locks.mutex("order", 1))
            link.hold_back = True
            await first.leave()
            held = await second.inside()
            assert link.held_back == 1, "the confirmation, not awaited"
            link.let_through()
            assert held.fence > fence
            shown = await self.others.mutex("order", 1).info()
            assert [holder.fence for holder in shown.holders] == [held.fence]
            # Past the claim window: the reply has extended the lease.
            command = link.sent[-1]
            assert isinstance(command, Acquire)
            assert command.confirms
            await anyio.sleep(command.claim_window / 1e6)
            held.check()
            assert await self.others.mutex("order", 1).try_acquire() is None
            await second.leave()
            await self.take_at_once(self.others.mutex("order", 1))

    async def test_order_and_fences(self) -> None:
        """Processes take turns by pushed grants, under rising fences."""
        async with self._client() as (third, _, __):
            clients = {"a": self.locks, "b": third, "c": self.others}
            before = third.statistics().wakeups["pushed"]
            actors = [await self.actors.enters(self.locks.mutex("order", 1), "first")]
            for name in ("a1", "b1", "c1", "a2", "b2", "c2"):
                lock = clients[name[0]].mutex("order", 1)
                comes = self.actors.queues if name[1] == "1" else self.actors.asks
                actors.append(await comes(lock, name))
            await self.actors.finish()
            fences = [(await actor.inside()).fence for actor in actors]
            after = third.statistics().wakeups["pushed"]
        order = ["first", "a1", "b1", "c1", "a2", "b2", "c2"]
        assert self.actors.order[-len(order) :] == order
        assert fences == sorted(set(fences))
        assert after > before

    async def test_a_waiter_that_is_stopped_after_its_message(self) -> None:
        """The loop hangs past the claim window before the task has run."""
        async with self._client() as (locks, link, _):
            first, second, third = await self._three(locks)
            link.fate = cut_confirmations
            link.renewals_fail = True

            def stop(message: PushedGrant | None, tell: Tell) -> None:
                tell(message)
                if message is not None:
                    link.hear = None
                    time.sleep(window_of(message))

            link.hear = stop
            await first.leave()
            await self.actors.until(lambda: not (second.waits and third.waits))
            link.fate = lambda _: Fate.PASS
            link.renewals_fail = False
            # Who asks first: the stopped one kept its place.
            inside, waits = (second, third) if third.waits else (third, second)
            held = await inside.inside()
            assert waits.waits
            await self._holds(held)
            await inside.hand_over_to(waits)

    async def test_a_holder_whose_confirmation_is_cut(self) -> None:
        """The body is cancelled by ``LockLost`` before another waiter enters."""
        async with self._client() as (locks, link, _):
            first, second, third = await self._three(locks)
            link.fate = cut_confirmations
            link.renewals_fail = True
            await first.leave()
            held = await second.inside()
            await third.inside()
            assert not held.valid
            assert isinstance(await second.gone(), LockLost)

    async def test_a_renewal_confirms(self) -> None:
        """If the confirmation is lost, the renewal in the background extends the
        grant.
        """
        async with self._client() as (locks, link, messages):
            first, second, third = await self._three(locks)
            link.fate = cut_confirmations
            messages.keep()
            await first.leave()
            message = await self._first_of(messages)
            messages.tell(message)
            held = await second.inside()
            await anyio.sleep(window_of(message))
            held.check()
            assert third.waits
            await self._holds(held)
            link.fate = lambda _: Fate.PASS
            messages.pass_on()
            await second.hand_over_to(third)

    async def test_a_withdrawal_races_the_message(self) -> None:
        """The message of a waiter that left lets no other waiter of the process in."""
        async with self._client() as (locks, link, messages):
            first = await self.actors.enters(self.others.mutex("order", 1))
            second = await self.actors.queues(locks.mutex("order", 1))
            next_one = await self.actors.asks(locks.mutex("order", 1))
            messages.keep()
            await first.leave()
            await self.actors.until(lambda: bool(messages.kept))
            link.hold_back = True
            second.scope.cancel()
            await second.gone()
            message = messages.only_one()
            messages.tell(message)
            await self._some_turns()
            assert next_one.waits
            link.let_through()
            messages.pass_on()
            await next_one.inside()

    async def test_a_release_at_once(self) -> None:
        """A body of no time: the release follows the confirmation and ends it."""
        async with self._client() as (locks, link, _):
            for number in range(3):
                first = await self.actors.enters(self.others.mutex("order", number))
                second = await self.actors.queues(locks.mutex("order", number))
                second.may_leave()
                link.sent.clear()
                await first.leave()
                await second.gone()
                kinds = [type(command).__name__ for command in link.sent]
                assert kinds == ["Acquire", "Release"]
                await self.actors.nothing_left(self.others.mutex("order", number))

    @pytest.mark.parametrize("turns", range(6))
    async def test_cancelled_between_message_and_entry(self, turns: int) -> None:
        """Whenever the waiter is cancelled, nothing of it is left."""
        async with self._client() as (locks, _, messages):
            first = await self.actors.enters(self.others.mutex("order", 1))
            second = await self.actors.queues(locks.mutex("order", 1))
            messages.keep()
            await first.leave()
            message = await self._first_of(messages)
            messages.tell(message)
            for _ in range(turns):
                await checkpoint()
            second.scope.cancel()
            await second.gone()
            await self.actors.nothing_left(self.others.mutex("order", 1))
            await self.take_at_once(self.others.mutex("order", 1))


class ForeignPushedCases(ListeningCases):
    """Another program writes the mutex record before a pushed grant is confirmed."""

    foreign = True

    async def test_a_thief_before_the_confirmation(self) -> None:
        """The holder, who entered by the message, loses it; the record stays."""
        name = "order", 1
        async with self._client() as (locks, link, messages):
            first = await self.actors.enters(self.others.mutex(*name))
            second = await self.actors.queues(locks.mutex(*name))
            messages.keep()
            await first.leave()
            message = await self._first_of(messages)
            self.store.foreigner.put(name, "thief")
            link.hold_back = True
            messages.tell(message)
            await second.inside()
            link.let_through()
            error = await second.gone()
            assert isinstance(error, LockLost)
            assert error.reason == "stolen"
            assert await self.others.mutex(*name).try_acquire() is None
            assert self.store.foreigner.free(name, "thief")
            await self.take_at_once(self.others.mutex(*name))
