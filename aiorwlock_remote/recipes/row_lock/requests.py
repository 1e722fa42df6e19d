"""Sends requests for row locks, and undoes those whose caller was cancelled."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Generic, Protocol, TypeVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Released, Reply
from aiorwlock_remote.core.row import Plan
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.uncertainty import is_uncertain
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.recipes.row_lock.target import (
    RowAttempt,
    RowKind,
    RowOutcome,
    RowTarget,
    log,
)
from aiorwlock_remote.runtime.store_client import StoreClient

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)
T = TypeVar("T")

SETTLE_TIMEOUT = 2.0
"""Seconds that a cancelled caller waits for its clean-up."""


class RunsPlans(Protocol[S_contra]):
    """A store that can run plans: generators that yield SQL statements."""

    def carry(self, plan: Plan[S_contra, T]) -> Pending[T]:
        """Run the statements of ``plan``; return the reply that will come.

        A caller that is cancelled does not stop them.
        """


class RowRequests(Generic[S]):
    """Sends the requests for row locks of one ``StoreClient``; undoes cancelled ones.

    No request waits for another. Invariants, each with the test that fails without it:

    * If the caller is cancelled, or the ``Locks`` is closed, a lock that the request
      still obtains is released, once (test_row_lock_waiting.py,
      test_closed_and_cancelled_it_is_given_back_once).
    * Without a ticket, a release that may have been carried out is never repeated: the
      second one would release the lock of another reader (test_row_lock_faults.py,
      test_a_lost_reply_to_a_release; test_row_lock_lost.py,
      test_without_a_lease_nothing_is_done_twice).

    ``on_freed`` is called with the row, in the event loop, after each release.
    ``checked_kinds``: kinds of rows whose columns are known to store lock marks
    untruncated; this object adds more.
    """

    def __init__(
        self,
        store: RunsPlans[S],
        client: StoreClient,
        on_freed: Callable[[RowTarget[S]], object],
        checked_kinds: set[RowKind] | None = None,
    ) -> None:
        self._store = store
        self._client = client
        self._on_freed = on_freed
        self._checked = set[RowKind]() if checked_kinds is None else checked_kinds

    def send(self, plan: Plan[S, T]) -> Pending[T]:
        """Let the store run ``plan``; return the reply that will come."""
        self._client.requests_sent += 1
        return self._store.carry(plan)

    async def take(
        self, attempt: RowAttempt[S], *, doubtful: bool = False
    ) -> RowOutcome:
        """Send one request for the lock and return its outcome.

        If the caller is cancelled, or the ``Locks`` is closed, what the request obtains
        is released. ``doubtful``: an earlier request of this attempt may have obtained
        the lock, so the lock is released even if this request does not obtain it.
        """
        attempt.log_debug("request_sent")
        kind = attempt.row.row_kind
        plan = attempt.row.strategy.take(attempt, check=kind not in self._checked)
        reply: Pending[RowOutcome] | None = None
        undone: list[Pending[None]] = []

        def withdraw() -> Pending[None]:
            assert reply is not None, "sent before anything is awaited"
            if not undone:
                undone.append(Pending())
                undo = partial(self._withdraw, attempt, doubtful, undone[0])
                reply.add_done_callback(undo)
            return undone[0]

        try:
            with self._client.in_flight.under(withdraw):
                reply = self.send(plan)
                got = await reply
        except BaseException as exc:
            # The request's own error: the caller decides whether to repeat it. Anything
            # else means that the caller does not wait any more.
            if reply is None or exc is reply.error:
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

        with self._client.in_flight.under(withdraw):
            try:
                yield
            except BaseException:
                withdraw()
                raise

    def give(self, attempt: RowAttempt[S], reason: str | None = None) -> Pending[Reply]:
        """Send a release; if it fails, repeat it in the background.

        It is repeated only while that does no harm: with a lease until the lease ends;
        without one only if the release was certainly not carried out. ``reason``:
        stored in the row; None: the reason of the attempt.
        """
        row, lease = attempt.row, attempt.row.strategy.lease
        reason = attempt.reason if reason is None else reason
        lost = False

        def send() -> Pending[Reply]:
            released: Pending[Reply] = Pending()
            plan = row.strategy.give(attempt, reason)
            self.send(plan).add_done_callback(partial(answered, released))
            return released

        def answered(released: Pending[Reply], reply: Pending[RowOutcome]) -> None:
            nonlocal lost
            error = reply.error
            if error is None and reply.result().again:
                # Not carried out: an error, so that it is repeated
                # (test_a_row_that_others_change_all_the_time).
                error = row.outrun()
            if error is not None:
                lost = lost or is_uncertain(error)
                released.set_exception(row.release_error(attempt.mode, error))
                return
            self._on_freed(row)
            # A ticket that is gone after a lost reply was released by that request.
            held = lost or _was_held(attempt.mode, reply.result())
            released.set_result(Released(held, "forced"))

        leased = lease is not None
        return self._client.cleanup.retry_if_failed(
            send(), row, send, lease, repeatable=leased, resolves=leased
        )

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
            # the row may stay locked (test_cancelled_before_the_reply_is_lost).
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


def _was_held(mode: Mode, got: RowOutcome) -> bool:
    # A writer may delete its row (test_a_writer_may_delete_the_row); a row that we only
    # read was deleted by a program that ignored the lock.
    exists = got.step.count or got.step.found is not None
    deleted = not exists and mode is Mode.WRITE
    return got.held or got.step.count > 1 or deleted
