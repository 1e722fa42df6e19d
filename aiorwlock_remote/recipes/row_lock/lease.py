"""The state of a row lock that this process holds, and the renewal of its lease."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.row_grants import RowGrant
from aiorwlock_remote.errors import LockError, LossReason
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.recipes.row_lock.target import (
    RowAttempt,
    RowOutcome,
    RowTarget,
    log,
)
from aiorwlock_remote.runtime.event_loop import TaskEventLoop
from aiorwlock_remote.runtime.lease import RENEWALS_PER_LEASE, local_deadline

S = TypeVar("S")

RENEWAL_RETRIES = 10
"""How many times sooner than usual the next renewal follows one without an answer."""


def _event() -> anyio.Event:
    # Not `default_factory=anyio.Event`: anyio imports its submodules when one of its
    # names is first used, which would be with the import of this module.
    return anyio.Event()


@dataclass(eq=False, slots=True)
class RowLease(Generic[S]):
    """State of a row lock that this process holds, with or without a lease.

    Args:
        attempt: The attempt that locked the row.
        loop: The event loop of the task that acquired it.
        grant: The grant in the row; None without a lease.
        task: The task that acquired it.
        entered: True if the lock belongs to ``task``, as in ``async with``; False if it
            belongs to its ``RowHeld``, whose destructor sets ``dropped``.
        closed_under: True if it was released because another task closed the ``Locks``.
        deadline: Local monotonic time from which the store may end the lease.
        lost: Why the lock was lost; None as long as this process knows of no loss.
        body: The cancel scope of the ``async with`` body; a loss cancels it.
        over: Set once the lock was released.
    """

    attempt: RowAttempt[S]
    loop: TaskEventLoop
    grant: RowGrant | None = None
    task: weakref.ref[Any] | None = None
    entered: bool = False
    dropped: bool = False
    closed_under: bool = False
    deadline: float = math.inf
    lost: LossReason | None = None
    body: anyio.CancelScope | None = None
    over: anyio.Event = field(default_factory=_event)

    @property
    def row(self) -> RowTarget[S]:
        return self.attempt.row

    @property
    def fence(self) -> int | None:
        return None if self.grant is None else self.grant.fence

    @property
    def left(self) -> float:
        """Seconds until the deadline; infinite without a lease."""
        return self.deadline - self.loop.clock.now()

    def believed(self) -> bool:
        """Return False if this process knows a loss, or the deadline has passed."""
        return self.loss_reason() is None

    def loss_reason(self) -> LossReason | None:
        """Return why the lock is lost; None while this process counts it as held."""
        return "expired" if self.lost is None and self.left <= 0 else self.lost

    def reason_gone(self) -> LossReason:
        """Return "expired" if the deadline has passed, else "forced"."""
        return "expired" if self.left <= 0 else "forced"

    def blocks_own_task(self) -> bool:
        """Return True if the holding task would wait for itself for ever."""
        # A dropped lease ends by itself, so its task may wait for the row again
        # (test_who_dropped_it_may_ask_again).
        ends = self.dropped and self.grant is not None
        return self.believed() and not ends

    def abandoned(self) -> bool:
        """Return True if the owner (a task or a ``RowHeld``) no longer exists."""
        if self.entered:
            return self.task is not None and self.loop.finished(self.task)
        return self.dropped

    def lose(self, reason: LossReason) -> None:
        """Record the loss and cancel the body; do nothing after a release."""
        if self.lost is None and not self.over.is_set():
            self.lost = reason
            self._cancel_body()
            self.attempt.log_debug("lost", fence=self.fence, cause=reason)

    def close(self, task: object) -> None:
        """Cancel the body because ``task`` closes the ``Locks``.

        Do nothing if ``task`` itself holds the lock: it may continue after ``aclose``.
        """
        own = self.task is not None and self.task() is task
        self.closed_under = not own and self.lost is None
        if self.closed_under:
            self._cancel_body()

    def renewed(self, sent_at: float, lease: float) -> None:
        """Record a renewal for ``lease`` s, sent at ``sent_at`` (monotonic clock)."""
        self.deadline = max(self.deadline, local_deadline(sent_at, lease, None))

    def _cancel_body(self) -> None:
        if self.body is not None:
            self.body.cancel()


async def renew_until_over(
    held: RowLease[S], renew: Callable[[], Pending[RowOutcome]]
) -> None:
    """Renew a lease each third of its length, until it is released, lost or abandoned.

    ``renew`` sends one renewal. A renewal that got no answer is repeated after a tenth
    of the usual pause (``RENEWAL_RETRIES``); the lease is lost only at its deadline.
    """
    row, lease, now = held.row, held.row.strategy.lease, held.loop.clock.now
    assert lease is not None
    pause = lease / RENEWALS_PER_LEASE
    while True:
        with anyio.move_on_after(max(0.0, min(pause, held.left))):
            await held.over.wait()
        if held.over.is_set() or held.lost is not None:
            return
        if held.abandoned():
            log_event(log, "owner_gone", resource=row.label, fence=held.fence)
            return
        # Not before: a renewal without an answer may have been carried out
        # (test_a_server_that_says_nothing).
        if held.left <= 0:
            held.lose("unreachable")
            return
        # The lease counts from before the request: the store may have renewed it at
        # any time after that.
        sent_at = now()
        got = await _outcome_within(renew(), held.left)
        if got is None or got.again:
            pause = lease / RENEWALS_PER_LEASE / RENEWAL_RETRIES
            held.attempt.log_debug("renewal_retried", fence=held.fence)
            continue
        if got.grant is None:
            held.lose(held.reason_gone())
            return
        held.renewed(sent_at, lease)
        pause = lease / RENEWALS_PER_LEASE
        held.attempt.log_debug("renewed", fence=held.fence)


async def _outcome_within(
    pending: Pending[RowOutcome], seconds: float
) -> RowOutcome | None:
    with anyio.move_on_after(seconds):
        try:
            return await pending
        except LockError:
            return None
    return None
