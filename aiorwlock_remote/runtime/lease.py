"""``AcquireRequest``, a request for one lock, and ``Lease``, the grant that it got.

A ``Lease`` is shared by the event loop and the lease keeper's threads. It counts from
BEFORE the request that got or renewed it was sent, so that the holder stops relying on
it before the store stops honouring it. A deadline counted from the reply lets two
clients rely on the lock at once (model ``LeaseTime``, config ``reply``).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import field
from enum import Enum
from functools import partial
from typing import Any

from aiorwlock_remote._util.native import Lock
from aiorwlock_remote.core.commands import Reply
from aiorwlock_remote.core.doorman import Grant, Requester
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.text import check_reason
from aiorwlock_remote.core.ticket import Mode, Policy
from aiorwlock_remote.core.timing import MICROS, MIN_MARGIN
from aiorwlock_remote.core.value import replace, value
from aiorwlock_remote.errors import LossReason
from aiorwlock_remote.ports import Clock, Pending

# A lease is renewed each time a third of it has passed.
RENEWALS_PER_LEASE = 3

_NO_SLOT: dict[Any, None] = {}  # stays empty: of a lease that is in no slot


def default_margin(lease: float) -> float:
    """Return how many seconds early to stop relying on a lease, since clocks drift."""
    return max(0.01 * lease, MIN_MARGIN)


def local_deadline(sent_at: float, lease: float, margin: float | None) -> float:
    """Return the local monotonic time (s) until which a holder relies on a grant.

    Args:
        sent_at: local monotonic time (s) just before the grant's request was sent.
        lease: how long the store honours the grant, in seconds.
        margin: seconds to stop before the end of the lease; None: ``default_margin``.
    """
    kept_back = default_margin(lease) if margin is None else margin
    return sent_at + (lease - kept_back)


class LeaseState(Enum):
    """State of a lease in this process; all but ``HELD`` are final."""

    HELD = "held"
    RELEASED = "released"
    DETACHED = "detached"
    LOST = "lost"


# On Python 3.11 reading a member from its class takes as long as a function call.
HELD, RELEASED, DETACHED, LOST = LeaseState


@value
class LeaseTerms:
    """How long a grant lives and what ends it. Times in seconds; None: no limit.

    Attributes:
        lease: how long the grant lives in the store without a renewal.
        margin: how long before the end of the lease the holder counts it as lost.
        max_stall: the grant is lost if the event loop hangs for longer than this.
        max_hold: the grant is lost this long after its request, renewed or not.
        keep: whether the lease keeper renews the grant.
        watched: whether any time limit is set, so that the lease keeper has to watch
            the grant; computed.
        lease_micros: ``lease`` in microseconds, as stores count; computed.
        believed: for how long a holder relies on the grant, counted from the sending of
            its request; computed.
        renew_after: for how long the grant is not renewed; computed.
    """

    lease: float | None
    margin: float | None = None
    max_stall: float | None = None
    max_hold: float | None = None
    keep: bool = True
    watched: bool = field(init=False)
    lease_micros: int | None = field(init=False)
    believed: float = field(init=False)
    renew_after: float = field(init=False)

    def __post_init__(self) -> None:
        limits, lease = (self.lease, self.max_hold, self.max_stall), self.lease
        set_field = partial(object.__setattr__, self)
        set_field("watched", limits != (None, None, None))
        set_field("lease_micros", None if lease is None else round(lease * MICROS))
        believed = math.inf if lease is None else local_deadline(0, lease, self.margin)
        set_field("believed", believed)
        set_field("renew_after", self.pause(lease))

    def pause(self, lease: float | None) -> float:
        """Return the seconds after which a grant for ``lease`` seconds is renewed."""
        if lease is None or not self.keep:
            return math.inf
        return lease / RENEWALS_PER_LEASE


@value
class AcquireRequest:
    """Value object: a request for one lock, with its options. Times in seconds.

    ``reason`` has been checked by ``check_reason``. ``limit``: of a semaphore; 0 for a
    lock.
    """

    resource: Resource
    mode: Mode
    policy: Policy
    terms: LeaseTerms
    timeout: float | None = None
    reason: str = ""
    slow_wait: float | None = None
    max_waiters: int | None = None
    lock_delay: float = 0.0
    limit: int = 0

    def once(self, timeout: float | None, reason: str) -> AcquireRequest:
        """Return a copy for one attempt: ``timeout`` is how many seconds to wait (None:
        for ever), ``reason`` a text for other tasks that look who holds the lock. Raise
        ``ConfigurationError`` if the text is not valid.
        """
        if reason != "":
            check_reason(reason)
        return replace(self, timeout=timeout, reason=reason)


class Lease:
    """A grant that this process got from the store: its deadline, owner and state.

    Invariants (tests/runtime/test_lease.py):

    - A lease ends once: the first call of ``end`` or ``lose`` decides, in any thread,
      and ``on_loss`` is called at most once.
    - ``deadline`` never becomes earlier: the late reply to an old renewal cannot undo a
      newer renewal.
    - While a request may have moved the grant to another ticket, the lease is not lost
      because the store does not know the old ticket (``gone``).
    - A pushed grant ends at the time that its message was believed to prove, until a
      reply of the store has confirmed it (``pushed``).
    """

    # Of the class until they change: most grants only are acquired and released.
    state: LeaseState = HELD
    reason: LossReason | None = None
    # For the keeper: local time of the next check, and failed renewals since the last
    # good one.
    check_at: float = math.inf
    attempts: int = 0
    # A task or a ``Held``, and a function that says whether it has ended.
    owner: weakref.ref[Any] | None = None
    owner_gone: Callable[[weakref.ref[Any]], bool] | None = None
    on_loss: Callable[[Lease], None] | None = None
    # What sends the release of a row lock, which has no command in the store; None:
    # ``StoreClient`` does.
    send_release: Callable[[Lease], Pending[Reply]] | None = None
    # The slot of the keeper's queue that has this lease now: left at the end, else many
    # short grants would fill the queue until a third of their lease is over.
    slot: dict[Lease, None] = _NO_SLOT
    # The tickets to which requests under way (``upgrade``, ``downgrade``) may have
    # moved the grant. Changed by the loop only.
    moving: tuple[str, ...] = ()

    def __init__(
        self,
        resource: Resource,
        grant: Grant,
        terms: LeaseTerms,
        sent_at: float,
        clock: Clock,
        ends: float | None = None,
    ) -> None:
        """Make the lease of a new grant.

        Args:
            resource: what is held.
            grant: the grant, as the store or its message said.
            terms: how long the grant lives.
            sent_at: local monotonic time (s) when its request was sent; of a pushed
                grant, when its message was read.
            clock: local monotonic clock.
            ends: local monotonic time (s) at which a pushed grant ends unless the store
                confirms it; None: the grant is the reply to a request.
        """
        self.resource: Resource = resource
        self.ticket: str = grant.ticket
        self.mode: Mode = grant.mode
        self.fence: int = grant.fence
        self.who: Requester = grant.who
        self.lock_delay: int = grant.lock_delay
        self.terms: LeaseTerms = terms
        self.since: float = sent_at
        self._clock = clock
        self._lock = Lock()
        # Local time after which the grant must not be believed; None: never. It counts
        # from before the request that got or renewed the grant, minus the margin, so
        # that it lies before the end that the store counts.
        self.deadline: float | None = ends
        # Whether the grant was pushed, and the store has not confirmed it yet.
        self.pushed: bool = ends is not None
        # Local time of the next renewal.
        self.renew_due: float = sent_at + terms.renew_after
        if ends is None:
            if terms.lease is not None:
                self.deadline = sent_at + terms.believed
        else:
            # Also with ``keep=False``: this renewal is the second chance if the request
            # that confirms the grant is late or lost (test_a_lost_confirmation).
            self.renew_due = sent_at + (ends - sent_at) / RENEWALS_PER_LEASE

    @property
    def left(self) -> float | None:
        """Seconds to the local deadline; None: the lease has no deadline."""
        return None if self.deadline is None else self.deadline - self._clock.now()

    def renewed(self, sent_at: float, lease: float | None) -> None:
        """Extend the deadline, as the store has renewed the grant for ``lease`` seconds
        (None: for ever). ``sent_at``: local monotonic time when the request was sent.
        """
        with self._lock:
            if self.state is HELD:
                self._extend(sent_at, lease)
                self.attempts, self.pushed = 0, False

    def end(self, state: LeaseState) -> bool:
        """End the lease in ``state``; return True. Return False if it had ended."""
        with self._lock:
            if self.state is not HELD:
                return False
            self.state = state
        self.slot.pop(self, None)
        return True

    def lose(self, reason: LossReason) -> bool:
        """Lose the lease: call ``on_loss``, return True. False: it had ended before."""
        with self._lock:
            if self.state is not HELD:
                return False
            self.state, self.reason = LOST, reason
            on_loss = self.on_loss
        self.slot.pop(self, None)
        # Outside the lock: the callback may read the lease from another thread.
        if on_loss is not None:
            on_loss(self)
        return True

    def gone(self, reason: LossReason) -> None:
        """Lose the lease, because the store does not know its ticket. Does nothing
        while a request is under way that may have moved the grant to another ticket:
        the answer to that request decides.
        """
        if not self.moving:
            self.lose(reason)

    @contextmanager
    def moving_to(self, ticket: str) -> Generator[None, None, None]:
        """Context manager for the time of a request that may move the grant to the new
        ``ticket``: in its block the calls of ``gone`` do nothing.
        """
        # A tuple, replaced as a whole: the keeper's threads read it (``gone``).
        self.moving = (*self.moving, ticket)
        try:
            yield
        finally:
            self.moving = tuple(t for t in self.moving if t != ticket)

    def expired(self) -> bool:
        """Lose the lease if its deadline has passed; return whether it is lost."""
        if self.deadline is not None and self._clock.now() >= self.deadline:
            self.lose("expired")
        return self.state is LOST

    def abandoned(self) -> bool:
        """Return whether the owning task has ended or the ``Held`` was dropped."""
        return (
            self.owner is not None
            and self.owner_gone is not None
            and self.owner_gone(self.owner)
        )

    def _extend(self, sent_at: float, lease: float | None) -> None:
        if lease is None:
            self.deadline, self.renew_due = None, math.inf
            return
        until = local_deadline(sent_at, lease, self.terms.margin)
        # An answer that comes late must not take back what a newer one has promised.
        if self.deadline is None or until > self.deadline:
            self.deadline = until
        self.renew_due = sent_at + self.terms.pause(lease)
