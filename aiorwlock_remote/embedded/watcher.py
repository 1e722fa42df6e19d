"""Wakes waiters after changes by other processes, by one polling thread per process."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from random import random

from aiorwlock_remote._util.native import Lock, Thread
from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import around, pause_behind
from aiorwlock_remote.core.transition import next_attempt, turns_ahead
from aiorwlock_remote.embedded.connection import (
    KeptLocked,
    LocalConnection,
    PlainWakeEvent,
    WakeEvent,
)
from aiorwlock_remote.errors import (
    BackendError,
    BackendUnavailable,
    BadRecord,
    ConfigurationError,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import EventLoop, WakeCallback

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

PAUSE_GROWTH = 1.25
"""Factor from one pause to the next."""
NEAR_ENTRIES = 3
"""Queue entries at the front of a queue whose turn counts as near: their processes read
the queue at each change. Each entry is written anew every second or so."""
UNTIL_COMMIT = 0.0003
"""Seconds from the notice of a change that is not visible yet to the next look."""
PAUSE_AFTER_FAILURE = 0.5
"""Seconds until the next look after one that failed: each failure is logged."""


@dataclass(frozen=True, slots=True)
class WatchIntervals:
    """Seconds between polls: ``shortest`` if first in a queue, else ``longest``."""

    shortest: float = 0.002
    longest: float = 0.020


class ChangeWatcher:
    """Wakes the tasks of one process that wait for resources of a local store.

    A thread of its own polls the version of the store as long as a task waits: often if
    one of its tasks is at the front of a queue and changes set no ``WakeEvent``, seldom
    otherwise. Only after a change does it read the watched records, and those in whose
    queues many others come first only from time to time (``pause_behind``).
    """

    def __init__(
        self,
        connection: LocalConnection,
        client_id: str,
        loop: EventLoop,
        wake: WakeCallback,
        intervals: WatchIntervals,
    ) -> None:
        """Watch the store for the tasks of the client ``client_id``.

        ``wake(resource, seconds)`` is called in ``loop`` when one of them may acquire a
        lock after so many seconds. The thread starts with the first ``watch``, and
        opens and closes ``connection``.
        """
        self._intervals = intervals
        self._connection = connection
        self._client_id = client_id
        self._loop = loop
        self._clock = loop.clock
        self._wake = wake
        self._watched: dict[Resource, object] = {}  # and the reason woken for last
        self._fresh: set[Resource] = set()
        self._kept: set[Resource] = set()  # in the middle of another process's step
        # Far from the head of a queue: the local time of the next look, in seconds.
        # With a look at each change, N processes would read N entries each.
        self._resting: dict[Resource, float] = {}
        self._lock = Lock()
        self._alarm: WakeEvent = PlainWakeEvent()
        self._changing = False  # while the thread slept, a process changed the store
        self._thread: Thread | None = None
        self._closed = False

    @property
    def state(self) -> str:
        """The state of the connection: open, closed, or none before the first wait."""
        if self._thread is None:
            return "none: no task has waited"
        return "closed" if self._closed else "open"

    def watch(self, resource: Resource) -> None:
        """Wake the resource's waiters from now on; at once if it is free already.

        If no thread can be started the failure is logged, and the waiters poll.
        """
        with self._lock:
            self._watched[resource] = None
            self._fresh.add(resource)
            self._alarm.set()
        if self._thread is None:
            try:
                self._thread = start_thread(self._run, "watcher")
            except BackendUnavailable as exc:
                log_event(log, "watch_failed", error=str(exc))

    def unwatch(self, resource: Resource) -> None:
        with self._lock:
            self._watched.pop(resource, None)
            self._fresh.discard(resource)

    def close(self) -> None:
        """End the thread, which closes the connection."""
        with self._lock:
            self._closed = True
            self._alarm.set()

    def _run(self) -> None:
        shortest, longest = self._intervals.shortest, self._intervals.longest
        version: object = None
        pause = shortest
        try:
            while (fresh := self._next(pause)) is not None:
                try:
                    version, before = self._version(), version
                    changed = version != before
                    again = {*fresh, *self._kept, *self._rested(fresh)}
                    near = self._look(self._awake() if changed else list(again))
                    if self._changing and not changed:
                        # The change was noticed before it was committed, and its end
                        # sets no alarm (test_a_change_noticed_too_early).
                        pause = UNTIL_COMMIT
                    elif near and not self._alarm.hears:
                        pause = shortest
                    else:
                        pause = min(pause * PAUSE_GROWTH, longest)
                except (BackendError, ConfigurationError) as exc:
                    log_event(log, "watch_failed", error=str(exc))
                    pause = PAUSE_AFTER_FAILURE
        finally:
            with self._lock:
                self._closed = True
                self._alarm.close()
                self._alarm = PlainWakeEvent()
            self._connection.close()

    def _next(self, pause: float) -> list[Resource] | None:
        # Freshly watched resources are looked at even if nothing has changed: the lock
        # may have become free between the step that queued and ``watch``.
        with self._lock:
            awake, idle = self._fresh or self._closed, not self._watched
            resting = self._watched.keys() <= self._resting.keys()
        self._changing = False
        if not awake:
            seconds = None if idle else around(pause, random())
            if self._resting and not idle:
                left = max(0.0, min(self._resting.values()) - self._clock.now())
                seconds = left if resting else min(left, seconds or 0.0)
            self._changing = self._alarm.wait(seconds, quiet=resting)
        with self._lock:
            if self._closed:
                return None
            fresh, self._fresh = list(self._fresh), set()
            return fresh

    def _rested(self, fresh: list[Resource]) -> list[Resource]:
        """Remove from the resting resources those that are fresh, watched no more, or
        due; return them.
        """
        now = self._clock.now()
        with self._lock:
            watched = set(self._watched)
        ended = [
            resource
            for resource, until in self._resting.items()
            if until <= now or resource in fresh or resource not in watched
        ]
        for resource in ended:
            del self._resting[resource]
        return [resource for resource in ended if resource in watched]

    def _awake(self) -> list[Resource]:
        with self._lock:
            return [each for each in self._watched if each not in self._resting]

    def _version(self) -> object:
        try:
            return self._connection.version()
        except BackendError:
            # Not open yet, or the file or directory was replaced.
            self._connection.open(timeout=1.0)
            with self._lock:
                self._alarm.close()
                self._alarm = self._connection.alarm()
                hears = self._alarm.hears
            event = "listener_subscribed" if hears else "polling_started"
            log_event(log, event, logging.DEBUG, client_id=self._client_id)
            return self._connection.version()

    def _look(self, resources: list[Resource]) -> bool:
        # Wakes where it is time; returns True if the turn is near anywhere.
        near = False
        self._kept.clear()
        for resource in resources:
            try:
                seen = self._connection.look(resource)
            except KeptLocked:
                # The other resources must not wait for this one (test_mutex_file.py:
                # test_unrelated_locks_go_on).
                self._kept.add(resource)
                continue
            except BadRecord as exc:  # the waiters' own requests report the failure
                log_event(log, "bad_record", resource=resource.label, error=str(exc))
                continue
            first = seen.record.queue[:NEAR_ENTRIES]
            near = near or any(entry.client_id == self._client_id for entry in first)
            found = next_attempt(seen.record, seen.seat, self._client_id, seen.now)
            turns = turns_ahead(seen.record, self._client_id)
            rest = pause_behind(turns, NEAR_ENTRIES)
            if rest > 0.0 and (found is None or found[1] > 0):
                # What ends by time alone is for those near the head to find.
                self._resting[resource] = self._clock.now() + rest
                continue
            if found is None:
                continue
            reason, micros = found
            with self._lock:
                # Woken for this reason before, or not watched any more.
                if self._watched.get(resource, reason) == reason:
                    continue
                self._watched[resource] = reason
            if log.isEnabledFor(logging.DEBUG):
                log_event(
                    log,
                    "turn_found",
                    logging.DEBUG,
                    resource=resource.label,
                    client_id=self._client_id,
                    due_in=micros / 1e6,
                )
            self._loop.call_soon(self._wake, resource, micros / 1e6)
        return near
