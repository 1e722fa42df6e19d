"""When the keeper looks at what it watches over, by a clock that stands still."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import pytest

from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Renewal, RenewerBase
from aiorwlock_remote.runtime.lease import Lease, LeaseState, LeaseTerms
from aiorwlock_remote.runtime.lease_keeper import (
    RENEWAL_IN_FLIGHT,
    LeaseKeeper,
    RenewalWorker,
)
from tests.fixed_clock import StandingClock
from tests.runtime.leases import leased


@dataclass
class Loop:
    """It is asked whether it is alive; ``asked``: how often."""

    clock: StandingClock = field(default_factory=StandingClock)
    asked: int = 0
    ended: bool = False

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        function(*args)
        self.asked += 1

    def is_closed(self) -> bool:
        return self.ended


def no_store() -> RenewerBase:
    raise AssertionError("there is nothing to renew")


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def keeper(loop: Loop) -> Iterator[LeaseKeeper]:
    keeper = LeaseKeeper(no_store, loop)
    yield keeper
    thread = keeper.close()
    if thread is not None:
        thread.join()


def looked(keeper: LeaseKeeper, clock: StandingClock) -> None:
    """It has seen to all that is due by now, as to one that ends now."""
    ends, lost = leased(LeaseTerms(None, max_hold=0.0), clock), threading.Event()
    ends.on_loss = lambda _: lost.set()
    keeper.ready(ends.terms)
    keeper.add(ends)
    assert lost.wait(30)


def watched(keeper: LeaseKeeper, clock: StandingClock) -> Lease:
    """Lost if the loop hangs for ten seconds."""
    lease = leased(LeaseTerms(None, max_stall=10.0), clock)
    keeper.add(lease)
    return lease


def test_a_loop_is_asked_twice_in_the_time_it_may_hang(
    loop: Loop, keeper: LeaseKeeper
) -> None:
    """No sooner: a thread that asks on and on would take the processor."""
    lease = watched(keeper, loop.clock)
    loop.clock.seconds += 4.9
    looked(keeper, loop.clock)
    assert loop.asked == 0
    loop.clock.seconds += 0.2
    looked(keeper, loop.clock)
    assert loop.asked == 1
    assert lease.state is LeaseState.HELD


def test_leases_of_an_ended_loop_are_renewed_no_more(
    keeper: LeaseKeeper, loop: Loop
) -> None:
    """Nobody could release it."""
    lease, lost = leased(LeaseTerms(30.0), loop.clock), threading.Event()
    lease.on_loss = lambda _: lost.set()
    keeper.ready(lease.terms)
    keeper.add(lease)
    loop.ended = True
    loop.clock.seconds += 12.0
    looked(keeper, loop.clock)
    assert lost.wait(30)
    assert lease.reason == "expired"


@dataclass
class Noting(RenewerBase):
    """Renews all, and notes the leases in the order in which they were asked for."""

    leases: list[int | None] = field(default_factory=list[int | None])
    asked: threading.Event = field(default_factory=threading.Event)

    def renew(self, batch: Sequence[Renewal], timeout: float) -> Sequence[Grant]:
        del timeout
        self.leases += [item.lease for item in batch]
        self.asked.set()
        return [Grant(item.ticket, Mode.WRITE, 1, 0, None) for item in batch]


def test_the_lease_with_the_least_time_left_is_renewed_first(loop: Loop) -> None:
    noting = Noting()
    renewing = RenewalWorker(lambda: noting, loop.clock, lambda _: None)
    renewing.renew([leased(LeaseTerms(float(n)), loop.clock) for n in (30, 3, 10)])
    assert noting.asked.wait(30)
    renewing.close()
    assert noting.leases == [3_000_000, 10_000_000, 30_000_000]


class Away(RenewerBase):
    """Renews nothing."""

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | Exception]:
        del timeout
        return [BackendUnavailable(what="away") for _ in batch]


def test_retries_come_closer_together_towards_the_deadline(loop: Loop) -> None:
    """However long the pause that the number of failures asks for: the last try is in
    the last part of the lease.
    """
    tried: SimpleQueue[Lease] = SimpleQueue()
    renewing = RenewalWorker(Away, loop.clock, tried.put)
    lease, before = leased(LeaseTerms(3.0), loop.clock), 0.0
    assert lease.deadline is not None
    loop.clock.seconds = lease.renew_due
    for _ in range(12):
        before = loop.clock.seconds
        renewing.renew([lease])
        while tried.get(timeout=30).renew_due == RENEWAL_IN_FLIGHT:
            pass
        assert before < lease.renew_due < lease.deadline
        loop.clock.seconds = lease.renew_due
    renewing.close()
    assert lease.deadline - before < 0.3
