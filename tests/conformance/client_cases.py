"""Cases of the client alone: what no store can break, so that one store is enough.

They run where the suites of ``test_client.py`` and of ``tests/sync`` name them.
"""

from __future__ import annotations

import gc
import logging
import re
import time
import warnings
from datetime import UTC, datetime, timedelta
from functools import partial
from os import getpid
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import (
    Closed,
    ConfigurationError,
    Held,
    LockLost,
    Locks,
    LockTimeout,
    NotOwner,
    TooManyWaiters,
    WouldDeadlock,
)
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.testing.conformance.cases.base import Cases, Loop
from aiorwlock_remote.testing.conformance.cases.permits import api
from aiorwlock_remote.testing.conformance.cases.published import (
    KINDS,
    acquire,
    release,
)
from aiorwlock_remote.testing.conformance.cases.pushed import ListeningCases
from aiorwlock_remote.testing.conformance.harness import MODES, lock_of
from aiorwlock_remote.testing.faults import FaultyLink
from tests.conformance.bad_input_cases import BadInputCases
from tests.conformance.multi_cases import MultiCases

BAD_TICKETS = ("", "readers", "a,b", "line\nbreak", "nul\0", "x" * 201, 7, None)


async def every_use(locks: Locks) -> list[str]:
    """Try each way to use a ``Locks``; return the reasons of the ``Closed`` errors."""
    lock, rw = locks.mutex("order", 1), locks.rwlock("order", 2)
    reasons: list[str] = []
    for use in (
        lock.acquire,
        lock.try_acquire,
        lock.locked,
        rw.info,
        rw.reader.__aenter__,
        lambda: locks.multi(lock, rw.writer).__aenter__(),
        lambda: anext(locks.list()),
        lambda: lock.acquire(timeout=0),
        lambda: locks.acquire_writer_lock("order", 3, "gluww"),
        lambda: locks.release_mutex_lock("order", 3, "gluww"),
    ):
        with pytest.raises(Closed) as caught:
            await use()
        reasons.append(caught.value.reason)
    return reasons


class ClientCases(Cases):
    """Promises that a client keeps whatever its store is."""

    async def test_a_timeout_lets_the_others_wait_on(self) -> None:
        """A waiter that times out removes only itself from the queue."""
        first = await self.actors.enters(self.locks.mutex("order", 1), "first")
        timeout = 2 * self.harness.answers_in
        lock = self.others.mutex("order", 1)
        hasty = await self.actors.queues(lock, "hasty", timeout=timeout)
        patient = await self.actors.asks(self.others.mutex("order", 1), "patient")
        assert isinstance(await hasty.gone(), LockTimeout)
        assert patient.waits
        await first.hand_over_to(patient)
        await self.actors.queue_has(self.locks.mutex("order", 1), 0)
        assert self.actors.order == ["first", "patient"]

    async def test_the_others_wait_on(self) -> None:
        """Waiters that are not cancelled keep their order."""
        await self.actors.enters(self.locks.mutex("order", 1), "first")
        lock = self.others.mutex("order", 1)
        waiting = [await self.actors.queues(lock, "0")]
        waiting += [await self.actors.asks(lock, f"{n}") for n in range(1, 6)]
        for number in (0, 3, 5):
            waiting[number].scope.cancel()
            await waiting[number].gone()
        await self.actors.finish()
        assert self.actors.order == ["first", "1", "2", "4"]

    async def test_max_hold(self) -> None:
        """A grant ends after ``max_hold`` seconds, however often it is renewed."""
        lock = self.locks.mutex("order", 1, lease=30, max_hold=self.harness.short)
        first = await self.actors.enters(lock)
        waiting = await self.actors.asks(self.others.mutex("order", 1))
        error = await first.gone()
        assert isinstance(error, LockLost)
        assert error.reason == "stalled"
        await waiting.inside()

    async def test_held_describes_the_grant(self) -> None:
        """A ``Held`` shows its resource, mode, fence, holder id and times."""
        before = datetime.now(UTC) - timedelta(seconds=1)
        async with self.locks.mutex("order", 42, lease=30).acquire(
            reason="refund"
        ) as held:
            assert held.fence > 0
            assert (held.mode, held.resource) == ("write", "order/42")
            assert len(held.holder) == 12
            assert int(held.holder, 16) >= 0
            assert before <= held.acquired_at <= datetime.now(UTC)
            assert 0 < self.lease_left(held) < 30
            assert held.lost is None
            assert bool(held)
            held.check()

    async def test_release_is_idempotent(self) -> None:
        """A second ``release`` returns False, and spares any later holder."""
        held = await self.locks.mutex("order", 42).acquire()
        assert await held.release() is True
        async with self.others.mutex("order", 42) as theirs:
            assert await held.release() is False
            assert await self.locks.mutex("order", 42).try_acquire() is None
            theirs.check()

    async def test_released_inside_the_body(self) -> None:
        """The body of ``async with`` may release its lock early."""
        async with self.locks.mutex("order", 42).acquire() as held:
            assert await held.release() is True
        assert not await self.locks.mutex("order", 42).locked()

    async def test_several_resources_at_once(self) -> None:
        """One task may hold locks of several resources."""
        async with self.locks.mutex("order", 1), self.locks.mutex("order", 2) as second:
            assert await self.locks.mutex("order", 1).locked()
            second.check()
        assert [d async for d in self.locks.list()] == []

    async def test_a_released_grant_is_refused(self) -> None:
        """``check``, ``extend``, ``detach`` of a released grant raise ``NotOwner``."""
        held = await self.locks.mutex("order", 42).acquire()
        await held.release()
        await self.all_raise(NotOwner, held.check, held.extend, held.detach)
        assert held.expires_in == 0.0

    async def test_leaving_without_entering(self) -> None:
        """``__aexit__`` without ``__aenter__`` raises ``NotOwner``."""
        with pytest.raises(NotOwner):
            await self.locks.mutex("order", 42).__aexit__(None, None, None)

    @pytest.mark.parametrize("again", MODES)
    @pytest.mark.parametrize("held", MODES)
    async def test_not_reentrant(self, held: str, again: str) -> None:
        """Acquiring a lock that the task holds raises ``WouldDeadlock`` without I/O."""
        async with lock_of(self.locks, held, ("order", 42)) as grant:
            lock = lock_of(self.locks, again, ("order", 42))
            with anyio.CancelScope() as scope:
                # Any await in the acquire would raise the cancellation instead.
                scope.cancel()
                with pytest.raises(WouldDeadlock) as caught:
                    await lock.acquire()
                with pytest.raises(WouldDeadlock):
                    await lock.try_acquire()
            assert not scope.cancelled_caught
            assert caught.value.held_mode == grant.mode
            assert (await lock.info()).queue == ()
        await self.enter_and_leave(lock)

    async def test_one_lock_object_for_many_tasks(self) -> None:
        """Tasks may share one lock object; only one at a time holds it."""
        lock, inside, most, done = self.locks.mutex("order", 42), 0, 0, 0

        async def work() -> None:
            nonlocal inside, most, done
            async with lock:
                inside += 1
                most = max(most, inside)
                await anyio.lowlevel.checkpoint()
                inside -= 1
                done += 1

        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(work)
        assert (most, done) == (1, 10)

    async def test_both_spellings(self) -> None:
        """``reader_lock`` and ``writer_lock`` (as in aiorwlock) are the same locks."""
        lock = self.locks.rwlock("c", 7)
        async with lock.reader_lock as held:
            assert held.mode == "read"
        async with lock.writer_lock as held:
            assert held.mode == "write"
            assert await self.others.rwlock("c", 7).reader_lock.try_acquire() is None

    async def test_a_dropped_grant_ends(self) -> None:
        """A ``Held`` that is garbage-collected warns, and ends with its lease."""

        async def drop() -> None:
            await self.locks.mutex("order", 1, lease=self.harness.short).acquire()
            gc.collect()

        with pytest.warns(ResourceWarning, match="dropped without release"):
            await drop()
        await self.enter_and_leave(self.others.mutex("order", 1))
        # The task that dropped it is not taken for its holder any more.
        await self.enter_and_leave(self.locks.mutex("order", 1))

    async def test_a_task_that_ended_without_release(self) -> None:
        """If a task ends inside ``async with``, its grant ends one lease later."""
        kept: list[Any] = []

        async def enter_and_end() -> None:
            entered = self.locks.mutex("order", 1, lease=self.harness.short).acquire()
            kept.append(entered)
            await entered.__aenter__()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(enter_and_end)
        # trio complains that a scope was left open.
        except* RuntimeError:
            pass
        await self.enter_and_leave(self.others.mutex("order", 1))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            kept.clear()
            gc.collect()

    async def test_own_error_goes_first(self) -> None:
        """An error raised in ``async with`` is never replaced by ``LockLost``."""
        lock = self.locks.mutex("order", 1, lease=None)
        with pytest.raises(ValueError, match="mine"):
            async with lock:
                await self.force(lock)
                raise ValueError("mine")

    @pytest.mark.usefixtures("renewed_often")
    async def test_own_error_while_cancelled(self) -> None:
        """An error that a body raises while a loss cancels the body propagates."""
        lock = self.locks.mutex("order", 1)
        with pytest.raises(ValueError, match="mine"):
            async with lock:
                await self.force(lock)
                try:
                    await anyio.sleep_forever()
                finally:
                    raise ValueError("mine")

    async def test_cancelled_from_outside_stays_cancelled(self) -> None:
        """A cancellation from outside propagates even if the grant is lost as well."""
        lock = self.locks.mutex("order", 1, lease=None)
        reached = False
        with anyio.CancelScope() as scope:
            async with lock:
                await self.force(lock)
                scope.cancel()
                await anyio.sleep_forever()
            reached = True
        assert scope.cancelled_caught
        assert not reached

    @pytest.mark.usefixtures("renewed_often")
    async def test_on_lost_flag(self) -> None:
        """With ``on_lost="flag"`` a loss sets ``held.lost``, and cancels nothing."""
        lock = self.locks.mutex("order", 1, on_lost="flag")
        async with lock as held:
            await self.force(lock)
            await self.actors.until(lambda: held.lost is not None)
            await checkpoint()
            assert held.lost == "forced"
            assert not held.valid
            with pytest.raises(LockLost):
                held.check()

    @pytest.mark.usefixtures("renewed_often")
    async def test_on_lost_callable(self) -> None:
        """A callback ``on_lost`` gets the lost ``Held`` once; no task is cancelled."""
        calls: list[Held] = []
        called = anyio.Event()

        def on_lost(held: Held) -> None:
            calls.append(held)
            called.set()

        lock = self.locks.mutex("order", 1, on_lost=on_lost)
        async with lock as held:
            await self.force(lock)
            await called.wait()
            await checkpoint()
        assert calls == [held]
        assert held.lost == "forced"

    @pytest.mark.usefixtures("renewed_often")
    async def test_guard_cancels_what_it_guards(self) -> None:
        """Upon a loss ``Held.guard`` cancels what it runs, and raises ``LockLost``."""
        lock = self.locks.mutex("order", 1)
        held = await lock.acquire()
        await self.force(lock)
        with pytest.raises(LockLost) as caught:
            await held.guard(anyio.sleep_forever())
        assert caught.value.reason == "forced"
        with pytest.raises(LockLost):
            await held.guard(checkpoint())

    async def test_guard_gives_the_result(self) -> None:
        """``Held.guard`` returns the result of what it runs, or raises the error."""

        async def work(error: Exception | None) -> int:
            await checkpoint()
            if error is not None:
                raise error
            return 42

        async with self.locks.mutex("order", 1) as held:
            assert await held.guard(work(None)) == 42
            with pytest.raises(ValueError, match="mine"):
                await held.guard(work(ValueError("mine")))
            held.check()

    async def test_max_stall(self) -> None:
        """A grant is lost if its event loop hangs for longer than ``max_stall``."""
        lock = self.locks.mutex("order", 1, lease=30, max_stall=0.2)
        with pytest.raises(LockLost) as caught:
            async with lock:
                time.sleep(0.5)  # noqa: ASYNC251 - the stall
                await anyio.sleep_forever()
        assert caught.value.reason == "stalled"

    async def test_max_waiters_in_a_process(self) -> None:
        """A waiter beyond ``max_waiters`` gets ``TooManyWaiters``; the others stay."""
        lock = self.locks.mutex("order", 1, max_waiters=2)
        first = await self.actors.enters(self.others.mutex("order", 1))
        waiting = [await self.actors.queues(lock), await self.actors.asks(lock)]
        with pytest.raises(TooManyWaiters) as caught:
            await lock.acquire()
        assert (caught.value.limit, caught.value.resource) == (2, "order/1")
        assert await lock.try_acquire() is None
        await first.leave()
        for actor in waiting:
            await actor.inside()
            await actor.leave()

    async def test_slow_wait_says_who_is_in_the_way(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """After ``slow_wait`` seconds the log names the holder; the wait continues."""
        lock = self.locks.mutex("order", 1, slow_wait=self.harness.answers_in)
        with caplog.at_level(logging.WARNING, logger="aiorwlock_remote.acquire"):
            first = await self.actors.enters(
                self.others.mutex("order", 1), reason="refund"
            )
            other = await self.actors.queues(self.others.mutex("order", 1))
            waiting = await self.actors.queues(lock)
            line = re.compile(
                r"waited \S+ s for order/1 \(write\), "
                rf"held \d+ s by \S+ pid {getpid()}: refund; 2nd in queue"
            )
            await self.actors.until(lambda: line.search(caplog.text) is not None)
            assert waiting.waits
            await first.hand_over_to(other)
            await other.hand_over_to(waiting)

    async def test_fifty_tasks_in_order(self) -> None:
        """Tasks of one process enter in the order in which they asked."""
        names = [f"task {number}" for number in range(50)]
        first = await self.actors.enters(self.locks.mutex("order", 1), "first")
        for name in names:
            actor = await self.actors.asks(self.locks.mutex("order", 1), name)
            actor.may_leave()
        await first.leave()
        await self.actors.finish()
        assert self.actors.order == ["first", *names]

    async def test_readers_and_writers_in_the_order_of_arrival(self) -> None:
        """On a free lock a writer enters after the readers that asked before it, and
        before those that asked after it, however late the replies come.
        """
        link = FaultyLink(hold_back=True)
        async with self.store.connect(link=link) as locks:
            lock = locks.rwlock("c", 1)
            first = await self.actors.asks(lock.reader, "r1")
            await self.actors.until(lambda: link.held_back > 0)
            second = await self.actors.asks(lock.reader, "r2")
            writer = await self.actors.asks(lock.writer, "w1")
            third = await self.actors.asks(lock.reader, "r3")
            link.let_through()
            for reader in (first, second):
                await reader.inside()
            await self.actors.queue_has(lock.reader, 2)
            await second.leave()
            await first.hand_over_to(writer)
            assert third.waits
            await writer.hand_over_to(third)
        # Two readers enter together: trio runs them in any order.
        assert sorted(self.actors.order[:2]) == ["r1", "r2"]
        assert self.actors.order[2:] == ["w1", "r3"]

    async def test_what_was_moved_is_over(self) -> None:
        """After a downgrade the old ``Held`` raises ``NotOwner``; the new is valid."""
        held = await self.locks.rwlock("c", 1).writer.acquire()
        moved = await held.downgrade()
        assert not held.valid
        await self.all_raise(NotOwner, held.check, held.release, held.downgrade)
        moved.check()
        assert await moved.release()
        assert not await self.locks.rwlock("c", 1).locked()

    async def test_wrong_modes(self) -> None:
        """Downgrading a reader or upgrading a writer: ``ConfigurationError``."""
        async with self.locks.rwlock("c", 1).reader as held:
            await self.all_raise(ConfigurationError, held.downgrade)
            held.check()
        async with self.locks.rwlock("c", 1).writer as held:
            await self.all_raise(ConfigurationError, held.upgrade, held.try_upgrade)
            held.check()

    async def test_leaving_releases_the_newest(self) -> None:
        """If its body up- or downgraded, ``async with`` releases the new grant."""
        lock = self.locks.rwlock("c", 1)
        async with lock.writer.acquire() as held:
            moved = await held.downgrade()
            assert await self.others.rwlock("c", 1).writer.try_acquire() is None
            moved.check()
        assert not await self.others.rwlock("c", 1).locked()
        async with lock.reader.acquire() as held:
            assert await held.try_upgrade() is not None
        assert not await self.others.rwlock("c", 1).locked()

    async def test_bad_tickets(self) -> None:
        """``adopt`` of what is no ticket of ``detach``: ``ConfigurationError``."""
        good = (await self.locks.mutex("order", 1).acquire()).detach()
        for bad in ("", "rwl1.", "nonsense", good[:-8], good[5:], "rwl9." + good[5:]):
            await self.all_raise(ConfigurationError, partial(self.locks.adopt, bad))
        await (await self.locks.adopt(good)).release()

    async def test_one_resource_twice(self) -> None:
        """``multi`` with no lock or a repeated one raises ``ConfigurationError``."""
        rw = self.locks.rwlock("o", 1)
        other = self.locks.mutex("o", 2)
        for pair in (
            (self.locks.mutex("o", 1), other, self.locks.mutex("o", "1")),
            (rw.reader, rw.writer),
            (other, rw.reader, rw.reader),
        ):
            with pytest.raises(ConfigurationError, match=r"o/1 twice"):
                await self.locks.multi(*pair)
        with pytest.raises(ConfigurationError, match="at least one"):
            await self.locks.multi()
        assert [d async for d in self.locks.list()] == []

    async def test_a_task_takes_one_permit(self) -> None:
        """A second one would wait for others that do the same."""
        async with api(self.locks):
            with pytest.raises(WouldDeadlock):
                await api(self.locks).acquire()

    async def test_bad_tickets_of_the_published_calls(self) -> None:
        """A ticket that a mutex record cannot contain raises ``ConfigurationError``."""
        bad: Any
        for bad in BAD_TICKETS:
            for kind in KINDS:
                for call in (acquire, release):
                    asked = partial(call, self.locks, kind, 1, bad)
                    await self.all_raise(ConfigurationError, asked)
        assert [d async for d in self.locks.list()] == []

    async def test_use_after_close(self) -> None:
        """Use of a closed ``Locks`` raises ``Closed``; another close does nothing."""
        locks = await self.store.connect()
        await locks.aclose()
        assert set(await every_use(locks)) == {"closed"}
        await locks.aclose()
        async with self.store.connect() as locks:
            pass
        assert set(await every_use(locks)) == {"closed"}

    async def test_another_loop(self, loop: Loop) -> None:
        """Use of a ``Locks`` from another event loop than its own raises ``Closed``."""
        name, options = loop

        def elsewhere() -> list[str]:
            return anyio.run(
                every_use, self.locks, backend=name, backend_options=options
            )

        reasons = await anyio.to_thread.run_sync(elsewhere)
        assert set(reasons) == {"other loop"}
        await self.enter_and_leave(self.locks.mutex("order", 1))

    async def test_force_release_is_audited(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """``force_release`` logs each released holder and the reason, but no ticket."""
        assert await self.locks.acquire_mutex_lock("order", 1, "gluww-secret")
        seen = await self.others.mutex("order", 1).info()
        with caplog.at_level(logging.WARNING, logger="aiorwlock_remote.audit"):
            await self.others.force_release(seen, reason="crashed deploy")
        (entry,) = [r for r in caplog.records if r.name == "aiorwlock_remote.audit"]
        assert entry.__dict__["reason"] == "crashed deploy"
        assert entry.__dict__["resource"] == "order/1"
        assert entry.__dict__["holder"] == seen.holders[0].holder
        assert "gluww-secret" not in repr(entry.__dict__)


class ClientPushedCases(ListeningCases):
    """A message lets a waiter in once, in time, and with the proof of the store."""

    async def test_a_late_message_lets_nobody_in(self) -> None:
        """After the claim window another waiter has the lock."""
        async with self._client() as (locks, link, messages):
            first, second, third = await self._three(locks)
            messages.keep()
            link.down = True
            await first.leave()
            await third.inside()
            message = messages.only_one()
            messages.tell(message)
            await self._some_turns()
            assert second.waits
            link.down = False
            messages.pass_on()
            await third.hand_over_to(second)

    async def test_a_doubled_message_lets_one_in(self) -> None:
        """A second copy is no news, neither at once nor for the next waiter."""
        async with self._client() as (locks, link, messages):
            first = await self.actors.enters(self.others.mutex("order", 1))
            second = await self.actors.queues(locks.mutex("order", 1))
            next_one = await self.actors.asks(locks.mutex("order", 1))
            third = await self.actors.queues(self.locks.mutex("order", 1))
            messages.keep()
            await first.leave()
            message = await self._first_of(messages)
            # The store would refuse the confirmation of a task that entered wrongly.
            link.hold_back = True
            messages.tell(message)
            messages.tell(message)
            await second.inside()
            await self._some_turns()
            assert next_one.waits
            link.let_through()
            await second.hand_over_to(third)
            link.hold_back = True
            messages.tell(message)
            await self._some_turns()
            assert next_one.waits
            link.let_through()
            messages.pass_on()
            await third.hand_over_to(next_one)

    @pytest.mark.parametrize("proof", ["none", "of an earlier message"])
    async def test_a_forged_message_lets_nobody_in(self, proof: str) -> None:
        """Anybody may publish on a channel; only who granted knows the ticket."""
        async with self._client() as (locks, link, messages):
            lock = locks.mutex("order", 1)
            first = await self.actors.enters(self.others.mutex("order", 1))
            second = await self.actors.queues(lock)
            messages.keep()
            await first.leave()
            message = await self._first_of(messages)
            messages.tell(message)
            await second.inside()
            await second.leave()
            third = await self.actors.enters(self.others.mutex("order", 1))
            waiting = await self.actors.queues(lock)
            forged = replace(message, expires=message.expires + 60_000_000)
            if proof == "none":
                forged = replace(forged, proof="0" * len(forged.proof))
            link.hold_back = True
            messages.tell(forged)
            await self._some_turns()
            assert waiting.waits
            link.let_through()
            messages.pass_on()
            await third.hand_over_to(waiting)


CLIENT_CASES: tuple[type[Cases], ...] = (
    *(BadInputCases, ClientCases, ClientPushedCases, MultiCases),
)
