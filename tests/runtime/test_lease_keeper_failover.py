"""Grants in doubt: another server has taken over, by a clock that stands still."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue

import pytest

from aiorwlock_remote.core.commands import NotHeld
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Renewal, RenewerBase
from aiorwlock_remote.runtime.lease import Lease, LeaseState, LeaseTerms
from aiorwlock_remote.runtime.lease_keeper import LeaseKeeper, RenewalWorker
from tests.fixed_clock import StandingClock
from tests.runtime.leases import leased
from tests.runtime.test_lease_keeper_checks import Loop


class Server(RenewerBase):
    """Renews what it knows; ``batches``: what it was asked for, by name."""

    def __init__(self) -> None:
        self.unknown: set[str] = set()
        self.batches: SimpleQueue[dict[str, int | None]] = SimpleQueue()
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens before it answers the next batch."""

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        assert timeout > 0
        self.batches.put({item.ticket: item.lease for item in batch})
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()
        return [
            NotHeld("expired")
            if item.ticket in self.unknown
            else Grant(item.ticket, Mode.WRITE, 1, 0, item.lease)
            for item in batch
        ]

    def renewed(self) -> dict[str, int | None]:
        """The next batch."""
        return self.batches.get(timeout=30)


class KeeperSetup:
    """A keeper, and the server that it renews at."""

    def __init__(self) -> None:
        self.server, self.loop = Server(), Loop()
        self.clock = self.loop.clock
        self.keeper = LeaseKeeper(lambda: self.server, self.loop)
        self.keeper.track_endless()

    def grants(self, ticket: str, terms: LeaseTerms, sent_at: float) -> Lease:
        """To a request of that time; it is kept from now on."""
        grant = Grant(ticket, Mode.WRITE, 1, 0, None)
        lease = Lease(resource("order", ticket), grant, terms, sent_at, self.clock)
        self.keeper.ready(terms)
        self.keeper.add(lease)
        return lease

    def fails_over(self) -> None:
        """A second after all that was before."""
        self.clock.seconds += 1
        self.keeper.renew_all()
        self.clock.seconds += 1

    def is_settled(self) -> None:
        """All renewals are reported: there is one batch after the other."""
        marker = self.grants("marker", LeaseTerms(30.0), self.clock.now() - 10)
        assert self.server.renewed() == {"marker": 30_000_000}
        marker.end(LeaseState.RELEASED)


@pytest.fixture
def setup() -> Iterator[KeeperSetup]:
    setup = KeeperSetup()
    yield setup
    thread = setup.keeper.close()
    if thread is not None:
        thread.join()


def test_all_grants_are_renewed_at_once_after_a_failover(setup: KeeperSetup) -> None:
    """Also what has no end; what is unknown is lost, long before it would be due."""
    now, lost = setup.clock.now(), threading.Event()
    setup.grants("leased", LeaseTerms(600.0), now)
    setup.grants("endless", LeaseTerms(None), now)
    setup.grants("by hand", LeaseTerms(600.0, keep=False), now)
    unknown = setup.grants("unknown", LeaseTerms(None), now)
    unknown.on_loss = lambda _: lost.set()
    setup.server.unknown = {"unknown"}
    setup.fails_over()
    asked = {"leased": 600_000_000, "endless": None, "unknown": None}
    assert setup.server.renewed() == asked
    assert lost.wait(30)
    assert (unknown.state, unknown.reason) == (LeaseState.LOST, "expired")


def test_endless_grants_are_renewed_at_each_failover(setup: KeeperSetup) -> None:
    """And at no other time; a released one not any more."""
    kept = setup.grants("kept", LeaseTerms(None), setup.clock.now())
    other = setup.grants("other", LeaseTerms(None), setup.clock.now())
    for _ in range(2):
        setup.fails_over()
        assert setup.server.renewed() == {"kept": None, "other": None}
        setup.is_settled()
    other.end(LeaseState.RELEASED)
    setup.fails_over()
    assert setup.server.renewed() == {"kept": None}
    assert kept.state is LeaseState.HELD


def test_a_grant_that_was_on_its_way_is_renewed_at_once(setup: KeeperSetup) -> None:
    """By the server before this one, perhaps; what was asked for later is not."""
    setup.fails_over()
    now = setup.clock.now()
    setup.grants("later", LeaseTerms(600.0), now)
    setup.grants("on its way", LeaseTerms(600.0), now - 1.5)
    assert setup.server.renewed() == {"on its way": 600_000_000}
    setup.grants("on its way, for ever", LeaseTerms(None), now - 1.5)
    assert setup.server.renewed() == {"on its way, for ever": None}


def test_a_renewal_that_was_under_way_counts_for_nothing(setup: KeeperSetup) -> None:
    """The server before this one may have carried it out."""
    setup.server.meanwhile = setup.fails_over
    lease = setup.grants("kept", LeaseTerms(6.0), setup.clock.now())
    setup.clock.seconds += 2
    setup.grants(
        "marker", LeaseTerms(None, max_hold=0.0), setup.clock.now()
    )  # it looks
    assert setup.server.renewed() == {"kept": 6_000_000}
    assert setup.server.renewed() == {"kept": 6_000_000}
    setup.is_settled()
    assert lease.state is LeaseState.HELD


def test_a_lease_that_the_thread_looks_at_is_renewed_as_well(
    setup: KeeperSetup,
) -> None:
    """It is in the thread's hands, and in no queue, when the server changes."""
    terms = LeaseTerms(600.0, max_stall=150.0)
    lease = setup.grants("kept", terms, setup.clock.now())
    lease.owner, fails_over = weakref.ref(setup), [setup.fails_over]

    def owner_gone(_: object) -> bool:
        if fails_over:
            fails_over.pop()()
        return False

    lease.owner_gone = owner_gone
    setup.clock.seconds += 100
    setup.grants("marker", LeaseTerms(None, max_hold=0.0), setup.clock.now())
    assert setup.server.renewed() == {"kept": 600_000_000}
    assert lease.state is LeaseState.HELD


def test_an_answer_to_an_older_request_is_asked_for_again() -> None:
    """Whoever plans the lease, after a renewal, for a third of it later."""
    clock, server = StandingClock(), Server()
    renewing = RenewalWorker(lambda: server, clock, lambda _: None)
    lease = leased(LeaseTerms(6.0), clock)

    def fails_over() -> None:
        clock.seconds += 1
        renewing.doubted_at = clock.now()

    server.meanwhile = fails_over
    renewing.renew([lease])
    server.renewed()
    renewing.close()
    assert lease.renew_due == clock.now()


def test_a_renewal_in_the_way_of_a_release_is_no_failure() -> None:
    """The store refuses it, as the release has locked the row; nothing is repeated."""
    clock = StandingClock()
    reports: list[tuple[str, int, Exception | None]] = []

    class Locked(Server):
        def renew(
            self, batch: Sequence[Renewal], timeout: float
        ) -> Sequence[Grant | NotHeld | Exception]:
            super().renew(batch, timeout)
            return [BackendUnavailable(what="locked")] * len(batch)

    server = Locked()
    renewing = RenewalWorker(lambda: server, clock, lambda _: None)
    renewing.on_renewals = lambda *each: reports.append(each)
    released, held = (leased(LeaseTerms(6.0), clock) for _ in range(2))
    server.meanwhile = lambda: released.end(LeaseState.RELEASED)
    renewing.renew([released, held])
    server.renewed()
    renewing.close()
    assert renewing.failed == 1
    assert [each[:2] for each in reports] == [("failed", 1)]


def test_one_error_of_many_renewals_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As of a connection that was lost after a part of a batch was answered."""
    clock = StandingClock()
    lost = BackendUnavailable(what="lost")
    reports = SimpleQueue[tuple[str, int, Exception | None]]()

    class Half(Server):
        def renew(
            self, batch: Sequence[Renewal], timeout: float
        ) -> Sequence[Grant | NotHeld | Exception]:
            first, *rest = super().renew(batch, timeout)
            return [first, *([lost] * len(rest))]

    server = Half()
    renewing = RenewalWorker(lambda: server, clock, lambda _: None)
    renewing.on_renewals = lambda *each: reports.put(each)
    leases = [leased(LeaseTerms(6.0), clock) for _ in range(4)]
    renewing.renew(leases)
    assert {reports.get(timeout=30) for _ in range(2)} == {
        ("failed", 3, lost),
        ("renewed", 1, None),
    }
    renewing.close()
    assert sorted(lease.attempts for lease in leases) == [0, 1, 1, 1]
    (record,) = [each for each in caplog.records if "renewal_failed" in each.message]
    assert "3" in record.getMessage()
