"""Waiting by polling: one task per process reads the resources that are waited for."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import random

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.port import StoredState
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import PushedGrant, StoreTime
from aiorwlock_remote.core.timing import MICROS, around, pause_behind
from aiorwlock_remote.core.transition import next_attempt, peek, turns_ahead
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop, WakeCallback

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

# A pause is a tenth of the time since the last change: after a long wait, a little
# more waiting matters less than the reads that it saves.
SHORTEST_PAUSE, PAUSE_GROWTH = 0.005, 1.1
"""Seconds of the pause after a change, and the factor from one pause to the next."""
MAX_READS_PER_SECOND = 100
"""Upper limit of one process's reads, however many resources it waits for."""
REPEAT_INTERVAL = 1.0
"""Seconds until the same reason wakes a waiter again: its request may have failed."""


@dataclass(frozen=True, slots=True)
class PollIntervals:
    """The longest pauses between two reads of one resource, in seconds.

    ``near`` is the limit while this process is the next in the queue, ``far`` while
    others are before it. The store's claim window must be longer than two such pauses,
    each with its random addition. ``hinted`` is every pause while hints come over a
    channel (``connect(wake=…)``), as short as the claim window demands: a client
    without the channel may release the lock, too.
    """

    near: float = 0.06
    far: float = 0.25
    hinted: float = 0.2


@dataclass(slots=True)
class _PolledResource:
    # When to read next; None: a read is under way.
    due: float | None
    # The pause after the last read, in seconds.
    pause: float = SHORTEST_PAUSE
    # The holders and waiters that were read last.
    seen: object = None
    # The reason of the last wake-up, and when that was.
    woken: tuple[object, float] = (None, 0.0)
    # A hint has caused the read that is under way, or came during it.
    hinted: bool = True
    again: bool = False


class StatePoller:
    """Wakes the tasks of one process that wait for resources of a polled store.

    One task reads the records of all watched resources: often when this process is the
    next in the queue, seldom when others are before it. One read is timed for the
    moment when a lease ends. Waiting tasks are woken, and then send a request that
    changes the row, only when it is this process's turn. For use in the loop's thread.
    """

    def __init__(
        self,
        read: Callable[[Resource], Pending[StoredState]],
        now_of: Callable[[StoredState], int],
        shown_by: Callable[[StoredState], int | None],
        saw: Callable[[Resource, StoredState], object],
        client_id: str,
        loop: EventLoop,
        wake: WakeCallback,
        intervals: PollIntervals,
        on_missed: Callable[[], object],
    ) -> None:
        """Create a poller; the polling task starts with the first ``watch``.

        Args:
            read: Reads the stored state of a resource.
            now_of: Returns the store's time for a state, in microseconds.
            shown_by: Returns what the server's clock showed in the answer with a state,
                in microseconds; None if no such clock ends leases.
            saw: Called with a resource and its state, after each read.
            client_id: Id of this client, as it is in the client's queue entries.
            loop: Runs the polling task; all callbacks are called in it.
            wake: Called as ``wake(resource, 0.0, pushed)`` when the client may claim,
                or has been granted its claim (``pushed``).
            intervals: The longest pauses between two reads of a resource.
            on_missed: Called if a read that was due finds the turn of this client,
                although hints come.
        """
        self.hints_come: bool = False
        """Whether hints of other clients come: then reads are seldom."""
        self._intervals = intervals
        self._on_missed = on_missed
        self.read: Callable[[Resource], Pending[StoredState]] = read
        self._now_of = now_of
        self._shown_by = shown_by
        self._saw = saw
        self._client_id = client_id
        self._loop = loop
        self._clock = loop.clock
        self._wake = wake
        self._watched: dict[Resource, _PolledResource] = {}
        self._changed: anyio.Event | None = None

    def watch(self, resource: Resource) -> None:
        """Poll the resource from now on, until ``unwatch`` or ``close``."""
        self._watched[resource] = _PolledResource(self._clock.now())
        if self._changed is None:
            self._changed = anyio.Event()
            self._loop.spawn(self._run)
        else:
            self._changed.set()

    def unwatch(self, resource: Resource) -> None:
        self._watched.pop(resource, None)

    def look_now(self, resource: Resource) -> bool:
        """Read the resource at once, because of a hint; False if it is not watched."""
        watch = self._watched.get(resource)
        if watch is None:
            return False
        if watch.due is None:
            watch.again = True  # the read under way may be older than the hint
        else:
            watch.hinted = True
            self._look(resource, watch)
        return True

    def look_within(self, resource: Resource, seconds: float) -> None:
        """Read the resource in so many seconds, if not before, if it is watched."""
        watch = self._watched.get(resource)
        if watch is not None and watch.due is not None:
            watch.due = min(watch.due, self._clock.now() + seconds)
            if self._changed is not None:
                self._changed.set()

    def look_at_all(self) -> None:
        """Read all resources at once: hints may have been lost."""
        for resource, watch in self._watched.items():
            watch.pause = SHORTEST_PAUSE
            self.look_now(resource)

    def close(self) -> None:
        """Stop watching all resources, and let the polling task end."""
        self._watched.clear()
        if self._changed is not None:
            self._changed.set()

    async def _run(self) -> None:
        log_event(log, "polling_started", logging.DEBUG, client_id=self._client_id)
        try:
            while self._watched:
                now = self._clock.now()
                soonest = now + self._intervals.far
                for resource, watch in list(self._watched.items()):
                    if watch.due is None:
                        continue
                    if watch.due <= now:
                        self._look(resource, watch)
                    else:
                        soonest = min(soonest, watch.due)
                self._changed = anyio.Event()
                with anyio.move_on_after(max(0.0, soonest - now)):
                    await self._changed.wait()
        finally:
            self._changed = None

    def _look(self, resource: Resource, watch: _PolledResource) -> None:
        watch.due = None
        sent_at = self._clock.now()
        looked = partial(self._looked, resource, watch, sent_at)
        self.read(resource).add_done_callback(looked)

    def _looked(
        self,
        resource: Resource,
        watch: _PolledResource,
        sent_at: float,
        read: Pending[StoredState],
    ) -> None:
        if self._watched.get(resource) is not watch:
            return
        longest, shortest, aimed = self._intervals.far, 0.0, math.inf
        if read.error is not None:  # the waiters' own requests report the failure
            log_event(log, "watch_failed", logging.DEBUG, error=str(read.error))
            watch.pause = longest
        else:
            state = read.result()
            self._saw(resource, state)
            longest, shortest, aimed = self._judge(resource, watch, state, sent_at)
        watch.hinted = False
        if self._watched.get(resource) is not watch:
            return
        if watch.again:
            watch.again, watch.hinted = False, True
            self._look(resource, watch)
            return
        watch.pause = min(watch.pause * PAUSE_GROWTH, longest)
        if self.hints_come:
            watch.pause = self._intervals.hinted
        pause = max(watch.pause, shortest, len(self._watched) / MAX_READS_PER_SECOND)
        watch.due = self._clock.now() + min(aimed, around(pause, random()))
        if self._changed is not None:
            self._changed.set()

    def _judge(
        self,
        resource: Resource,
        watch: _PolledResource,
        state: StoredState,
        sent_at: float,
    ) -> tuple[float, float, float]:
        """Wake the waiters if it is their turn. Return the limits of the next pause,
        and in how many seconds something ends by time alone, all in seconds.
        """
        record, now = state.record or UNUSED_DOORMAN, self._now_of(state)
        found = next_attempt(record, state.seat, self._client_id, now)
        doorman, _ = peek(record, state.seat, now, semaphore=resource.is_semaphore)
        waits = [entry.client_id for entry in doorman.queue]
        value = None if state.seat is None else state.seat.value
        held = record.last, [grant.ticket for grant in doorman.grants]
        # Without the times in it: a renewed lease or a refreshed entry is no change.
        # With the last fence in it: a short hold between two reads is one
        # (test_poller.py: test_when_something_has_changed_it_reads_often_again).
        seen = value, held, tuple(waits)
        if seen != watch.seen:
            watch.seen, watch.pause = seen, SHORTEST_PAUSE
        upgrader = doorman.upgrader
        if upgrader is not None:
            waits.insert(0, upgrader.client_id)
        if self._client_id not in waits:
            # The row was deleted, and the entry with it: only a new attempt brings the
            # entry back (test_poller.py: test_it_rings_once_for_the_same_reason).
            found = ("no entry", state.mark), 0
        is_next = self._client_id in waits[:1]
        longest = self._intervals.near if is_next else self._intervals.far
        shortest = pause_behind(turns_ahead(doorman, self._client_id))
        aimed = math.inf
        # What ends by time alone is for those near the head to find.
        if found is not None and found[1] > 0 and shortest <= longest:
            aimed = max(SHORTEST_PAUSE, found[1] / MICROS)
        elif found is not None:
            (before, at), clock = watch.woken, self._clock.now()
            if before != found[0] or clock >= at + REPEAT_INTERVAL:
                watch.woken = found[0], clock
                if log.isEnabledFor(logging.DEBUG):
                    log_event(
                        log,
                        "turn_found",
                        logging.DEBUG,
                        resource=resource.label,
                        client_id=self._client_id,
                        pause=watch.pause,
                    )
                if self.hints_come and not watch.hinted:
                    self._on_missed()
                self._wake(resource, 0.0, self._own_grant(doorman, state, sent_at))
        return longest, shortest, aimed

    def _own_grant(
        self, doorman: Doorman, state: StoredState, sent_at: float
    ) -> PushedGrant | None:
        """Return the grant that a step pushed to this client, as its message would.

        ``sent_at``: local monotonic time (s) when the read of ``state`` was sent.
        """
        shown = self._shown_by(state)
        if shown is None or not doorman.pushed:
            return None
        own = (e.ticket for e in doorman.queue if e.client_id == self._client_id)
        if not any(map(doorman.has_pushed, own)):
            return None
        return PushedGrant.of(doorman.grants[0], StoreTime(shown, sent_at))
