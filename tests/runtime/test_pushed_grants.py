"""A grant that came by a message: its lease, its confirmation, and closing."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

import anyio
import pytest

from aiorwlock_remote import Closed, Locks
from aiorwlock_remote.core.commands import Acquire, Command, Release, Withdraw
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.runtime.lease import Lease, LeaseState, LeaseTerms
from aiorwlock_remote.runtime.lease_keeper import _gather, _is_late
from aiorwlock_remote.runtime.wait_queue import WaitQueueRegistry
from aiorwlock_remote.testing.conformance.actors import TaskActors, wait_until
from aiorwlock_remote.testing.faults import Fate, FaultyLink, Tell
from aiorwlock_remote.testing.memory import FaultyMemory
from tests.fixed_clock import StandingClock

WINDOW = 1.0
PATIENCE = 30


@pytest.fixture
def store() -> FaultyMemory:
    return FaultyMemory(poll_policy=PollPolicy(claim_window=WINDOW, pushes=True))


@pytest.fixture
async def locks(store: FaultyMemory) -> AsyncIterator[Locks]:
    async with store.connect() as locks:
        yield locks


def pushed_lease(terms: LeaseTerms, clock: StandingClock) -> Lease:
    """Return the lease of a grant that ends in 0.3 s unless it is confirmed."""
    grant = Grant("ticket", Mode.WRITE, 7, 1, 2)
    now = clock.now()
    return Lease(resource("order", 1), grant, terms, now, clock, now + 0.3)


def cut(command: Command) -> Fate:
    """Refuse confirmations."""
    confirms = isinstance(command, Acquire) and command.confirms
    return Fate.REFUSE if confirms else Fate.PASS


@pytest.mark.anyio
async def test_a_claim_missed_by_a_blocked_loop_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The message was read after its window, and another process is inside."""
    store = FaultyMemory(poll_policy=PollPolicy(claim_window=0.05, pushes=True))
    blocked: list[WaitQueueRegistry] = []
    unread: list[tuple[object, ...]] = []
    wake: Callable[..., None] = WaitQueueRegistry.wake

    def read(registry: WaitQueueRegistry, *args: object) -> None:
        if registry in blocked:
            unread.append(args)
        else:
            wake(registry, *args)

    monkeypatch.setattr(WaitQueueRegistry, "wake", read)
    async with store.connect() as locks, store.connect() as others:
        queues, lock = locks._session.client.queues, others.mutex("order", 1)
        async with anyio.create_task_group() as tasks:
            held = await lock.acquire()
            tasks.start_soon(locks.mutex("order", 1).acquire)
            queue = queues.queue(resource("order", 1))
            await wait_until(lambda: queue._watched, PATIENCE)
            blocked.append(queues)
            await held.release()
            held = await lock.acquire()
            assert any(isinstance(each[-1], PushedGrant) for each in unread)
            blocked.clear()
            with caplog.at_level(logging.DEBUG, logger="aiorwlock_remote.acquire"):
                for each in unread:
                    wake(queues, *each)
                await wait_until(lambda: "refused" in caplog.text, PATIENCE)
            tasks.cancel_scope.cancel()
        (missed,) = [r for r in caplog.records if "claim_missed" in str(r.msg)]
        assert getattr(missed, "seconds", 0) > 0.05
        await held.release()


async def free(others: Locks) -> None:
    """Fail unless nobody holds the lock or waits for it."""
    held = await others.mutex("order", 1).try_acquire()
    assert held is not None
    await held.release()


class TestLease:
    @pytest.mark.parametrize("keep", [True, False])
    def test_a_pushed_lease_ends_unless_it_is_confirmed(self, keep: bool) -> None:
        clock = StandingClock()
        lease = pushed_lease(LeaseTerms(30.0, keep=keep), clock)
        since = clock.now()
        assert lease.deadline == pytest.approx(since + 0.3)
        assert lease.renew_due == pytest.approx(since + 0.1)
        lease.renewed(since + 0.01, 30.0)
        assert lease.deadline == pytest.approx(since + 30.01 - 0.3)
        assert lease.renew_due == (since + 10.01 if keep else float("inf"))
        unconfirmed = pushed_lease(LeaseTerms(30.0, keep=keep), clock)
        clock.seconds += 0.3
        assert unconfirmed.expired()
        assert not lease.expired()

    def test_a_confirmation_that_comes_too_late_revives_nothing(self) -> None:
        clock = StandingClock()
        lease = pushed_lease(LeaseTerms(30.0), clock)
        clock.seconds += 0.3
        assert lease.expired()
        lease.renewed(clock.now(), 30.0)
        assert lease.state is LeaseState.LOST

    def test_its_first_renewal_waits_for_no_batch_and_delays_no_acquire(self) -> None:
        clock = StandingClock()
        lease = pushed_lease(LeaseTerms(30.0), clock)
        due = lease.renew_due
        _gather(lease, 0.5)
        assert lease.renew_due == due
        assert not _is_late(lease, clock.now())
        lease.renewed(clock.now(), 30.0)
        _gather(lease, 0.5)
        assert lease.renew_due < clock.now() + 10.0
        assert _is_late(lease, clock.now() + 20.0)


@pytest.mark.anyio
class TestEntering:
    async def test_a_lost_confirmation(self, store: FaultyMemory, locks: Locks) -> None:
        """The keeper's renewal is the second chance."""
        async with store.connect_rival() as others:
            held = await others.mutex("order", 1).acquire()
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    async with locks.mutex("order", 1) as mine:
                        store.link.fate = lambda _: Fate.PASS
                        await anyio.sleep(WINDOW)
                        mine.check()
                        entered.set()

                entered = anyio.Event()
                tasks.start_soon(wait)
                await wait_until(lambda: bool(store.link.sent), 10)
                store.link.fate = cut
                await held.release()
                with anyio.fail_after(30):
                    await entered.wait()
        assert locks.statistics().wakeups["pushed"] == 1
        assert locks.statistics().renewals_sent >= 1

    @pytest.mark.parametrize("inside", [False, True])
    async def test_a_refused_confirmation(self, inside: bool) -> None:
        """A task that has not run yet asks again, one that is inside has lost it."""
        store = FaultyMemory(poll_policy=PollPolicy(claim_window=600.0, pushes=True))
        late: list[Callable[[], object]] = []

        def hear(pushed: PushedGrant | None, tell: Tell) -> None:
            if pushed is None:
                tell(None)
            else:
                late.append(partial(tell, pushed))

        store.link.hear = hear
        async with (
            store.connect(lease=900.0) as locks,
            store.connect_rival() as near,
            anyio.create_task_group() as tasks,
        ):
            actors = TaskActors(tasks, PATIENCE)
            lock, other = locks.mutex("order", 1), near.mutex("order", 1)
            first = await actors.enters(other)
            actor = await actors.queues(lock)
            await first.leave()
            await actors.until(lambda: len(late) > 0)
            await near.force_release(await other.info(), reason="a test")
            store.link.hold_back = inside
            late[0]()
            held = await actor.inside()
            if inside:
                assert held.valid
                store.link.let_through()
                await actors.until(lambda: held.lost is not None)
            else:
                (holder,) = (await other.info()).holders
                assert held.fence == holder.fence
            await actors.finish()

    @pytest.mark.parametrize("margin", [0.05, WINDOW])
    async def test_the_users_margin(
        self, store: FaultyMemory, locks: Locks, margin: float
    ) -> None:
        """A message is not believed if nothing of its grant would be left."""
        async with store.connect_rival() as others:
            held = await others.mutex("order", 1).acquire()
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    async with locks.mutex("order", 1, margin=margin):
                        pass

                tasks.start_soon(wait)
                await wait_until(lambda: bool(store.link.sent), 10)
                await held.release()
        assert locks.statistics().wakeups["pushed"] == (margin < WINDOW)

    async def test_the_confirmation_precedes_the_release(
        self, store: FaultyMemory, locks: Locks
    ) -> None:
        """On one connection, so that nothing is left by a body of no time."""
        async with store.connect_rival() as others:
            held = await others.mutex("order", 1).acquire()
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    async with locks.mutex("order", 1):
                        pass

                tasks.start_soon(wait)
                await wait_until(lambda: bool(store.link.sent), 10)
                store.link.hold_back = True
                await held.release()
                await wait_until(lambda: len(store.link.sent) == 3, 10)
                store.link.let_through()
            _, confirmation, release = store.link.sent
            assert isinstance(confirmation, Acquire)
            assert confirmation.confirms
            assert isinstance(release, Release)
            assert not (await others.mutex("order", 1).info()).locked

    async def test_closed_between_message_and_entry(
        self, store: FaultyMemory, locks: Locks
    ) -> None:
        """The task gets ``Closed``, and its grant is given back."""
        kept: list[tuple[PushedGrant | None, Tell]] = []
        store.link.hear = lambda pushed, tell: kept.append((pushed, tell))
        errors: list[Closed] = []
        async with store.connect_rival() as others:
            held = await others.mutex("order", 1).acquire()
            async with anyio.create_task_group() as tasks:

                async def wait() -> None:
                    try:
                        async with locks.mutex("order", 1):
                            raise AssertionError
                    except Closed as exc:
                        errors.append(exc)

                tasks.start_soon(wait)
                await wait_until(lambda: bool(store.link.sent), 10)
                await held.release()
                await wait_until(lambda: bool(kept), 10)
                message, tell = kept[0]
                tell(message)
                await locks.aclose()
            assert len(errors) == 1
            kinds = [type(command) for command in store.link.sent]
            assert kinds == [Acquire, Acquire, Release]
            await free(others)

    async def test_a_message_for_a_waiter_that_left(
        self, store: FaultyMemory, locks: Locks
    ) -> None:
        """Its withdrawal has its ticket, and gives back what was pushed."""
        store.link.hear = lambda *_: None
        async with store.connect_rival() as others:
            held = await others.mutex("order", 1).acquire()
            with anyio.move_on_after(0.1):
                await locks.mutex("order", 1).acquire()
            await held.release()
            (acquire, withdraw) = store.link.sent
            assert isinstance(acquire, Acquire)
            assert isinstance(withdraw, Withdraw)
            assert withdraw.tickets == (acquire.claims[0].ticket,)
            await free(others)


def test_a_link_passes_wake_ups_as_they_are() -> None:
    heard: list[object] = []
    link = FaultyLink()
    wake = link.hearing(lambda *what: heard.append(what))
    wake(resource("order", 1), 0.0)
    message = PushedGrant(1, 2, 3, "")
    wake(resource("order", 1), 0.0, message)
    assert heard == [
        (resource("order", 1), 0.0, None),
        (resource("order", 1), 0.0, message),
    ]
