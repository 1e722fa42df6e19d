"""The thread that wakes waiters: when it looks again."""

from __future__ import annotations

import queue
import threading
from typing import cast

import pytest

from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, QueueEntry
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import pause_behind
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.embedded.connection import LocalConnection, WakeEvent
from aiorwlock_remote.embedded.watcher import (
    NEAR_ENTRIES,
    UNTIL_COMMIT,
    ChangeWatcher,
    WatchIntervals,
)
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import EventLoop, Snapshot
from tests.fixed_clock import StandingClock

ORDER = Resource("order", "42")
LONG = 30.0


class ScriptedAlarm:
    """Hands the length of each sleep to the test, which says how the sleep ended."""

    hears = True

    def __init__(self) -> None:
        self.sleeps: queue.Queue[float | None] = queue.Queue()
        self.ends: queue.Queue[bool] = queue.Queue()

    def set(self) -> None:
        self.ends.put(False)

    def wait(self, seconds: float | None, *, quiet: bool = False) -> bool:
        self.quiet = quiet
        self.sleeps.put(seconds)
        return self.ends.get(timeout=LONG)

    def close(self) -> None:
        pass

    def slept(self) -> float:
        seconds = self.sleeps.get(timeout=LONG)
        assert seconds is not None
        return seconds


class ScriptedConnection:
    """A store whose version the test sets; counts how often it was read."""

    def __init__(self) -> None:
        self.event = ScriptedAlarm()
        self.number = 0
        self.is_open = False
        self.looks = 0
        self.record = UNUSED_DOORMAN
        self.closed = threading.Event()

    def open(self, timeout: float) -> None:
        assert timeout > 0
        self.is_open = True

    def close(self) -> None:
        self.closed.set()

    def alarm(self) -> WakeEvent:
        return self.event

    def version(self) -> object:
        if not self.is_open:
            raise BackendUnavailable(what="not open")
        return self.number

    def look(self, resource: Resource) -> Snapshot:
        self.looks += 1
        return Snapshot(resource, self.record, None, 0, 0)


@pytest.fixture
def connection() -> ScriptedConnection:
    return ScriptedConnection()


def watching(
    connection: ScriptedConnection, loop: NoLoop | None = None
) -> ChangeWatcher:
    intervals = WatchIntervals(0.002, 20.0)
    watcher = ChangeWatcher(
        cast("LocalConnection", connection),
        "me",
        cast("EventLoop", loop or NoLoop()),
        lambda *_: None,
        intervals,
    )
    watcher.watch(ORDER)
    return watcher


class NoLoop:
    """An event loop in which nothing is called: no test here waits for a wake-up."""

    def __init__(self) -> None:
        self.clock = StandingClock()

    def call_soon(self, *_: object) -> None:
        pass


def test_a_change_noticed_too_early(connection: ScriptedConnection) -> None:
    """SQLite writes to its log before the commit: no second notice comes after it."""
    watcher = watching(connection)
    alarm = connection.event
    alarm.slept()
    alarm.ends.put(True)  # noticed, and nothing to be seen yet
    assert alarm.slept() <= UNTIL_COMMIT * 1.25
    before = connection.looks
    connection.number += 1
    alarm.ends.put(False)  # nothing noticed any more, but there it is
    assert alarm.slept() > 0
    assert connection.looks == before + 1
    watcher.close()
    assert connection.closed.wait(LONG)


def test_the_watcher_polls_less_and_less_often(connection: ScriptedConnection) -> None:
    """A change that is taken back, or concerns no waiter, costs a few looks only."""
    watcher = watching(connection)
    alarm = connection.event
    alarm.slept()
    alarm.ends.put(True)
    pauses = [alarm.slept()]
    for _ in range(30):
        alarm.ends.put(False)
        pauses.append(alarm.slept())
    assert pauses[-1] > 100 * pauses[0]
    watcher.close()
    assert connection.closed.wait(LONG)


def behind(others: int) -> Doorman:
    """Return a doorman in whose queue "me" is behind so many others."""
    names = [*(f"client {number}" for number in range(others)), "me"]
    entries = [
        QueueEntry(number, name, Mode.WRITE, 0, 10**15, 10**6)
        for number, name in enumerate(names, 1)
    ]
    return replace(UNUSED_DOORMAN, queue=tuple(entries), number=others + 1)


def test_a_waiter_far_from_the_head_does_not_read_each_change(
    connection: ScriptedConnection,
) -> None:
    """A queue of N entries would be read N times at each of its changes."""
    connection.record = behind(60)
    loop, alarm = NoLoop(), connection.event
    watcher = watching(connection, loop)
    assert alarm.slept() == pytest.approx(pause_behind(60, NEAR_ENTRIES))
    assert alarm.quiet
    assert connection.looks == 1
    connection.number += 1
    alarm.ends.put(False)  # as for another resource that is watched from now on
    assert alarm.slept() == pytest.approx(pause_behind(60, NEAR_ENTRIES))
    assert connection.looks == 1
    connection.record = behind(2)
    loop.clock.seconds += pause_behind(60, NEAR_ENTRIES)
    alarm.ends.put(False)
    alarm.slept()
    assert (connection.looks, alarm.quiet) == (2, False)
    # Near the head, it reads at the next change.
    connection.number += 1
    alarm.ends.put(True)
    alarm.slept()
    assert connection.looks == 3
    watcher.close()
    assert connection.closed.wait(LONG)
