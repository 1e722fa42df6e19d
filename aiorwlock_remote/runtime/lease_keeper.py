"""``LeaseKeeper``: renews the grants of a ``Locks`` in threads, also if the loop hangs.

The ``LeaseKeeper``'s thread watches the deadlines and never waits for the store: a
grant whose lease runs out is lost at its deadline even if the store hangs. The
``RenewalWorker``'s thread sends the renewals when a third of a lease is over, in
batches over a connection of its own, and repeats those that fail until the deadline.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from random import random
from typing import TYPE_CHECKING, Literal, Protocol

from aiorwlock_remote._util.native import Condition, Lock, SimpleQueue, Thread
from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.core.commands import NotHeld
from aiorwlock_remote.core.ticket import holder_of
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.errors import BackendError, BackendUnavailable, LossReason
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    Clock,
    Renewal,
    RenewerBase,
)
from aiorwlock_remote.runtime.deadline_queue import SLOT_SECONDS, DeadlineQueue
from aiorwlock_remote.runtime.lease import (
    Lease,
    LeaseState,
    LeaseTerms,
    local_deadline,
)

if TYPE_CHECKING:
    from aiorwlock_remote.runtime.store_client import AcquireThrottle

MAX_BATCH = 500
"""Leases that are renewed in one request."""
LANE_RETRY_INTERVAL = 0.05
"""Seconds until the leases of a server that has not answered yet are renewed."""
RENEWAL_IN_FLIGHT: float = math.inf
"""``renew_due`` of a lease while its renewal is under way."""
MIN_REPLY_TIMEOUT = 1.0
"""Seconds to wait for a reply at least, if that leaves time for a retry."""
REPLY_TIMEOUT_SHARE = 0.9
"""Part of the time to a batch's first deadline, after which no reply is awaited."""
ABORT_INTERVAL = 0.1
"""Seconds between two calls of ``RenewerBase.give_up`` while closing."""
LATE_FRACTION = 0.5
"""Part of a lease after which its renewal is late; it is due after a third."""
ENDLESS_GRANT_TIMEOUT = 10.0
"""Seconds to use as the time to the deadline if a grant has none."""
BATCHING_DIVISOR = 30
"""A renewal is sent earlier by up to this part of its lease, together with others."""

RenewalOutcome = Literal["renewed", "failed", "gone"]
"""What became of a background renewal: ``renewed``; ``failed``, and is repeated;
``gone``: the store no longer has the grant, which is lost.
"""
RenewalCallback = Callable[[RenewalOutcome, int, Exception | None], object]
"""``callback(outcome, grants, error)``, called in a thread of the keeper."""

_OURS_OR_LOST = LeaseState.HELD, LeaseState.LOST

log: logging.Logger = logging.getLogger("aiorwlock_remote.keeper")


class _LaneThread:
    # Renews over one server after the other. Not a thread for each batch: under gevent
    # each thread leaves two descriptors behind (_util/native.py).
    def __init__(self) -> None:
        self.work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.idle = True
        self.thread: Thread = start_thread(self._run, "keeper lane")

    def _run(self) -> None:
        while (work := self.work.get()) is not None:
            work()
            self.idle = True


class RenewalWorker:
    """The thread that sends renewals, in batches; the first batch starts it.

    If the handling of one lease raises an unexpected error, that is logged, and the
    thread and the renewal of other leases continue (test_lease_keeper_threads.py). If
    the store has several servers, each that has not answered has a thread, so that one
    that hangs delays no other.
    """

    def __init__(
        self,
        open_renewer: Callable[[], RenewerBase],
        clock: Clock,
        check_again: Callable[[Lease], object],
        throttle: AcquireThrottle | None = None,
    ) -> None:
        """Prepare the thread.

        Args:
            open_renewer: opens the connection for renewals; called in the thread that
                sends the first renewal.
            clock: local monotonic clock.
            check_again: called with each lease whose time of renewal (``renew_due``)
                has changed, in the thread that changed it.
            throttle: while renewals are late, its ``behind`` is set to True, which
                delays acquire requests; None: none are delayed.
        """
        self.sent: int = 0
        """Number of renewals sent, one for each lease of a batch."""
        self.failed: int = 0
        """Number of renewals that failed and are repeated."""
        self.on_renewals: RenewalCallback | None = None
        """Called after each batch, for each outcome in it; must not raise."""
        self._open_renewer = open_renewer
        self._clock = clock
        self._check_again = check_again
        self._throttle = throttle
        self._due: SimpleQueue[list[Lease] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._closing = False
        self._renewer: RenewerBase | None = None
        self._lanes: list[_LaneThread] = []
        self._busy: set[Hashable] = set()
        self.doubted_at: float = -math.inf
        """Local time of the last failover: older requests may have reached the server
        before it, so that the new server does not know what was replied."""
        self._counting = Lock()
        # At random, so that the processes of a host do not all renew at once.
        self.phase: float = random()
        """Offset in [0, 1) of the times at which this process's batches are due."""

    def renew(self, leases: list[Lease]) -> None:
        """Send renewals of these leases soon, in the worker's thread."""
        for lease in leases:
            lease.renew_due = RENEWAL_IN_FLIGHT
            self._check_again(lease)
        if self._thread is None:
            try:
                self._thread = start_thread(self._run, "renewals")
            except BackendUnavailable:
                # No thread can be had: better renewed in the keeper's thread, which
                # then watches no deadline meanwhile, than not at all.
                self._renew(leases)
                return
        self._due.put(leases)

    def close(self) -> None:
        """Stop renewing. Block until renewals under way are over or aborted."""
        self._closing = True
        self._due.put(None)
        if self._thread is not None:
            self._join(self._thread)
        for lane in self._lanes:
            lane.work.put(None)
            self._join(lane.thread)
        if self._renewer is not None:
            self._renewer.close()

    @contextmanager
    def going_on(self, leases: list[Lease]) -> Iterator[None]:
        """Context manager: if its block fails, log that and renew ``leases`` later."""
        try:
            yield
        except Exception:  # noqa: BLE001 - it is logged
            if not all(lease.attempts for lease in leases):
                log_event(log, "keeper_failed", logging.ERROR, exc_info=True)
            self._retry(leases)

    def _join(self, thread: Thread) -> None:
        while thread.is_alive():
            renewer = self._renewer
            if renewer is not None:
                # Again and again: a request may have begun after the last time.
                renewer.give_up()
            thread.join(ABORT_INTERVAL)

    def _run(self) -> None:
        while (leases := self._next_batch()) is not None:
            self._renew(leases)

    def _next_batch(self) -> list[Lease] | None:
        leases = self._due.get()  # None: close
        while leases is not None and len(leases) < MAX_BATCH and not self._due.empty():
            more = self._due.get()
            leases = None if more is None else leases + more
        return None if self._closing else leases

    def _renew(self, leases: list[Lease]) -> None:
        leases = [lease for lease in leases if lease.state is LeaseState.HELD]
        if leases:
            with self.going_on(leases):
                self._renew_in_lanes(leases)

    def _renew_in_lanes(self, leases: list[Lease]) -> None:
        try:
            if self._renewer is None:
                self._renewer = self._open_renewer()
        except Exception as exc:  # noqa: BLE001 - the thread is needed for the others
            self._failed(leases, exc)
            return
        renewer = self._renewer
        lanes: defaultdict[Hashable, list[Lease]] = defaultdict(list)
        for lease in leases:
            lanes[renewer.lane(lease.resource)].append(lease)
        for lane, some in lanes.items():
            self._renew_beside(renewer, lane, some)

    def _renew_beside(
        self, renewer: RenewerBase, lane: Hashable, leases: list[Lease]
    ) -> None:
        # In a thread of the server's own: one that hangs delays no other.
        if lane is None:
            self._renew_over(renewer, leases)
        elif lane in self._busy:
            now = self._clock.now()
            for lease in leases:  # the lane has not answered what was sent before
                lease.renew_due = now + LANE_RETRY_INTERVAL
                self._check_again(lease)
        else:
            try:
                thread = next((each for each in self._lanes if each.idle), None)
                if thread is None:
                    self._lanes.append(thread := _LaneThread())
            except BackendUnavailable:
                self._renew_over(renewer, leases)
                return
            self._busy.add(lane)
            thread.idle = False
            thread.work.put(partial(self._renew_lane, renewer, lane, leases))

    def _renew_lane(
        self, renewer: RenewerBase, lane: Hashable, leases: list[Lease]
    ) -> None:
        try:
            with self.going_on(leases):
                self._renew_over(renewer, leases)
        finally:
            self._busy.discard(lane)

    def _renew_over(self, renewer: RenewerBase, leases: list[Lease]) -> None:
        sent_at = self._clock.now()
        leases.sort(key=lambda lease: lease.deadline or sent_at + ENDLESS_GRANT_TIMEOUT)
        first = leases[0].deadline or sent_at + ENDLESS_GRANT_TIMEOUT
        batch = [
            Renewal(
                lease.resource,
                lease.ticket,
                None if lease.deadline is None else lease.terms.lease_micros or 0,
            )
            for lease in leases
        ]
        with self._counting:  # lanes renew in threads of their own
            self.sent += len(batch)
        late = any(_is_late(lease, sent_at) for lease in leases)
        self._hold_acquires_back(late)
        try:
            outcomes = renewer.renew(batch, reply_timeout(first - sent_at))
        except Exception as exc:  # noqa: BLE001 - the thread is needed for the others
            self._failed(leases, exc)
            return
        finally:
            if late and self._due.empty():  # the batches in the queue may be late, too
                self._hold_acquires_back(late=False)
        renewed = gone = 0
        failed: dict[int, tuple[list[Lease], Exception]] = {}
        with self.going_on(leases):
            for lease, outcome in zip(leases, outcomes, strict=True):
                if isinstance(outcome, NotHeld):
                    was_held = lease.state is LeaseState.HELD
                    lease.gone(outcome.reason)
                    # A grant that was released meanwhile is no loss.
                    gone += was_held and lease.state is LeaseState.LOST
                    self._retry([lease])  # unless it was lost
                elif isinstance(outcome, Exception):
                    # One error may be that of many: it is reported once.
                    some, _ = failed.setdefault(id(outcome), ([], outcome))
                    some.append(lease)
                else:
                    renewed += 1
                    endless = lease.deadline is None
                    lease.renewed(sent_at, None if endless else lease.terms.lease)
                    _gather(lease, self.phase)
                    if sent_at < self.doubted_at:
                        # The reply may be of the server before this one, which the
                        # new one never heard of: ask again (test_lease_keeper_failover
                        # test_an_answer_to_an_older_request_is_asked_for_again).
                        lease.renew_due = self.doubted_at
                    _note("renewed", lease)
                    self._check_again(lease)
            for some, error in failed.values():
                self._failed(some, error)
        self._report("renewed", renewed)
        self._report("gone", gone)

    def _report(
        self, outcome: RenewalOutcome, grants: int, error: Exception | None = None
    ) -> None:
        if grants and self.on_renewals is not None:
            self.on_renewals(outcome, grants, error)

    def _hold_acquires_back(self, late: bool) -> None:  # noqa: FBT001 - one private flag
        if self._throttle is not None:
            self._throttle.behind = late

    def _failed(self, leases: list[Lease], error: Exception) -> None:
        # Not of a grant that was released meanwhile, whose release may have been in the
        # way (test_a_renewal_in_the_way_of_a_release_is_no_failure).
        count = sum(lease.state in _OURS_OR_LOST for lease in leases)
        with self._counting:
            self.failed += count
        held = (lease for lease in leases if lease.state is LeaseState.HELD)
        fresh = sum(not lease.attempts for lease in held)
        if fresh:  # once an outage: towards the deadline retries come thick and fast
            log_event(log, "renewal_failed", grants=fresh, error=str(error))
        self._retry(leases)
        self._report("failed", count, error)

    def _retry(self, leases: list[Lease]) -> None:
        now = self._clock.now()
        for lease in leases:
            lease.attempts += 1
            # Retries come closer together towards the deadline, and never so late
            # that there is none left before it.
            deadline = lease.deadline
            left = ENDLESS_GRANT_TIMEOUT if deadline is None else deadline - now
            pause = min(back_off(lease.attempts, random()), left / 3)
            if lease.terms.keep or lease.pushed:
                lease.renew_due = now + max(0.01, pause)
            _note("renewal_retried", lease)
            self._check_again(lease)


class KeeperLoop(Protocol):
    """What the lease keeper needs of the event loop in which the grants are used."""

    @property
    def clock(self) -> Clock: ...

    def call_soon(self, function: Callable[..., object], *args: object) -> None: ...

    def is_closed(self) -> bool: ...


class LeaseKeeper:
    """Watches the leases of a ``Locks`` in a thread, and has them renewed in time.

    The thread starts before the first request for a grant with a time limit.

    Invariants (tests/runtime/test_lease_keeper_random_histories.py):

    - A held lease with a deadline is always in the ``DeadlineQueue``, in the batch that
      the thread is checking, or with the ``RenewalWorker``; so none is forgotten.
    - The thread never waits for the store: a lease is lost at its deadline even while a
      renewal hangs (test_a_renewal_that_hangs_hides_no_other_loss).
    - No request for a grant is sent if the grant could not be watched
      (test_nothing_is_asked_for_that_could_not_be_kept).
    - After a failover every grant is renewed at once, and replies to older requests do
      not count (test_lease_keeper_failover.py).
    - When the loop has ended, its grants are not renewed any more (test_loop_ended.py).
    """

    def __init__(
        self,
        open_renewer: Callable[[], RenewerBase],
        loop: KeeperLoop,
        throttle: AcquireThrottle | None = None,
    ) -> None:
        self.due: int = 0
        """Number of renewals that became due."""
        self._loop = loop
        self._clock = loop.clock
        self._deadlines = DeadlineQueue()
        # Local time until which the thread sleeps: ``add`` wakes it only for a lease
        # that is due sooner.
        self._planned = 0.0
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._thread: Thread | None = None
        self._closing = False
        self._worker = RenewalWorker(
            open_renewer, loop.clock, self._check_again, throttle
        )
        self._phase = self._worker.phase
        # Local times at which the loop last ran, and the thread last took a batch.
        self._loop_ran_at = 0.0
        self._took_at = 0.0

    @property
    def renewals(self) -> tuple[int, int, int]:
        """How many renewals became due, were sent, and failed, in this order."""
        return self.due, self._worker.sent, self._worker.failed

    def report_renewals(self, callback: RenewalCallback) -> None:
        """From now on call ``callback`` with what became of background renewals, in the
        thread that sent them. It must not raise.
        """
        self._worker.on_renewals = callback

    def track_endless(self) -> None:
        """From now on keep grants without a lease as well, for ``renew_all``."""
        self._deadlines.keeps_endless = True

    def ready(self, terms: LeaseTerms) -> None:
        """Start the thread if a grant with ``terms``, about to be requested, needs it.
        Raise ``BackendUnavailable`` if no thread can be started.
        """
        if terms.watched and self._thread is None:
            self._start()

    def add(self, lease: Lease) -> None:
        """Begin to watch and renew a lease. Call this in the event loop's thread."""
        if not (lease.terms.watched or self._deadlines.keeps_endless):
            return
        _gather(lease, self._phase)
        now = self._clock.now()
        with self._lock:
            self._loop_ran_at = now
            if lease.since < self._worker.doubted_at and lease.terms.keep:
                # Requested before another server took over: the grant may be one of
                # which only the server before it knew (test_lease_keeper_failover.py).
                lease.renew_due = now
            lease.check_at = _next_check(lease, now)
            if lease.check_at < self._planned - SLOT_SECONDS:
                # A slot, also if it ends at once: the thread then sleeps until that
                # time, and is not woken for each next lease.
                self._deadlines.put(lease, lease.check_at)
                self._changed.notify()
            else:
                lease.slot = self._deadlines.arrived
                lease.slot[lease] = None

    def renew_all(self) -> None:
        """Renew every grant now, because another server of the store has taken over.

        The new server may not know the newest grants, and may have given their locks to
        other processes: so the holders in this process learn of a loss at once, and not
        after a third of a lease. May be called in any thread.
        """
        with self._lock:
            now = self._worker.doubted_at = self._clock.now()
            leases = [lease for lease in self._deadlines.all() if lease.terms.keep]
            for lease in leases:
                lease.renew_due = now
                self._deadlines.move(lease, now)
            self._changed.notify()
        if leases:
            try:
                self._start()
            except BackendUnavailable as exc:
                log_event(log, "renewal_failed", grants=len(leases), error=str(exc))

    def close(self) -> Thread | None:
        """Stop renewing, without waiting. Return the thread to join, or None."""
        with self._lock:
            self._closing = True
            self._changed.notify()
        return self._thread

    def close_in_thread(self) -> None:
        """Stop renewing soon. May be called amid anything, as by the garbage collector,
        which may run in a thread that has the keeper's lock.
        """
        if self._thread is not None:
            with suppress(BackendError):  # no thread can be had
                start_thread(self.close, "keeper's end")

    def _start(self) -> None:
        if self._thread is None and not self._closing:
            self._thread = start_thread(self._run, "keeper")

    def _run(self) -> None:
        try:
            while (batch := self._wait_for_batch()) is not None:
                self._check(batch)
        finally:
            self._worker.close()

    def _wait_for_batch(self) -> list[Lease] | None:
        with self._lock:
            while not self._closing:
                now = self._clock.now()
                batch = self._deadlines.take(now, MAX_BATCH)
                if batch:
                    self._took_at = now
                    return batch
                self._planned = self._deadlines.next
                idle = self._planned == math.inf
                self._changed.wait(None if idle else max(0.0, self._planned - now))
        return None

    def _check(self, leases: list[Lease]) -> None:
        if any(lease.terms.max_stall is not None for lease in leases):
            self._loop.call_soon(self._loop_runs)
        now, loop_ended = self._clock.now(), self._loop.is_closed()
        due: list[Lease] = []
        for lease in leases:
            with self._worker.going_on([lease]):
                if self._is_due(lease, now, loop_ended=loop_ended):
                    due.append(lease)
        if loop_ended:
            # No task is left that could close the ``Locks``: the thread would keep
            # the process alive (test_its_grant_is_not_renewed_for_ever).
            self.close()
        elif due:
            self.due += len(due)
            self._worker.renew(due)

    def _is_due(self, lease: Lease, now: float, *, loop_ended: bool) -> bool:
        reason = self._loss(lease, now)
        if reason is not None:
            lease.lose(reason)
        elif loop_ended or lease.abandoned():
            lease.lose("expired")
            log_event(
                log, "owner_gone", resource=lease.resource.label, fence=lease.fence
            )
        elif lease.renew_due <= now:
            return True
        else:
            self._check_again(lease)
        return False

    def _loss(self, lease: Lease, now: float) -> LossReason | None:
        terms = lease.terms
        if lease.deadline is not None and now >= lease.deadline:
            in_flight = terms.keep and lease.renew_due == RENEWAL_IN_FLIGHT
            return "unreachable" if lease.attempts or in_flight else "expired"
        if terms.max_hold is not None and now >= lease.since + terms.max_hold:
            return "stalled"
        if terms.max_stall is not None and now - self._loop_ran_at > terms.max_stall:
            return "stalled"
        return None

    def _check_again(self, lease: Lease) -> None:
        if lease.state is LeaseState.HELD:
            now = self._clock.now()
            with self._lock:
                # Another server took over while the thread had this lease in its
                # hands, so that ``renew_all`` did not find it in the queue
                # (test_a_lease_that_the_thread_looks_at_is_renewed_as_well).
                if self._worker.doubted_at > self._took_at and lease.terms.keep:
                    lease.renew_due = now
                if self._deadlines.move(lease, _next_check(lease, now)) < self._planned:
                    self._changed.notify()  # the caller may be the worker's thread

    def _loop_runs(self) -> None:
        self._loop_ran_at = self._clock.now()


def _gather(lease: Lease, phase: float) -> None:
    # A pushed grant waits for no others: it has less time than such a part.
    if lease.pushed or lease.terms.lease is None:
        return
    # Earlier by up to a thirtieth of the lease: many leases that began one after the
    # other are due together then, and renewed in one batch
    # (test_grants_of_one_moment_are_renewed_together).
    if math.isfinite(lease.renew_due):
        part = lease.terms.lease / BATCHING_DIVISOR
        ticks = math.floor(lease.renew_due / part - phase)
        lease.renew_due = (ticks + phase) * part


def _next_check(lease: Lease, now: float) -> float:
    terms, due, deadline = lease.terms, lease.renew_due, lease.deadline
    if deadline is not None and deadline < due:
        due = deadline
    if terms.max_hold is not None:
        due = min(due, lease.since + terms.max_hold)
    if terms.max_stall is not None:
        due = min(due, now + terms.max_stall / 2)
    return due


def _is_late(lease: Lease, now: float) -> bool:
    # After a failed attempt it is the store that is late, and fewer acquires would not
    # help.
    length, deadline = lease.terms.lease, lease.deadline
    if length is None or deadline is None or lease.attempts or lease.pushed:
        return False
    sent_at = deadline - local_deadline(0.0, length, lease.terms.margin)
    return now - sent_at > length * LATE_FRACTION


def reply_timeout(left: float) -> float:
    """Return for how many seconds to wait for the reply to a renewal of a grant whose
    deadline is ``left`` seconds away. If no reply comes, enough time remains to renew
    over a new connection.
    """
    return max(0.05, min(REPLY_TIMEOUT_SHARE * left, max(MIN_REPLY_TIMEOUT, left / 2)))


def _note(event: str, lease: Lease) -> None:
    if log.isEnabledFor(logging.DEBUG):
        log_event(
            log,
            event,
            logging.DEBUG,
            resource=lease.resource.label,
            holder=holder_of(lease.ticket),
            attempts=lease.attempts,
            left=lease.left,
        )
