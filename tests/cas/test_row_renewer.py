"""Renewals of row locks: one that gets no reply delays no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.renewer import RowRenewer, RowsApartRenewer
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import resource
from aiorwlock_remote.core.row import Plan, RowResource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import CallbackThread, Renewal, RenewerBase
from aiorwlock_remote.runtime.event_loop import SystemClock

KEPT = Grant("t", Mode.WRITE, 1, 0, None)
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
