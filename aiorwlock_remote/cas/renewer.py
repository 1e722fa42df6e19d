"""Renewal of grants by compare-and-set: blocking calls in the lease keeper's thread.

``CasRenewer`` renews locks, ``RowRenewer`` row locks in tables of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any

from aiorwlock_remote._util.native import Lock
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.port import RowLocked, StoredState, newer_state
from aiorwlock_remote.cas.stepper import CasStepper
from aiorwlock_remote.core.commands import NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.row import Plan, RowResource
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import CallbackThread, Clock, Renewal, RenewerBase

LOCKED_ROW_MEMORY = 60.0
"""Seconds for which a row found locked counts as locked, unless it is renewed."""

ROW_REPLY_TIMEOUT = 1.0
"""Most seconds for which renewals of other rows wait for one that gets no reply."""
ROW_LANE = "row locks"

Outcome = Grant | NotHeld | Exception


def wake_no_client(resource: Resource, client_ids: tuple[str, ...]) -> None:
    """Ignore clients to wake after a renewal: a renewal frees no lock."""


class CasRenewer(RenewerBase):
    """Renewer that sends one swap for each resource, all of them at the same time.

    ``renew`` blocks; it is called in the lease keeper's thread.
    """

    def __init__(
        self,
        thread: CallbackThread,
        steps: CasStepper,
        known: Callable[[Resource], StoredState | None],
        report: Callable[[Sequence[tuple[Resource, StoredState]]], object],
        close: Callable[[], object] | None = None,
        ready: Callable[[], Pending[None]] | None = None,
        fit: Callable[[int, float], object] | None = None,
    ) -> None:
        """Create a renewer that sends its renewals through ``steps``.

        Args:
            thread: Runs the callbacks of the replies, while ``renew`` blocks.
            steps: A stepper used by this renewer alone.
            known: Called in ``renew``'s thread; returns the state of a resource that
                the user's event loop saw last, or None.
            report: Called in ``renew``'s thread with the resources of a batch and the
                newest state of each.
            close: Called at the end to close the connections, None if they are shared.
            ready: Opens a connection; called first in each ``renew``, if not None.
            fit: Called before the swaps of each ``renew`` with the number of resources
                and the time limit in seconds, to set how long each may wait.
        """
        self._fit = fit
        self._close = close
        self._ready = ready
        self._thread = thread
        self._steps = steps
        self._known = known
        self._report = report

    def renew(self, batch: Sequence[Renewal], timeout: float) -> Sequence[Outcome]:
        until = self._thread.clock.now() + timeout
        if self._ready is not None:
            # Before the steps are computed: the time that connecting takes must not
            # count as the server's (``ServerTime.update``).
            ready = self._ready()
            self._thread.run(ready.done, until)
        grouped: dict[Resource, list[Renewal]] = {}
        for item in batch:
            grouped.setdefault(item.resource, []).append(item)
        if self._fit is not None:
            self._fit(len(grouped), timeout)
        sent: dict[Resource, Pending[Reply]] = {}
        for resource, items in grouped.items():
            state = newer_state(self._known(resource), self._steps.known(resource))
            if state is not None:
                self._steps.saw(resource, state)
            # It is renewed again before this lease ends, if it is still held.
            self._steps.remember(resource, max(item.lease or 0 for item in items))
            command = Renew(tuple((item.ticket, item.lease) for item in items))
            sent[resource] = self._steps.step(resource, command)
        left = len(sent)

        def answered(_: object) -> None:
            nonlocal left
            left -= 1

        for pending in sent.values():
            pending.add_done_callback(answered)
        self._thread.run(lambda: left == 0, until)
        outcomes: dict[tuple[Resource, str], Outcome] = {}
        states: list[tuple[Resource, StoredState]] = []
        for resource, items in grouped.items():
            pairs = zip(items, _outcomes_of(sent[resource], len(items)), strict=True)
            outcomes |= {(resource, item.ticket): outcome for item, outcome in pairs}
            state = self._steps.known(resource)
            if state is not None:
                states.append((resource, state))
        self._report(states)
        return [outcomes[item.resource, item.ticket] for item in batch]

    def give_up(self) -> None:
        """Let ``renew`` not wait for replies any more, now and in later calls.

        Renewals without a reply get ``BackendUnavailable``. Callable in any thread.
        """
        self._thread.stop()

    def close(self) -> None:
        if self._close is not None:
            self._close()


class TwoLaneRenewer(RenewerBase):
    """Renewer in which a row locked by another program delays no other row's renewal.

    Renewals by ``quick`` fail at once if their row is locked. From then on ``patient``
    renews the resource, in another thread: it waits for the row as long as the lease
    allows (test_renewer.py, tests/faults/test_stuck_rows.py).
    """

    def __init__(self, quick: CasRenewer, patient: CasRenewer, clock: Clock) -> None:
        self._quick = quick, Lock()
        self._patient = patient, Lock()
        self._clock = clock
        self._locked: dict[Resource, float] = {}  # and until when that is remembered

    def lane(self, resource: Resource) -> Hashable:
        return "locked rows" if resource in self._locked else None

    def renew(self, batch: Sequence[Renewal], timeout: float) -> Sequence[Outcome]:
        apart = batch[0].resource in self._locked
        renewer, turn = self._patient if apart else self._quick
        # The row may have been renewed since the keeper asked for its lane. Then this
        # is a thread of the other lane, and that lane's own thread may be in here too.
        with turn:
            outcomes = renewer.renew(batch, timeout)
        now = self._clock.now()
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, RowLocked):
                self._locked[item.resource] = now + LOCKED_ROW_MEMORY
            elif not isinstance(outcome, Exception):
                self._locked.pop(item.resource, None)
        # A resource whose lease was lost while its row was locked is never renewed
        # again (test_renewer.py: test_a_row_whose_lease_was_lost_is_forgotten).
        for resource, until in list(self._locked.items()):
            if until <= now:
                self._locked.pop(resource, None)
        return outcomes

    def give_up(self) -> None:
        for renewer, _ in (self._quick, self._patient):
            renewer.give_up()

    def close(self) -> None:
        for renewer, _ in (self._patient, self._quick):
            renewer.close()


class RowRenewer(RenewerBase):
    """Renewer of row locks: runs the plans of a batch at the same time.

    A row that a transaction of the user's has locked may answer late. Its renewal is
    not sent again before that reply, so that it uses one connection only.
    """

    def __init__(
        self,
        thread: CallbackThread,
        carry: Callable[[Plan[Any, Any]], Pending[Any]],
        close: Callable[[], object] | None = None,
    ) -> None:
        """Create a renewer.

        Args:
            thread: Runs the callbacks of the replies, while ``renew`` blocks.
            carry: Runs a plan; its reply comes in ``thread``.
            close: Called at the end to close the connection, None if it is shared.
        """
        self._thread = thread
        self._carry = carry
        self._close = close
        self._under_way: dict[str, Pending[Any]] = {}

    def renew(self, batch: Sequence[Renewal], timeout: float) -> Sequence[Outcome]:
        until = self._thread.clock.now() + min(timeout, ROW_REPLY_TIMEOUT)
        self._thread.run_queued()  # replies that came after their ``renew`` had ended
        sent: list[Pending[Any]] = []
        for item in batch:
            assert isinstance(item.resource, RowResource)
            if item.ticket not in self._under_way:
                plan = item.resource.renewal_plan(item.ticket)
                pending = self._under_way[item.ticket] = self._carry(plan)
                pending.add_done_callback(partial(self._answered, item.ticket))
                sent.append(pending)
            else:
                # Its result could be that of a renewal sent before the keeper noted
                # the time, so the reply would promise too much.
                late: Pending[Any] = Pending()
                what = f"{item.resource.label}: a renewal before is not answered yet"
                late.set_exception(BackendUnavailable(what=what))
                sent.append(late)
        self._thread.run(lambda: all(pending.done() for pending in sent), until)
        return [_row_outcome(pending) for pending in sent]

    def give_up(self) -> None:
        """Let ``renew`` not wait for replies any more; callable from any thread."""
        self._thread.stop()

    def close(self) -> None:
        if self._close is not None:
            self._close()

    def _answered(self, ticket: str, _: object) -> None:
        self._under_way.pop(ticket, None)


class RowsApartRenewer(RenewerBase):
    """Renewer of all grants of a store: ``locks`` renews locks, ``rows`` row locks.

    Row locks have a thread of their own: a transaction of the user's may keep a row
    locked, and other grants must not wait for it.
    """

    def __init__(self, locks: RenewerBase, rows: RenewerBase) -> None:
        self._locks = locks
        self._rows = rows

    def lane(self, resource: Resource) -> Hashable:
        if isinstance(resource, RowResource):
            return ROW_LANE
        return self._locks.lane(resource)

    def renew(self, batch: Sequence[Renewal], timeout: float) -> Sequence[Outcome]:
        rows = isinstance(batch[0].resource, RowResource)
        return (self._rows if rows else self._locks).renew(batch, timeout)

    def give_up(self) -> None:
        self._rows.give_up()
        self._locks.give_up()

    def close(self) -> None:
        self._rows.close()
        self._locks.close()


def _row_outcome(pending: Pending[Any]) -> Outcome:
    if not pending.done():
        return BackendUnavailable(what="the renewal was not answered in time")
    if isinstance(pending.error, Exception):
        return pending.error
    outcome: Outcome = pending.result()
    return outcome


def _outcomes_of(pending: Pending[Reply], number: int) -> Sequence[Outcome]:
    if not pending.done():
        late = BackendUnavailable(what="the renewal was not answered in time")
        return (late,) * number
    error = pending.error
    if isinstance(error, Exception):
        return (error,) * number
    reply = pending.result()
    assert isinstance(reply, Renewed)
    return reply.outcomes
