"""Renewal of grants by compare-and-set: blocking calls in the lease keeper's thread."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from itertools import count

from aiorwlock_remote._util.native import Empty, Lock, SimpleQueue
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import RowLocked, StoredState, newer_state
from aiorwlock_remote.cas.stepper import CasStepper
from aiorwlock_remote.core.commands import NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Clock, Renewal

LOCKED_ROW_MEMORY = 60.0
"""Seconds for which a row found locked counts as locked, unless it is renewed."""

Call = Callable[[], object]
Outcome = Grant | NotHeld | Exception


def wake_no_client(resource: Resource, client_ids: tuple[str, ...]) -> None:
    """Ignore clients to wake after a renewal: a renewal frees no lock."""


class CallbackThread:
    """Queue of callbacks and timers for a thread without an event loop."""

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock = clock
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._timers: list[tuple[float, int, Call]] = []
        self._order = count()
        self._stopped = False

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Let ``run`` call ``function(*args)`` soon. Callable in any thread."""
        self._calls.put(partial(function, *args))

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        raise NotImplementedError

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Let ``run`` call ``function`` after ``seconds``. Call in ``run``'s thread."""
        due = self.clock.now() + seconds
        heapq.heappush(self._timers, (due, next(self._order), function))

    def run(self, done: Callable[[], bool], until: float) -> None:
        """Block, and run queued callbacks and timers, until ``done()`` returns True.

        Returns at the latest when ``clock.now()`` reaches ``until``, and after ``stop``
        at once.
        """
        while not done() and not self._stopped:
            now = self.clock.now()
            if now >= until:
                return
            if self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
                continue
            nearest = min(until, self._timers[0][0]) if self._timers else until
            try:
                call = self._calls.get(timeout=nearest - now)
            except Empty:
                continue
            call()

    def stop(self) -> None:
        """Make ``run`` return, now and in all later calls. Callable in any thread."""
        self._stopped = True
        self.call_soon(int)  # ``run`` may be blocked until the next call


class CasRenewer:
    """Renewer that sends one swap for each resource, all of them at the same time.

    ``renew`` blocks; it is called in the lease keeper's thread.
    """

    def __init__(
        self,
        thread: CallbackThread,
        steps: CasStepper,
        known: Callable[[Resource], StoredState | None],
        report: Callable[[Resource, StoredState], object],
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
            report: Called in ``renew``'s thread with a resource and its newest state.
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
        for resource, items in grouped.items():
            pairs = zip(items, _outcomes_of(sent[resource], len(items)), strict=True)
            outcomes |= {(resource, item.ticket): outcome for item, outcome in pairs}
            state = self._steps.known(resource)
            if state is not None:
                self._report(resource, state)
        return [outcomes[item.resource, item.ticket] for item in batch]

    def give_up(self) -> None:
        """Let ``renew`` not wait for replies any more, now and in later calls.

        Renewals without a reply get ``BackendUnavailable``. Callable in any thread.
        """
        self._thread.stop()

    def close(self) -> None:
        if self._close is not None:
            self._close()


class TwoLaneRenewer:
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
