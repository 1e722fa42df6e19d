"""A row lock that was obtained; one with a lease is renewed until it is given back."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.row_grants import RowGrant
from aiorwlock_remote.core.timing import RENEWALS_PER_LEASE, local_deadline
from aiorwlock_remote.errors import LockError, LossReason
from aiorwlock_remote.locks.held_state import LossScopes
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.recipes.row_lock.target import RowAttempt, RowOutcome, RowTarget
from aiorwlock_remote.runtime.event_loop import TaskEventLoop

S = TypeVar("S")

log: logging.Logger = logging.getLogger("aiorwlock_remote.row_lock")

RENEWAL_RETRIES = 10
"""Renewals that may fail while a third of a lease passes."""


def _event() -> anyio.Event:
    return anyio.Event()  # not named above: anyio imports much more for it


@dataclass(eq=False, slots=True)
class RowLease(Generic[S]):
    """``deadline``: local time until which it may be believed.

    ``entered``: it lives as long as its ``task``, as in ``async with``; else until
    nothing refers to its ``RowHeld`` any more, which has it ``dropped``.
    ``closed_under``: given back because another task closed the ``Locks``.
    """

    row: RowTarget[S]
    attempt: RowAttempt
    grant: RowGrant | None = None
    task: weakref.ref[Any] | None = None
    entered: bool = False
    dropped: bool = False
    closed_under: bool = False
    deadline: float = math.inf
    lost: LossReason | None = None
    loss: LossScopes = field(default_factory=LossScopes)
    over: anyio.Event = field(default_factory=_event)

    def believed(self, now: float) -> bool:
        """Whether it is held, as far as is known here."""
        return self.lost is None and now < self.deadline

    def in_the_way(self, now: float) -> bool:
        """Whether its own task would wait for it in vain."""
        ends = self.dropped and self.grant is not None
        return self.believed(now) and not ends

    def abandoned(self, host: TaskEventLoop) -> bool:
        """Whether nobody is left who could give it back."""
        if self.entered:
            return self.task is not None and host.finished(self.task)
        return self.dropped

    def lose(self, reason: LossReason) -> None:
        """It is not held any more, and its user does not know yet."""
        if self.lost is None and not self.over.is_set():
            self.lost = reason
            self.loss.happened()

    def close(self, task: object) -> None:
        """``task`` closes the ``Locks``: what others do under this is cancelled."""
        mine = self.task is not None and self.task() is task
        self.closed_under = not mine and self.lost is None
        if self.closed_under:
            self.loss.happened()

    def renewed(self, sent: float, lease: float) -> None:
        """By a request that was sent then."""
        self.deadline = max(self.deadline, local_deadline(sent, lease, None))


async def renew_until_over(
    holding: RowLease[S], ask: Callable[[], Pending[RowOutcome]], host: TaskEventLoop
) -> None:
    """Renew each third of the lease, until it is over or lost, or nobody has it.

    A renewal of which nothing is known is not a loss before the deadline.
    """
    lease, now = holding.row.way.lease, host.clock.now
    assert lease is not None
    pause = lease / RENEWALS_PER_LEASE
    while True:
        left = holding.deadline - now()
        with anyio.move_on_after(max(0.0, min(pause, left))):
            await holding.over.wait()
        if holding.over.is_set() or holding.lost is not None:
            return
        if holding.abandoned(host):
            row, grant = holding.row.label, holding.grant
            fence = None if grant is None else grant.fence
            log_event(log, "owner_gone", resource=row, fence=fence)
            return
        if now() >= holding.deadline:
            holding.lose("unreachable")
            return
        sent = now()
        got = await _outcome_within(ask(), holding.deadline - sent)
        if got is None or got.again:
            pause = lease / RENEWALS_PER_LEASE / RENEWAL_RETRIES
            continue
        if got.grant is None:
            holding.lose(reason_of_loss(holding, now()))
            return
        holding.renewed(sent, lease)
        pause = lease / RENEWALS_PER_LEASE


def reason_of_loss(holding: RowLease[S], now: float) -> LossReason:
    """A grant that is not there: its time was over, or somebody broke it."""
    return "expired" if now >= holding.deadline else "forced"


async def _outcome_within(
    pending: Pending[RowOutcome], seconds: float
) -> RowOutcome | None:
    """None: not known in that time."""
    with anyio.move_on_after(seconds):
        try:
            return await pending
        except LockError:
            return None
    return None
