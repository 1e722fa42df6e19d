"""The keeper's renewals: steps of its own, in its own thread."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import Protocol

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.port import RowLocked, StoredState
from aiorwlock_remote.core.commands import Command, NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import Clock, Renewal

LOCKED_ROW_MEMORY = 60.0
"""Seconds for which a row that was found locked is remembered, unless renewed."""

Call = Callable[[], object]


class Stepper(Protocol):
    """Steps made of swaps, in the keeper's thread: a ``CasStepper``, or one wrapped."""

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """As ``Store.step``."""

    def saw(self, resource: Resource, state: StoredState) -> None:
        """Somebody else's read: the next step may start from there."""

    def known(self, resource: Resource) -> StoredState | None:
        """What was seen last."""


class NewerState(Protocol):
    """Which of two states of one resource was written later."""

    def __call__(
        self, one: StoredState | None, other: StoredState | None
    ) -> StoredState | None:
        """As far as they tell; None is older than anything."""


def wake_no_client(resource: Resource, gates: tuple[str, ...]) -> None:
    """A renewal lets nobody in; whose lease it finds run out is seen by the poller."""


class CallbackThread:
    """A thread that waits for answers as a host: no event loop is needed."""

    def __init__(self, clock: Clock) -> None:
        """For whichever thread calls ``run``."""
        self.clock: Clock = clock
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._timers: list[tuple[float, int, Call]] = []
        self._order = count()
        self._stopped = False

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in that thread; from any."""
        self._calls.put(partial(function, *args))

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """There are no tasks here."""
        raise NotImplementedError

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Run it after so many seconds."""
        due = self.clock.now() + seconds
        heapq.heappush(self._timers, (due, next(self._order), function))

    def run(self, done: Callable[[], bool], until: float) -> None:
        """Run what there is to be run, until it is done or the time has come."""
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
        """Run nothing any more; from any thread."""
        self._stopped = True
        self.call_soon(int)  # it may be waiting for a call


class CasRenewer:
    """One swap a resource, all of them asked for at once."""

    def __init__(
        self,
        host: CallbackThread,
        steps: Stepper,
        known: Callable[[Resource], StoredState | None],
        tell: Callable[[Resource, StoredState], object],
        newer: NewerState,
        close: Callable[[], object] | None = None,
        ready: Callable[[], Pending[None]] | None = None,
        fit: Callable[[int, float], object] | None = None,
    ) -> None:
        """``known``: what the loop saw last; ``tell``: what we saw, for the loop.

        ``close``: closes what the steps go over, if it is the renewer's own.
        ``ready``: makes it ready: that time must not be counted as the server's.
        ``fit(resources, seconds)``: called before so many are asked for in that time.
        """
        self._fit = fit
        self._newer = newer
        self._close = close
        self._ready = ready
        self._host = host
        self._steps = steps
        self._known = known
        self._tell = tell

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Ask for all, and wait for the answers; those of one resource in one step."""
        until = self._host.clock.now() + timeout
        if self._ready is not None:
            ready = self._ready()
            self._host.run(ready.done, until)
        of: dict[Resource, list[Renewal]] = {}
        for item in batch:
            of.setdefault(item.resource, []).append(item)
        if self._fit is not None:
            self._fit(len(of), timeout)
        asked: dict[Resource, Pending[Reply]] = {}
        for resource, items in of.items():
            state = self._newer(self._known(resource), self._steps.known(resource))
            if state is not None:
                self._steps.saw(resource, state)
            command = Renew(tuple((item.ticket, item.lease) for item in items))
            asked[resource] = self._steps.step(resource, command)
        left = len(asked)

        def one_less(_: object) -> None:
            nonlocal left
            left -= 1

        for pending in asked.values():
            pending.add_done_callback(one_less)
        self._host.run(lambda: left == 0, until)
        outcomes: dict[tuple[Resource, str], Grant | NotHeld | Exception] = {}
        for resource, items in of.items():
            pairs = zip(items, _outcomes_of(asked[resource], len(items)), strict=True)
            outcomes |= {(resource, item.ticket): told for item, told in pairs}
            state = self._steps.known(resource)
            if state is not None:
                self._tell(resource, state)
        return [outcomes[item.resource, item.ticket] for item in batch]

    def give_up(self) -> None:
        """Wait for no answer any more."""
        self._host.stop()

    def close(self) -> None:
        """Close what is ours."""
        if self._close is not None:
            self._close()


class TwoLaneRenewer:
    """Renewals in two lanes: a row that somebody keeps locked delays no other row.

    The first lane does not wait for a locked row. A resource whose row was found locked
    is renewed in the second lane, over a connection of its own, which waits for the row
    as long as fits the lease (test_keeping.py, tests/faults/test_stuck_rows.py).
    """

    def __init__(self, quick: CasRenewer, patient: CasRenewer, clock: Clock) -> None:
        """``patient``: of a thread, steps and connections of its own."""
        self._quick = quick, threading.Lock()
        self._patient = patient, threading.Lock()
        self._clock = clock
        self._locked: dict[Resource, float] = {}  # and until when that is remembered

    def lane(self, resource: Resource) -> Hashable:
        """As ``ParallelRenewer``."""
        return "locked rows" if resource in self._locked else None

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """As ``Renewer``; ``batch`` is of one lane."""
        apart = batch[0].resource in self._locked
        renewer, turn = self._patient if apart else self._quick
        # The row may have been renewed since the keeper asked for its lane: then this
        # is a thread of the other lane.
        with turn:
            outcomes = renewer.renew(batch, timeout)
        now = self._clock.now()
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, RowLocked):
                self._locked[item.resource] = now + LOCKED_ROW_MEMORY
            elif not isinstance(outcome, Exception):
                self._locked.pop(item.resource, None)
        for resource, until in list(self._locked.items()):
            if until <= now:  # its lease was lost meanwhile
                self._locked.pop(resource, None)
        return outcomes

    def give_up(self) -> None:
        """As ``AbortableRenewer``."""
        for renewer, _ in (self._quick, self._patient):
            renewer.give_up()

    def close(self) -> None:
        """Close the connections, if they are ours."""
        for renewer, _ in (self._patient, self._quick):
            renewer.close()


def _outcomes_of(
    pending: Pending[Reply], number: int
) -> Sequence[Grant | NotHeld | Exception]:
    if not pending.done():
        late = BackendUnavailable(what="the renewal was not answered in time")
        return (late,) * number
    error = pending.error
    if isinstance(error, Exception):
        return (error,) * number
    reply = pending.result()
    assert isinstance(reply, Renewed)
    return reply.outcomes
