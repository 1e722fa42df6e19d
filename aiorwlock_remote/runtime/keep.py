"""The keeper: renews every grant of a process, in a thread of its own.

A blocked event loop keeps its locks, because the loop is not needed to renew them. What
is due is renewed in batches over the keeper's own connection, at a third of the lease,
and retried until the local deadline: a renewal that failed is not a loss before it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from random import random

from aiorwlock_remote.core.commands import NotHeld
from aiorwlock_remote.core.lease import micros
from aiorwlock_remote.core.pauses import back_off
from aiorwlock_remote.errors import BackendUnavailable, LossReason
from aiorwlock_remote.ports import Host, Laned, Renewal, Renewer
from aiorwlock_remote.runtime.agenda import Agenda
from aiorwlock_remote.runtime.lease import Lease, State, Terms
from aiorwlock_remote.threads import running

log: logging.Logger = logging.getLogger("aiorwlock_remote.keeper")

BATCH = 500
BUSY = 0.05
"""Seconds until a lane that has not answered is looked at again."""
TOGETHER = 30
"""Renewals come up to this part of their lease early, to be sent with others."""


class Keeper:
    """Watches over leases. ``ready`` and ``add`` are for the loop.

    The thread starts when the first grant is asked for that needs it, and whatever goes
    wrong in it with one lease, it goes on with the others.
    """

    def __init__(self, renewer: Callable[[], Renewer], host: Host) -> None:
        """``renewer`` opens the keeper's own connection when first needed."""
        self._open = renewer
        self._host = host
        self._clock = host.clock
        self._agenda = Agenda()
        self._planned = 0.0  # when the thread wakes by itself
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._closing = False
        self._renewer: Renewer | None = None
        self._lanes: dict[Hashable, threading.Thread] = {}
        self._beat = 0.0
        self._phase = random()  # processes of a host do not all renew at once

    def ready(self, terms: Terms) -> None:
        """Before a grant is asked for: that it could be kept.

        Raises:
            BackendUnavailable: no thread could be started; the next call tries again.
        """
        if self._thread is None and terms.watched and not self._closing:
            self._thread = running(self._run, "keeper")

    def add(self, lease: Lease) -> None:
        """Keep this lease alive until it ends."""
        if not lease.terms.watched:
            return
        self._gather(lease)
        now = self._clock.now()
        with self._lock:
            self._beat = now  # the caller is the loop, alive
            if self._agenda.put(lease, _next_look(lease, now)) < self._planned:
                self._changed.notify()

    def close(self) -> threading.Thread | None:
        """Stop renewing; the thread to be joined, if there is one."""
        with self._lock:
            self._closing = True
            self._changed.notify()
        return self._thread

    def _run(self) -> None:
        try:
            while (batch := self._wait_for_batch()) is not None:
                self._look_after(batch)
        finally:
            for thread in list(self._lanes.values()):
                thread.join()
            if self._renewer is not None:
                self._renewer.close()

    def _wait_for_batch(self) -> list[Lease] | None:
        with self._lock:
            while not self._closing:
                now = self._clock.now()
                batch = self._agenda.take(now, BATCH)
                if batch:
                    return batch
                self._planned = self._agenda.next
                idle = self._planned == math.inf
                self._changed.wait(None if idle else max(0.0, self._planned - now))
        return None

    def _look_after(self, leases: list[Lease]) -> None:
        if any(lease.terms.max_stall is not None for lease in leases):
            self._host.call_soon(self._alive)
        now = self._clock.now()
        due: list[Lease] = []
        for lease in leases:
            with self._going_on([lease]):
                if self._is_due(lease, now):
                    due.append(lease)
        if due:
            with self._going_on(due):
                self._renew(due)

    @contextmanager
    def _going_on(self, leases: list[Lease]) -> Iterator[None]:
        """A defect is told, and these are tried again until their deadline."""
        try:
            yield
        except Exception:
            if not all(lease.attempts for lease in leases):
                log.exception("keeper_failed")
            self._retry(leases)

    def _is_due(self, lease: Lease, now: float) -> bool:
        """Whether it is to be renewed now; one that is over is told so."""
        reason = self._ended(lease, now)
        if reason is not None:
            lease.lose(reason)
        elif lease.abandoned():
            log.warning(
                "owner_gone",
                extra={"resource": lease.resource.label, "fence": lease.fence},
            )
            lease.lose("expired")
        elif lease.deadline is not None and lease.renew_due <= now:
            return True
        else:
            self._again(lease)
        return False

    def _ended(self, lease: Lease, now: float) -> LossReason | None:
        terms = lease.terms
        if lease.deadline is not None and now >= lease.deadline:
            return "unreachable" if lease.attempts else "expired"
        if terms.max_hold is not None and now >= lease.since + terms.max_hold:
            return "stalled"
        if terms.max_stall is not None and now - self._beat > terms.max_stall:
            return "stalled"
        return None

    def _renew(self, leases: list[Lease]) -> None:
        try:
            if self._renewer is None:
                self._renewer = self._open()
        except Exception as exc:  # noqa: BLE001 - whatever it is, the others need us
            self._failed(leases, exc)
            return
        renewer = self._renewer
        if not isinstance(renewer, Laned):
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
                lease.renew_due = now + BUSY
                self._again(lease)
        else:
            renew = partial(self._renew_over, renewer, leases)
            try:
                self._lanes[lane] = running(renew, f"keeper {lane}")
            except BackendUnavailable:
                self._renew_over(renewer, leases)

    def _renew_over(self, renewer: Renewer, leases: list[Lease]) -> None:
        sent_at = self._clock.now()
        first = min(lease.deadline or sent_at for lease in leases)
        batch = [
            Renewal(lease.resource, lease.ticket, micros(lease.terms.lease or 0))
            for lease in leases
        ]
        try:
            outcomes = renewer.renew(batch, max(0.05, first - sent_at))
        except Exception as exc:  # noqa: BLE001 - whatever it is, the others need us
            self._failed(leases, exc)
            return
        with self._going_on(leases):
            for lease, outcome in zip(leases, outcomes, strict=True):
                if isinstance(outcome, NotHeld):
                    lease.lose(outcome.reason)
                elif isinstance(outcome, Exception):
                    self._failed([lease], outcome)
                else:
                    lease.renewed(sent_at, lease.terms.lease)
                    self._gather(lease)
                    self._again(lease)

    def _failed(self, leases: list[Lease], error: Exception) -> None:
        fresh = sum(not lease.attempts for lease in leases)
        if fresh:  # once an outage: towards the deadline tries come thick and fast
            log.warning("renewal_failed", extra={"grants": fresh, "error": str(error)})
        self._retry(leases)

    def _retry(self, leases: list[Lease]) -> None:
        now = self._clock.now()
        for lease in leases:
            lease.attempts += 1
            # Tries come closer together towards the deadline, never to rest past it.
            left = 0.0 if lease.deadline is None else lease.deadline - now
            pause = min(back_off(lease.attempts, random()), left / 3)
            if lease.terms.keep:
                lease.renew_due = now + max(0.01, pause)
            self._again(lease)

    def _again(self, lease: Lease) -> None:
        if lease.state is State.HELD:
            now = self._clock.now()
            with self._lock:
                if self._agenda.put(lease, _next_look(lease, now)) < self._planned:
                    self._changed.notify()  # we may be a lane's thread

    def _gather(self, lease: Lease) -> None:
        """Of many leases that began one after the other a batch is due at a time."""
        if lease.terms.lease is not None and math.isfinite(lease.renew_due):
            part = lease.terms.lease / TOGETHER
            ticks = math.floor(lease.renew_due / part - self._phase)
            lease.renew_due = (ticks + self._phase) * part

    def _alive(self) -> None:
        self._beat = self._clock.now()


def _next_look(lease: Lease, now: float) -> float:
    terms, due = lease.terms, math.inf
    if lease.deadline is not None:
        due = min(lease.renew_due, lease.deadline)
    if terms.max_hold is not None:
        due = min(due, lease.since + terms.max_hold)
    if terms.max_stall is not None:
        due = min(due, now + terms.max_stall / 2)
    return due
