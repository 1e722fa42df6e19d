"""Requests for row locks: sent without awaiting, undone if nobody waits any more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from random import random
from typing import Generic, Protocol, TypeVar

import anyio

from aiorwlock_remote._util.pending import InFlight, Pending, map_pending
from aiorwlock_remote.core.row import Plan
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.recipes.row_lock.target import (
    RowAttempt,
    RowIdentity,
    RowOutcome,
    RowTarget,
)
from aiorwlock_remote.runtime.cleanup import CleanupRetrier, InFlightGrants
from aiorwlock_remote.runtime.event_loop import TaskEventLoop

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
T = TypeVar("T")

RETRY_PERIOD = 5.0
"""Seconds for which a request is sent again before whoever waits is told."""
SETTLE_TIMEOUT = 2.0
"""Seconds for which who is cancelled or closes waits until what it left is undone."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.row_lock")


class RunsPlans(Protocol[S_contra]):
    """What carries plans out; see ``SupportsRowLocks``."""

    def carry(self, plan: Plan[S_contra, T]) -> Pending[T]:
        """Carry out its statements."""


class RowRequests(Generic[S]):
    """Those of one loop. ``freed(identity)`` is called when a lock was given back.

    ``known``: kinds of rows that take a mark as it is; more are added.
    """

    def __init__(
        self,
        carrier: RunsPlans[S],
        host: TaskEventLoop,
        freed: Callable[[RowIdentity], None],
        known: set[RowIdentity] | None = None,
    ) -> None:
        self._carrier = carrier
        self._host = host
        self._freed = freed
        self._closing = InFlightGrants()
        self._insisting = CleanupRetrier(host, self._closing)
        self._under_way = InFlight()
        self._closed = False
        self._known = set[RowIdentity]() if known is None else known
        self._resting: set[Callable[[], None]] = set()  # to be sent again

    async def take(
        self, row: RowTarget[S], attempt: RowAttempt, *, doubtful: bool = False
    ) -> RowOutcome:
        """Once. Cancelled or closed, what it may have obtained is given back.

        ``doubtful``: an earlier request may have obtained it, too.
        """
        new = row.kind not in self._known
        plan = row.way.take(attempt, check=new)
        carried = self._under_way.add(self._carrier.carry(plan))
        undone: list[Pending[None]] = []

        def take_back() -> Pending[None]:
            if not undone:
                undone.append(Pending())
                undo = partial(self._take_back, row, attempt, doubtful, undone[0])
                carried.add_done_callback(undo)
            return undone[0]

        try:
            with self._closing.under(take_back):
                got = await carried
        except BaseException as exc:
            if exc is carried.error:
                raise
            with anyio.CancelScope(shield=True), anyio.move_on_after(SETTLE_TIMEOUT):
                await take_back()
            raise
        if got.held:
            self._known.add(row.kind)
        return got

    @contextmanager
    def pausing(
        self, row: RowTarget[S], attempt: RowAttempt
    ) -> Generator[None, None, None]:
        """Until it is taken again; nobody knows whether it was obtained.

        Cancelled or closed meanwhile, it is given back.

        Raises:
            Closed: it is not to be taken again.
        """

        def take_back() -> None:
            self.give(row, attempt, attempt.reason).log_failure()

        with self._closing.under(take_back):
            try:
                yield
            except BaseException:
                take_back()
                raise

    def give(
        self, row: RowTarget[S], attempt: RowAttempt, reason: str
    ) -> Pending[RowOutcome]:
        """Give back; sent again for a while, then in the background.

        As long as that cannot do harm: without a ticket, what may have been carried out
        is not sent again. Nor is anything when the lease is over.
        """
        told: Pending[RowOutcome] = self._under_way.add(Pending())
        again = partial(self._given, row, attempt, reason)
        self._give(row, again, told, self._host.clock.now())
        lease = row.way.lease
        repeatable = lease is not None
        return self._insisting.retry_if_failed(
            told, row, again, lease, repeatable=repeatable
        )

    def close(self) -> None:
        """Send now what is to be sent again; nothing will be after that.

        What is about to be obtained is given back, and is no one's.
        """
        self._closed = True
        self._closing.close()
        for again in list(self._resting):
            again()

    async def wait_closed(self) -> None:
        """Wait until nothing is under way, for ``SETTLE_TIMEOUT`` seconds at most."""
        with anyio.move_on_after(SETTLE_TIMEOUT, shield=True):
            await self._under_way.wait_closed()

    def _take_back(
        self,
        row: RowTarget[S],
        attempt: RowAttempt,
        doubtful: bool,  # noqa: FBT001 - bound by ``partial``
        undone: Pending[None],
        carried: Pending[RowOutcome],
    ) -> None:
        error = carried.error
        doubt = doubtful or is_uncertain(error)
        if doubt and row.way.lease is None:
            log_event(
                log,
                "row_lock_uncertain",
                resource=row.label,
                mode=attempt.mode,
                error=str(error),
            )
        elif doubt or (error is None and carried.result().held):
            told = self.give(row, attempt, attempt.reason)
            told.log_failure()
            told.add_done_callback(lambda _: undone.set_result(None))
            return
        undone.set_result(None)

    def _give(
        self,
        row: RowTarget[S],
        give: Callable[[], Pending[RowOutcome]],
        told: Pending[RowOutcome],
        since: float,
    ) -> None:
        def again() -> None:
            if again in self._resting:
                self._resting.discard(again)
                self._give(row, give, told, since)

        def gave(given: Pending[RowOutcome]) -> None:
            error = given.error
            waited = self._host.clock.now() - since
            if error is None:
                told.set_result(given.result())
            elif _repeatable(row, error) and not self._closed and waited < RETRY_PERIOD:
                self._resting.add(again)
                self._host.spawn(partial(_after, back_off(2, random()), again))
            else:
                told.set_exception(error)

        give().add_done_callback(gave)

    def _given(
        self, row: RowTarget[S], attempt: RowAttempt, reason: str
    ) -> Pending[RowOutcome]:
        """Once; waiters here are told."""

        def gave(got: RowOutcome) -> RowOutcome:
            if got.again:
                what = f"{row.label}: others change it all the time"
                raise BackendUnavailable(what=what, nothing_done=True)
            self._freed(row.identity)
            return got

        carried = self._carrier.carry(row.way.give(attempt, reason))
        return self._under_way.add(map_pending(carried, gave))


def _repeatable(row: RowTarget[S], error: BaseException) -> bool:
    """Whether it may be done again: not carried out, or known by ticket."""
    if not isinstance(error, BackendUnavailable):
        return False
    return error.nothing_done or row.way.lease is not None


async def _after(seconds: float, function: Callable[[], None]) -> None:
    await anyio.sleep(seconds)
    function()
