"""A thread that waits for answers, in place of an event loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import RowLocked
from aiorwlock_remote.cas.renewer import (
    LOCKED_ROW_MEMORY,
    CasRenewer,
    RowRenewer,
    RowsApartRenewer,
    TwoLaneRenewer,
)
from aiorwlock_remote.core.commands import NotHeld
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource, resource
from aiorwlock_remote.core.row import Plan, RowResource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import CallbackThread, Renewal, RenewerBase
from aiorwlock_remote.runtime.event_loop import SystemClock
from tests.fixed_clock import StandingClock

ONE, TWO = resource("order", 1), resource("order", 2)
KEPT = Grant("t", Mode.WRITE, 1, 0, None)


@dataclass
class ActedRenewer:
    """Renews all rows but those that somebody keeps locked."""

    locked: set[Resource]
    asked: list[list[Resource]] = field(default_factory=list[list[Resource]])

    def renew(
        self, batch: Sequence[Renewal], _: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        self.asked.append([item.resource for item in batch])
        busy = RowLocked(what="busy", nothing_done=True)
        return [busy if item.resource in self.locked else KEPT for item in batch]


@dataclass
class Lanes:
    """Two lanes at one database; ``locked``: the rows that are locked there."""

    locked: set[Resource] = field(default_factory=set[Resource])
    clock: StandingClock = field(default_factory=StandingClock)

    def __post_init__(self) -> None:
        self.quick = ActedRenewer(self.locked)
        self.patient = ActedRenewer(self.locked)
        self.both = TwoLaneRenewer(
            cast("CasRenewer", self.quick),
            cast("CasRenewer", self.patient),
            self.clock,
        )

    def renew(self, *resources: Resource) -> None:
        """As the keeper does: those of one lane together."""
        lanes: defaultdict[Hashable, list[Resource]] = defaultdict(list)
        for one in resources:
            lanes[self.both.lane(one)].append(one)
        for some in lanes.values():
            self.both.renew([Renewal(one, "t", 1) for one in some], 1.0)


def test_a_row_that_is_locked_is_renewed_apart_until_it_is_free() -> None:
    lanes = Lanes({ONE})
    lanes.renew(ONE, TWO)
    assert lanes.both.lane(ONE) != lanes.both.lane(TWO) is None
    lanes.renew(ONE, TWO)
    lanes.locked.clear()
    lanes.renew(ONE, TWO)
    assert lanes.both.lane(ONE) is None
    lanes.renew(ONE, TWO)
    assert lanes.quick.asked == [[ONE, TWO], [TWO], [TWO], [ONE, TWO]]
    assert lanes.patient.asked == [[ONE], [ONE]]


def test_a_row_whose_lease_was_lost_is_forgotten() -> None:
    lanes = Lanes({ONE})
    lanes.renew(ONE)
    lanes.clock.seconds += LOCKED_ROW_MEMORY
    lanes.renew(TWO)
    assert lanes.both.lane(ONE) is None


def test_timers_run_in_order_and_not_early() -> None:
    clock = SystemClock()
    host, began = CallbackThread(clock), clock.now()
    done: list[tuple[str, float]] = []

    def tell(name: str) -> None:
        done.append((name, clock.now() - began))

    host.later(0.06, lambda: tell("last"))
    host.later(0.03, lambda: tell("second"))
    host.call_soon(tell, "first")
    host.run(lambda: len(done) == 3, began + 30)
    assert [name for name, _ in done] == ["first", "second", "last"]
    assert done[1][1] >= 0.03
    assert done[2][1] >= 0.06


def test_a_callback_thread_waits_no_longer_than_asked() -> None:
    clock = SystemClock()
    host, began = CallbackThread(clock), clock.now()
    host.later(3600, lambda: None)
    host.run(lambda: False, began + 0.02)
    assert clock.now() - began >= 0.02


# ---------------- Renewals of row locks: one that gets no reply delays no other


SHORT = 0.02


class FakeRow(RowResource):
    """A row whose plan yields its own key, with the ticket."""

    def renewal_plan(self, ticket: str) -> Plan[Any, Any]:
        yield self.id, ticket
        return KEPT


FREE, STUCK = FakeRow("invoices", "free"), FakeRow("invoices", "stuck")


class FakeDatabase:
    """Answers at once, except for the row ``stuck``: its replies are ``waiting``."""

    def __init__(self) -> None:
        self.thread = CallbackThread(SystemClock())
        self.sent: list[str] = []
        self.waiting: list[Pending[Any]] = []
        self.renewer = RowRenewer(self.thread, self.carry)

    def carry(self, plan: Plan[Any, Any]) -> Pending[Any]:
        pending: Pending[Any] = Pending()
        key, _ = next(plan)
        self.sent.append(key)
        if self.sent[-1] == "stuck":
            self.waiting.append(pending)
        else:
            self.thread.call_soon(pending.set_result, KEPT)
        return pending

    def renew(self, *rows: FakeRow) -> Sequence[object]:
        batch = [Renewal(row, row.id, 1) for row in rows]
        return self.renewer.renew(batch, SHORT)


def test_a_row_that_is_not_answered_delays_no_other() -> None:
    database = FakeDatabase()
    late, renewed = database.renew(STUCK, FREE)
    assert isinstance(late, BackendUnavailable)
    assert renewed is KEPT


def test_a_renewal_is_not_sent_again_before_its_reply() -> None:
    """The reply to the first one would be believed to be that to the second."""
    database = FakeDatabase()
    for _ in range(3):
        (late,) = database.renew(STUCK)
        assert isinstance(late, BackendUnavailable)
    assert database.sent == ["stuck"]
    database.thread.call_soon(database.waiting[0].set_result, KEPT)
    database.renew(STUCK)
    assert database.sent == ["stuck", "stuck"]


def test_rows_are_renewed_apart_from_locks() -> None:
    class Locks(RenewerBase):
        def renew(self, batch: Sequence[Renewal], timeout: float) -> Sequence[Grant]:
            del timeout
            return [KEPT for _ in batch]

    database = FakeDatabase()
    both = RowsApartRenewer(Locks(), database.renewer)
    lock = resource("order", 1)
    assert both.lane(lock) is None
    assert both.lane(FREE) == both.lane(STUCK) is not None
    assert both.renew([Renewal(lock, "t", 1)], SHORT) == [KEPT]
    assert database.sent == []
    assert both.renew([Renewal(FREE, "t", 1)], SHORT) == [KEPT]
    assert database.sent == ["free"]
