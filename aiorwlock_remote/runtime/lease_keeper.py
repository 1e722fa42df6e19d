"""The keeper: renews every grant of a process, in threads of its own.

A blocked event loop keeps its locks, because the loop is not needed to renew them. What
is due is renewed in batches over the keeper's own connection, at a third of the lease,
and retried until the local deadline: a renewal that failed is not a loss before it.

One thread watches over the leases and never waits for the store, so that whatever runs
out is told at its deadline. What is due it hands to a second one (``RenewalWorker``).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Protocol

from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.errors import BackendUnavailable, LossReason
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock, Renewer
from aiorwlock_remote.runtime.deadline_queue import DeadlineQueue
from aiorwlock_remote.runtime.lease import Lease, LeaseState, LeaseTerms
from aiorwlock_remote.runtime.renewal_worker import (
    MAX_BATCH,
    RENEWAL_IN_FLIGHT,
    RenewalWorker,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.keeper")


class KeeperLoop(Protocol):
    """What is to be known of the loop that the leases belong to."""

    @property
    def clock(self) -> Clock:
        """What times are read from."""

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Run it in the loop, soon."""

    def is_closed(self) -> bool:
        """Whether the loop has ended, for good."""


class LeaseKeeper:
    """Watches over leases. ``ready`` and ``add`` are for the loop.

    The thread starts when the first grant is asked for that needs it, and whatever goes
    wrong in it with one lease, it goes on with the others.
    """

    def __init__(
        self,
        renewer: Callable[[], Renewer],
        host: KeeperLoop,
        behind: Callable[[bool], object] = bool,
    ) -> None:
        """``renewer`` opens the keeper's own connection when first needed.

        ``behind``: told whether renewals are late, from any thread.
        """
        self._host = host
        self._clock = host.clock
        self._agenda = DeadlineQueue()
        self._planned = 0.0  # when the thread wakes by itself
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._closing = False
        self._renewing = RenewalWorker(renewer, host.clock, self._again, behind)
        self._beat = 0.0
        self._took_at = 0.0  # when the thread last took leases to look after

    def doubts(self) -> None:
        """``renew_all`` may be called: grants without end are to be known, too."""
        self._agenda.keeps_endless = True

    def ready(self, terms: LeaseTerms) -> None:
        """Before a grant is asked for: that it could be kept.

        Raises:
            BackendUnavailable: no thread could be started; the next call tries again.
        """
        if terms.watched:
            self._start()

    def add(self, lease: Lease) -> None:
        """Keep this lease alive until it ends."""
        if not (lease.terms.watched or self._agenda.keeps_endless):
            return
        self._renewing.gather(lease)
        now = self._clock.now()
        with self._lock:
            self._beat = now  # the caller is the loop, alive
            if lease.since < self._renewing.doubted_at and lease.terms.keep:
                # Asked for before another server took over: its answer may be of the
                # one before (test_keeper_failover.py).
                lease.renew_due = now
            if self._agenda.put(lease, _next_look(lease, now)) < self._planned:
                self._changed.notify()

    def renew_all(self) -> None:
        """Renew every grant now, in any thread: another server has taken over.

        It knows none that was not replicated, and has given those to somebody else: who
        holds one is told at once, not after a third of a lease.
        """
        with self._lock:
            now = self._renewing.doubted_at = self._clock.now()
            leases = [lease for lease in self._agenda.all() if lease.terms.keep]
            for lease in leases:
                lease.renew_due = now
                self._agenda.move(lease, now)
            self._changed.notify()
        if leases:
            try:
                self._start()
            except BackendUnavailable as exc:
                log_event(log, "renewal_failed", grants=len(leases), error=str(exc))

    def close(self) -> threading.Thread | None:
        """Stop renewing; the thread to be joined, if there is one."""
        with self._lock:
            self._closing = True
            self._changed.notify()
        return self._thread

    def _start(self) -> None:
        if self._thread is None and not self._closing:
            self._thread = start_thread(self._run, "keeper")

    def _run(self) -> None:
        try:
            while (batch := self._wait_for_batch()) is not None:
                self._look_after(batch)
        finally:
            self._renewing.close()

    def _wait_for_batch(self) -> list[Lease] | None:
        with self._lock:
            while not self._closing:
                now = self._clock.now()
                batch = self._agenda.take(now, MAX_BATCH)
                if batch:
                    self._took_at = now
                    return batch
                self._planned = self._agenda.next
                idle = self._planned == math.inf
                self._changed.wait(None if idle else max(0.0, self._planned - now))
        return None

    def _look_after(self, leases: list[Lease]) -> None:
        if any(lease.terms.max_stall is not None for lease in leases):
            self._host.call_soon(self._alive)
        now, over = self._clock.now(), self._host.is_closed()
        due: list[Lease] = []
        for lease in leases:
            with self._renewing.going_on([lease]):
                if self._is_due(lease, now, over=over):
                    due.append(lease)
        if over:  # nobody can ask for anything any more, nor close
            self.close()
        elif due:
            self._renewing.renew(due)

    def _is_due(self, lease: Lease, now: float, *, over: bool) -> bool:
        """Whether it is to be renewed now; one that is over is told so.

        ``over``: the loop is, in which it could be released.
        """
        reason = self._ended(lease, now)
        if reason is not None:
            lease.lose(reason)
        elif over or lease.abandoned():
            lease.lose("expired")
            log_event(
                log, "owner_gone", resource=lease.resource.label, fence=lease.fence
            )
        elif lease.renew_due <= now:
            return True
        else:
            self._again(lease)
        return False

    def _ended(self, lease: Lease, now: float) -> LossReason | None:
        terms = lease.terms
        if lease.deadline is not None and now >= lease.deadline:
            under_way = terms.keep and lease.renew_due == RENEWAL_IN_FLIGHT
            return "unreachable" if lease.attempts or under_way else "expired"
        if terms.max_hold is not None and now >= lease.since + terms.max_hold:
            return "stalled"
        if terms.max_stall is not None and now - self._beat > terms.max_stall:
            return "stalled"
        return None

    def _again(self, lease: Lease) -> None:
        if lease.state is LeaseState.HELD:
            now = self._clock.now()
            with self._lock:
                # ``renew_all`` did not see what the thread had taken before it.
                if self._renewing.doubted_at > self._took_at and lease.terms.keep:
                    lease.renew_due = now
                if self._agenda.move(lease, _next_look(lease, now)) < self._planned:
                    self._changed.notify()  # we may be another thread

    def _alive(self) -> None:
        self._beat = self._clock.now()


def _next_look(lease: Lease, now: float) -> float:
    terms, due = lease.terms, lease.renew_due
    if lease.deadline is not None:
        due = min(due, lease.deadline)
    if terms.max_hold is not None:
        due = min(due, lease.since + terms.max_hold)
    if terms.max_stall is not None:
        due = min(due, now + terms.max_stall / 2)
    return due
