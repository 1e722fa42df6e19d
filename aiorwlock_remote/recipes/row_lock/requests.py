"""Sends requests for row locks, and undoes those whose caller was cancelled."""

from __future__ import annotations

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
    log,
)
from aiorwlock_remote.runtime.cleanup import CleanupRetrier, InFlightGrants
from aiorwlock_remote.runtime.event_loop import TaskEventLoop

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
T = TypeVar("T")

RETRY_PERIOD = 5.0
"""Seconds for which a failed request is repeated before its caller gets the error."""
SETTLE_TIMEOUT = 2.0
"""Seconds that a cancelled or closing caller waits for its clean-up."""


class RunsPlans(Protocol[S_contra]):
    """A store that can run plans: generators that yield SQL statements."""

    def carry(self, plan: Plan[S_contra, T]) -> Pending[T]:
        """Run the statements of ``plan``; return the reply that will come.

        A caller that is cancelled does not stop them.
        """


class RowRequests(Generic[S]):
    """Sends the requests for row locks of one event loop, and undoes cancelled ones.

    No request waits for another. Invariants, each with the test that fails without it:

    * If the caller is cancelled, or the ``Locks`` is closed, a lock that the request
      still obtains is released, once (test_row_lock_waiting.py,
      test_closed_and_cancelled_it_is_given_back_once).
    * Without a ticket, a release that may have been carried out is never repeated: the
      second one would release the lock of another reader (test_row_lock_faults.py,
      test_a_lost_reply_to_a_release; test_row_lock_cleanup.py,
      test_without_a_lease_nothing_is_done_twice).
    * After ``close`` each failed release is sent once more, at once
      (test_row_lock_waiting.py, test_closing_sends_at_once_what_was_to_be_sent_again).

    ``on_freed`` is called with the row's identity, in the event loop, after each
    release. ``checked_kinds``: kinds of rows whose columns are known to store
    lock marks untruncated; this object adds more.
    """

    def __init__(
        self,
        store: RunsPlans[S],
        loop: TaskEventLoop,
        on_freed: Callable[[RowIdentity], None],
        checked_kinds: set[RowIdentity] | None = None,
    ) -> None:
        self._store = store
        self._loop = loop
        self._on_freed = on_freed
        self._closing = InFlightGrants()
        self._retrier = CleanupRetrier(loop, self._closing)
        self._in_flight = InFlight()
        self._closed = False
        self._checked = set[RowIdentity]() if checked_kinds is None else checked_kinds

    async def take(
        self, attempt: RowAttempt[S], *, doubtful: bool = False
    ) -> RowOutcome:
        """Send one request for the lock and return its outcome.

        If the caller is cancelled, or the ``Locks`` is closed, what the request obtains
        is released. ``doubtful``: an earlier request of this attempt may have obtained
        the lock, so the lock is released even if this request does not obtain it.
        """
        attempt.log_debug("request_sent")
        kind = attempt.row.kind
        plan = attempt.row.strategy.take(attempt, check=kind not in self._checked)
        reply = self._in_flight.add(self._store.carry(plan))
        undone: list[Pending[None]] = []

        def withdraw() -> Pending[None]:
            if not undone:
                undone.append(Pending())
                undo = partial(self._withdraw, attempt, doubtful, undone[0])
                reply.add_done_callback(undo)
            return undone[0]

        try:
            with self._closing.under(withdraw):
                got = await reply
        except BaseException as exc:
            # The request's own error: the caller decides whether to repeat it. Anything
            # else means that the caller does not wait any more.
            if exc is reply.error:
                raise
            with anyio.CancelScope(shield=True), anyio.move_on_after(SETTLE_TIMEOUT):
                await withdraw()
            raise
        if got.held:
            self._checked.add(kind)
        return got

    @contextmanager
    def uncertain(self, attempt: RowAttempt[S]) -> Generator[None, None, None]:
        """Context for a pause after a request that may have obtained the lock.

        If the caller is cancelled in the pause, or the ``Locks`` is closed, the lock is
        released in the background. In the second case this raises ``Closed``.
        """

        def withdraw() -> None:
            self.give(attempt).log_failure()

        with self._closing.under(withdraw):
            try:
                yield
            except BaseException:
                withdraw()
                raise

    def give(
        self, attempt: RowAttempt[S], reason: str | None = None
    ) -> Pending[RowOutcome]:
        """Send a release; repeat it for ``RETRY_PERIOD``, then in the background.

        A failed release is repeated only while that does no harm: with a lease until it
        ends; without one only if the release was certainly not carried out. ``reason``:
        stored in the row; None: the reason of the attempt.
        """
        reply: Pending[RowOutcome] = self._in_flight.add(Pending())
        reason = attempt.reason if reason is None else reason
        send = partial(self._send_release, attempt, reason)
        self._repeat_release(attempt, send, reply, self._loop.clock.now())
        row, lease = attempt.row, attempt.row.strategy.lease
        repeatable = lease is not None
        return self._retrier.retry_if_failed(
            reply, row, send, lease, repeatable=repeatable
        )

    def close(self) -> None:
        """Repeat failed releases now; release locks that requests under way obtain."""
        self._closed = True
        self._closing.close()

    async def wait_closed(self) -> None:
        """Wait for the answers to all requests, ``SETTLE_TIMEOUT`` seconds at most."""
        with anyio.move_on_after(SETTLE_TIMEOUT, shield=True):
            await self._in_flight.wait_closed()

    def _withdraw(
        self,
        attempt: RowAttempt[S],
        doubtful: bool,  # noqa: FBT001 - bound by ``partial``
        undone: Pending[None],
        reply: Pending[RowOutcome],
    ) -> None:
        error, row = reply.error, attempt.row
        doubt = doubtful or is_uncertain(error)
        if doubt and row.strategy.lease is None:
            # Without a ticket a release could take away the lock of another holder, so
            # the row may stay locked (test_row_lock_faults.py, test_a_lost_reply).
            log_event(
                log,
                "row_lock_uncertain",
                resource=row.label,
                mode=attempt.mode,
                error=str(error),
            )
        elif doubt or (error is None and reply.result().held):
            attempt.log_debug("withdrawn")
            released = self.give(attempt)
            released.log_failure()
            released.add_done_callback(lambda _: undone.set_result(None))
            return
        undone.set_result(None)

    def _repeat_release(
        self,
        attempt: RowAttempt[S],
        send: Callable[[], Pending[RowOutcome]],
        reply: Pending[RowOutcome],
        since: float,
    ) -> None:
        def repeat() -> None:
            self._repeat_release(attempt, send, reply, since)

        async def repeat_later(key: object) -> None:
            await anyio.sleep(back_off(2, random()))
            # False: `close` has called ``repeat``
            # (test_closing_sends_at_once_what_was_to_be_sent_again).
            if self._closing.end(key):
                repeat()

        def answered(released: Pending[RowOutcome]) -> None:
            error = released.error
            waited = self._loop.clock.now() - since
            if error is None:
                reply.set_result(released.result())
            elif (
                waited < RETRY_PERIOD
                and not self._closed
                and _repeatable(attempt.row, error)
            ):
                attempt.log_debug("cleanup_retried")
                key = self._closing.begin(repeat)
                self._loop.spawn(partial(repeat_later, key))
            else:
                reply.set_exception(error)

        send().add_done_callback(answered)

    def _send_release(self, attempt: RowAttempt[S], reason: str) -> Pending[RowOutcome]:
        row = attempt.row

        def answered(got: RowOutcome) -> RowOutcome:
            # Not carried out: raised as an error, so that it is repeated
            # (test_a_row_that_others_change_all_the_time).
            if got.again:
                what = f"{row.label}: other programs changed the row at each attempt"
                raise BackendUnavailable(what=what, nothing_done=True)
            self._on_freed(row.identity)
            return got

        reply = self._store.carry(row.strategy.give(attempt, reason))
        return self._in_flight.add(map_pending(reply, answered))


def _repeatable(row: RowTarget[S], error: BaseException) -> bool:
    if not isinstance(error, BackendUnavailable):
        return False
    return error.nothing_done or row.strategy.lease is not None
