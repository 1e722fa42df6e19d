"""Waking between processes: one poller of the connection's version a process.

Files tell cheaply whether somebody has changed something. Only while somebody waits:
every 2 ms when its turn is near and no alarm will tell, every 20 ms else
(``WatchIntervals``), or when the alarm hears a change. Only after a change are the
watched records read.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from random import uniform

from aiorwlock_remote._util.threads import start_thread
from aiorwlock_remote.core.doorman import Doorman
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import next_attempt
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
NEAR_ENTRIES = 3
PAUSE_AFTER_FAILURE = 0.5
"""Seconds until the next look after one that failed: each is told to the log."""


@dataclass(frozen=True, slots=True)
class WatchIntervals:
    """Seconds between two looks, when our turn is near and when nothing changes."""

    shortest: float = 0.002
    longest: float = 0.020


class ChangeWatcher:
    """Rings the bell for watched resources; a thread of its own, when needed."""

    def __init__(
        self,
        connection: LocalConnection,
        gate: str,
        host: EventLoop,
        bell: WakeCallback,
        rhythm: WatchIntervals,
    ) -> None:
        """Takes the connection over and opens it in its thread."""
        self._rhythm = rhythm
        self._connection = connection
        self._gate = gate
        self._host = host
        self._bell = bell
        self._watched: dict[Resource, object] = {}
        self._fresh: set[Resource] = set()
        self._kept: set[Resource] = set()  # in the middle of another process's step
        self._lock = threading.Lock()
        self._alarm: WakeEvent = PlainWakeEvent()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, resource: Resource) -> None:
        """Ring for it from now on, and now if there is something already.

        As long as no thread can be started nothing rings: whoever waits polls.
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
        """Not any more."""
        with self._lock:
            self._watched.pop(resource, None)
            self._fresh.discard(resource)

    def close(self) -> None:
        """Let the thread end."""
        with self._lock:
            self._closed = True
            self._alarm.set()

    def _run(self) -> None:
        shortest, longest = self._rhythm.shortest, self._rhythm.longest
        version: object = None
        pause = shortest
        try:
            while (fresh := self._next(pause)) is not None:
                try:
                    version, before = self._version(), version
                    changed = version != before
                    again = {*fresh, *self._kept}
                    near = self._look(list(self._watched) if changed else list(again))
                    hurry = near and not self._alarm.hears
                    pause = shortest if hurry else min(pause * PAUSE_GROWTH, longest)
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
        with self._lock:
            awake, idle = self._fresh or self._closed, not self._watched
        if not awake:
            self._alarm.wait(None if idle else uniform(0.75, 1.25) * pause)
        with self._lock:
            if self._closed:
                return None
            fresh, self._fresh = list(self._fresh), set()
            return fresh

    def _version(self) -> object:
        try:
            return self._connection.version()
        except BackendError:
            self._connection.open(timeout=1.0)
            with self._lock:
                self._alarm.close()
                self._alarm = self._connection.alarm()
            return self._connection.version()

    def _look(self, resources: list[Resource]) -> bool:
        """Ring where it is time; whether our turn anywhere is near."""
        near = False
        self._kept.clear()
        for resource in resources:
            try:
                seen = self._connection.look(resource)
            except KeptLocked:  # the others must not wait for it
                self._kept.add(resource)
                continue
            except BadRecord as exc:  # its waiters are told by their own requests
                log_event(log, "bad_record", resource=resource.label, error=str(exc))
                continue
            near = near or self._is_near(seen.record)
            found = next_attempt(seen.record, seen.seat, self._gate, seen.now)
            if found is None:
                continue
            due_to, micros = found
            with self._lock:
                if self._watched.get(resource, due_to) == due_to:
                    continue  # rung for that already, or watched no more
                self._watched[resource] = due_to
            self._host.call_soon(self._bell, resource, micros / 1e6)
        return near

    def _is_near(self, record: Doorman) -> bool:
        """Whether a place of ours is among the first; the others need not hurry."""
        return any(
            place.client_id == self._gate for place in record.queue[:NEAR_ENTRIES]
        )
