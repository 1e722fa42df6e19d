"""The keeper: renews every grant of a process, in threads of its own.

A blocked event loop keeps its locks, because the loop is not needed to renew them. What
is due is renewed in batches over the keeper's own connection, at a third of the lease,
and retried until the local deadline: a renewal that failed is not a loss before it.

One thread watches over the leases and never waits for the store, so that whatever runs
out is told at its deadline. What is due it hands to a second one (``RenewalWorker``).

Leases by the time when they are to be looked at, in slots.

A lease that ends leaves its slot at once, and slots that everybody has left are
forgotten, so that many short grants cost no memory until they would have been renewed.

The keeper's second thread: it renews, and may have to wait for the store.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from random import random
from typing import Protocol

from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.core.commands import NotHeld
from aiorwlock_remote.core.timing import back_off, local_deadline, micros
from aiorwlock_remote.errors import BackendUnavailable, LossReason
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    AbortableRenewer,
    Clock,
    ParallelRenewer,
    Renewal,
    Renewer,
)
from aiorwlock_remote.runtime.lease import Lease, LeaseState, LeaseTerms

SLOT_SECONDS = 0.002
"""Seconds: leases due within so long of each other are looked at together."""
MAX_EMPTY_SLOTS = 1024
"""Slots that may stand empty."""


class DeadlineQueue:
    """What is to be looked at, and when. Its user guards it by a lock."""

    def __init__(self) -> None:
        self._due: dict[int, set[Lease]] = {}
        self._slots: list[int] = []  # a heap of the keys of ``_due``
        self._sweep_at = MAX_EMPTY_SLOTS
        self.keeps_endless: bool = False
        """Whether those that are never due are known as well."""
        self._endless: set[Lease] = set()

    @property
    def next(self) -> float:
        """When the next slot is due."""
        return self._slots[0] * SLOT_SECONDS if self._slots else math.inf

    def put(self, lease: Lease, due: float) -> float:
        """Plan it, unless it is; when it is to be looked at, infinity if not newly."""
        if lease.kept_in is not None and lease in lease.kept_in:
            return math.inf
        if due == math.inf:
            if self.keeps_endless:
                self._endless.add(lease)
                lease.kept_in = self._endless
            return math.inf
        slot = math.ceil(due / SLOT_SECONDS)
        leases = self._due.get(slot)
        if leases is None:
            if len(self._due) >= self._sweep_at:
                self._forget_left()
            leases = self._due[slot] = set()
            heapq.heappush(self._slots, slot)
        leases.add(lease)
        lease.kept_in = leases
        return slot * SLOT_SECONDS

    def move(self, lease: Lease, due: float) -> float:
        """As ``put``, also if it was planned for another time."""
        if lease.kept_in is not None:
            lease.kept_in.discard(lease)
        return self.put(lease, due)

    def all(self) -> list[Lease]:
        """Every lease that is known and has not ended."""
        known = [lease for leases in self._due.values() for lease in leases]
        known += self._endless
        return [lease for lease in known if lease.state is LeaseState.HELD]

    def take(self, now: float, most: int) -> list[Lease]:
        """What is due, and slots that everybody has left are forgotten on the way.

        Not as soon as they are left: a thread that forgot the slot it was to wake for
        would have to be told of the next lease at once, each time.
        """
        batch: list[Lease] = []
        if self.next > now:
            return batch
        while self._slots and len(batch) < most:
            leases = self._due[self._slots[0]]
            if leases and self.next > now:
                break
            due = list(leases)[: most - len(batch)]
            leases.difference_update(due)
            batch += [lease for lease in due if lease.state is LeaseState.HELD]
            if not leases:
                del self._due[heapq.heappop(self._slots)]
        return batch

    def _forget_left(self) -> None:
        """One that lies a day ahead would be come upon in a day."""
        self._due = {slot: leases for slot, leases in self._due.items() if leases}
        self._slots = list(self._due)
        heapq.heapify(self._slots)
        # So many are in use: not to be looked through for each new one.
        self._sweep_at = max(MAX_EMPTY_SLOTS, 2 * len(self._due))


log: logging.Logger = logging.getLogger("aiorwlock_remote.keeper")

MAX_BATCH = 500
LANE_RETRY_INTERVAL = 0.05
"""Seconds until a lane that has not answered is looked at again."""
RENEWAL_IN_FLIGHT: float = math.inf
"""When a lease is due to be renewed that is being renewed."""
MIN_REPLY_TIMEOUT = 1.0
"""Seconds after which an answer is given up while there is time for another try."""
REPLY_TIMEOUT_SHARE = 0.9
"""Part of the time to its first deadline for which a batch is waited for at most."""
ABORT_INTERVAL = 0.1
"""Seconds until a renewer that goes on is told again to give up."""
LATE_FRACTION = 0.5
"""Part of a lease after which a first renewal is late; due it is after a third."""
ENDLESS_GRANT_TIMEOUT = 10.0
"""Seconds in place of those left to a deadline, for a grant that has none."""
BATCHING_DIVISOR = 30
"""Renewals come up to this part of their lease early, to be sent with others."""


class RenewalWorker:
    """Renews leases in batches, and tells ``again`` when one is to be looked at anew.

    The thread starts with the first renewal that is due, and whatever goes wrong with
    one lease, it goes on with the others.
    """

    def __init__(
        self,
        renewer: Callable[[], Renewer],
        clock: Clock,
        again: Callable[[Lease], object],
        behind: Callable[[bool], object] = bool,
    ) -> None:
        """``renewer`` opens the keeper's own connection when first needed.

        ``behind``: told whether renewals are late.
        """
        self._behind = behind
        self._open = renewer
        self._clock = clock
        self._again = again
        self._due: SimpleQueue[list[Lease] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._renewer: Renewer | None = None
        self._lanes: dict[Hashable, threading.Thread] = {}
        self.doubted_at: float = -math.inf
        """What was answered to requests older than that is to be asked again."""
        self._phase = random()  # processes of a host do not all renew at once

    def renew(self, leases: list[Lease]) -> None:
        """Soon; whoever calls watches their deadlines meanwhile."""
        for lease in leases:
            lease.renew_due = RENEWAL_IN_FLIGHT
            self._again(lease)
        if self._thread is None:
            try:
                self._thread = start_thread(self._run, "renewals")
            except BackendUnavailable:
                self._renew(leases)
                return
        self._due.put(leases)

    def close(self) -> None:
        """Renew no more. Blocks until what is under way has ended, or was given up."""
        self._closing = True
        self._due.put(None)
        if self._thread is not None:
            self._join(self._thread)
        for thread in list(self._lanes.values()):
            self._join(thread)
        if self._renewer is not None:
            self._renewer.close()

    @contextmanager
    def going_on(self, leases: list[Lease]) -> Iterator[None]:
        """A defect is told, and these are tried again until their deadline."""
        try:
            yield
        except Exception:  # noqa: BLE001 - it is logged
            if not all(lease.attempts for lease in leases):
                log_event(log, "keeper_failed", logging.ERROR, exc_info=True)
            self._retry(leases)

    def gather(self, lease: Lease) -> None:
        """Of many leases that began one after the other a batch is due at a time."""
        if lease.terms.lease is not None and math.isfinite(lease.renew_due):
            part = lease.terms.lease / BATCHING_DIVISOR
            ticks = math.floor(lease.renew_due / part - self._phase)
            lease.renew_due = (ticks + self._phase) * part

    def _join(self, thread: threading.Thread) -> None:
        while thread.is_alive():
            renewer = self._renewer
            if renewer is not None and isinstance(renewer, AbortableRenewer):
                renewer.give_up()
            thread.join(ABORT_INTERVAL)

    def _run(self) -> None:
        while (leases := self._next_batch()) is not None:
            self._renew(leases)

    def _next_batch(self) -> list[Lease] | None:
        """What has gathered while the store was waited for; None: it is the end."""
        leases = self._due.get()
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
                self._renewer = self._open()
        except Exception as exc:  # noqa: BLE001 - whatever it is, the others need us
            self._failed(leases, exc)
            return
        renewer = self._renewer
        if not isinstance(renewer, ParallelRenewer):
            self._renew_over(renewer, leases)
            return
        lanes: defaultdict[Hashable, list[Lease]] = defaultdict(list)
        for lease in leases:
            lanes[renewer.lane(lease.resource)].append(lease)
        for lane, some in lanes.items():
            self._renew_beside(renewer, lane, some)

    def _renew_beside(
        self, renewer: Renewer, lane: Hashable, leases: list[Lease]
    ) -> None:
        """In a thread of the lane's own, as long as there are others."""
        before = self._lanes.get(lane)
        if lane is None:
            self._renew_over(renewer, leases)
        elif before is not None and before.is_alive():
            now = self._clock.now()
            for lease in leases:  # it has not answered what was sent before
                lease.renew_due = now + LANE_RETRY_INTERVAL
                self._again(lease)
        else:
            renew = partial(self._renew_over, renewer, leases)
            try:
                self._lanes[lane] = start_thread(renew, f"keeper {lane}")
            except BackendUnavailable:
                self._renew_over(renewer, leases)

    def _renew_over(self, renewer: Renewer, leases: list[Lease]) -> None:
        sent_at = self._clock.now()
        leases.sort(key=lambda lease: lease.deadline or sent_at + ENDLESS_GRANT_TIMEOUT)
        first = leases[0].deadline or sent_at + ENDLESS_GRANT_TIMEOUT
        batch = [
            Renewal(lease.resource, lease.ticket, _lease_micros(lease))
            for lease in leases
        ]
        late = any(_is_late(lease, sent_at) for lease in leases)
        self._behind(late)
        try:
            outcomes = renewer.renew(batch, reply_timeout(first - sent_at))
        except Exception as exc:  # noqa: BLE001 - whatever it is, the others need us
            self._failed(leases, exc)
            return
        finally:
            if late and self._due.empty():  # those that wait may be late, too
                self._behind(False)  # noqa: FBT003 - as bound
        with self.going_on(leases):
            for lease, outcome in zip(leases, outcomes, strict=True):
                if isinstance(outcome, NotHeld):
                    lease.gone(outcome.reason)
                    self._retry([lease])  # unless it was lost
                elif isinstance(outcome, Exception):
                    self._failed([lease], outcome)
                else:
                    endless = lease.deadline is None
                    lease.renewed(sent_at, None if endless else lease.terms.lease)
                    self.gather(lease)
                    if sent_at < self.doubted_at:  # by the server before this one
                        lease.renew_due = self.doubted_at
                    self._again(lease)

    def _failed(self, leases: list[Lease], error: Exception) -> None:
        held = (lease for lease in leases if lease.state is LeaseState.HELD)
        fresh = sum(not lease.attempts for lease in held)
        if fresh:  # once an outage: towards the deadline tries come thick and fast
            log_event(log, "renewal_failed", grants=fresh, error=str(error))
        self._retry(leases)

    def _retry(self, leases: list[Lease]) -> None:
        now = self._clock.now()
        for lease in leases:
            lease.attempts += 1
            # Tries come closer together towards the deadline, never to rest past it.
            left = (
                ENDLESS_GRANT_TIMEOUT
                if lease.deadline is None
                else lease.deadline - now
            )
            pause = min(back_off(lease.attempts, random()), left / 3)
            if lease.terms.keep:
                lease.renew_due = now + max(0.01, pause)
            self._again(lease)


def _lease_micros(lease: Lease) -> int | None:
    """What to renew it for, in microseconds."""
    return None if lease.deadline is None else micros(lease.terms.lease or 0)


def _is_late(lease: Lease, now: float) -> bool:
    """Whether it could have been renewed long ago, and nobody had the time to."""
    length, deadline = lease.terms.lease, lease.deadline
    if length is None or deadline is None or lease.attempts:
        return False
    sent_at = deadline - local_deadline(0.0, length, lease.terms.margin)
    return now - sent_at > length * LATE_FRACTION


def reply_timeout(left: float) -> float:
    """Seconds for which a renewal is waited for, with so many left to its deadline.

    There is to be time for another one: a link that is dead need not cost the lease.
    """
    return max(0.05, min(REPLY_TIMEOUT_SHARE * left, max(MIN_REPLY_TIMEOUT, left / 2)))


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
            if self._agenda.put(lease, _next_check(lease, now)) < self._planned:
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
                if self._agenda.move(lease, _next_check(lease, now)) < self._planned:
                    self._changed.notify()  # we may be another thread

    def _alive(self) -> None:
        self._beat = self._clock.now()


def _next_check(lease: Lease, now: float) -> float:
    terms, due = lease.terms, lease.renew_due
    if lease.deadline is not None:
        due = min(due, lease.deadline)
    if terms.max_hold is not None:
        due = min(due, lease.since + terms.max_hold)
    if terms.max_stall is not None:
        due = min(due, now + terms.max_stall / 2)
    return due
