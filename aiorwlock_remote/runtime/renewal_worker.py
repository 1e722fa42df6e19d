"""The keeper's second thread: it renews, and may have to wait for the store."""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from random import random

from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.core.commands import NotHeld
from aiorwlock_remote.core.lease import local_deadline, micros
from aiorwlock_remote.core.polling import back_off
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    AbortableRenewer,
    Clock,
    ParallelRenewer,
    Renewal,
    Renewer,
)
from aiorwlock_remote.runtime.lease import Lease, LeaseState

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
LATE = 0.5
"""Part of a lease after which a first renewal is late; due it is after a third."""
ENDLESS = 10.0
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
        leases.sort(key=lambda lease: lease.deadline or sent_at + ENDLESS)
        first = leases[0].deadline or sent_at + ENDLESS
        batch = [
            Renewal(lease.resource, lease.ticket, _length(lease)) for lease in leases
        ]
        late = any(_is_late(lease, sent_at) for lease in leases)
        self._behind(late)
        try:
            outcomes = renewer.renew(batch, patience(first - sent_at))
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
            left = ENDLESS if lease.deadline is None else lease.deadline - now
            pause = min(back_off(lease.attempts, random()), left / 3)
            if lease.terms.keep:
                lease.renew_due = now + max(0.01, pause)
            self._again(lease)


def _length(lease: Lease) -> int | None:
    """What to renew it for, in microseconds."""
    return None if lease.deadline is None else micros(lease.terms.lease or 0)


def _is_late(lease: Lease, now: float) -> bool:
    """Whether it could have been renewed long ago, and nobody had the time to."""
    length, deadline = lease.terms.lease, lease.deadline
    if length is None or deadline is None or lease.attempts:
        return False
    sent_at = deadline - local_deadline(0.0, length, lease.terms.margin)
    return now - sent_at > length * LATE


def patience(left: float) -> float:
    """Seconds for which a renewal is waited for, with so many left to its deadline.

    There is to be time for another one: a link that is dead need not cost the lease.
    """
    return max(0.05, min(REPLY_TIMEOUT_SHARE * left, max(MIN_REPLY_TIMEOUT, left / 2)))
