"""What the observers for Prometheus and OpenTelemetry measure alike."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict
from typing import Literal

from aiorwlock_remote.locks.observers import Attempt, GrantEnd, outcome_of

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)
"""Upper bounds of the histograms' buckets, in seconds."""

State = Literal["waiting", "held"]
Labels = tuple[str, str]
"""Type of the resource, and mode. Never the id: a label with a value for each resource
would fill the memory of the metrics' server."""


class AttemptMeter(ABC):
    """Base of an observer that counts attempts and grants by state and ``Labels``.

    Attempts may come from several event loops, and figures be read in any thread. The
    oldest attempt of a state costs no search and no timer: an ``OrderedDict`` finds its
    first key at once. (A dict would pass over the places of all that left before.)
    A forked child counts from 0: it holds nothing that its parent holds.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._changing = threading.Lock()
        self._attempts: defaultdict[
            tuple[State, Labels], OrderedDict[MeasuredAttempt, None]
        ] = defaultdict(OrderedDict)

    def follow(self, attempt: Attempt) -> MeasuredAttempt:
        """Begin to measure an attempt; return what gets its outcome."""
        if os.getpid() != self._pid:
            self._start_again()
        return MeasuredAttempt(self, (attempt.resource_type, attempt.mode))

    def ages(self, state: State) -> dict[Labels, float]:
        """Return the age of the oldest attempt of each type and mode in this state."""
        now = time.perf_counter()
        with self._changing:
            oldest = {
                labels: next(iter(attempts))
                for (one, labels), attempts in self._attempts.items()
                if one == state and attempts
            }
        return {labels: now - attempt.since for labels, attempt in oldest.items()}

    @abstractmethod
    def count(self, state: State, labels: Labels, change: int) -> None:
        """Add ``change`` to the number of attempts in this state."""

    @abstractmethod
    def lasted(self, state: State, labels: Labels, seconds: float, how: str) -> None:
        """Record how long a wait or a hold was, and its outcome or end."""

    @abstractmethod
    def oldest_changed(self, state: State, labels: Labels, since: float | None) -> None:
        """Record since when the oldest attempt has been in this state, in Unix time;
        None: there is none. Called in the order of the changes.
        """

    @abstractmethod
    def reset(self, state: State, labels: Labels, attempts: int) -> None:
        """Forget ``attempts`` of the parent process, and the oldest of them."""

    def enter(self, attempt: MeasuredAttempt, state: State) -> None:
        labels = attempt.labels
        with self._changing:
            attempts = self._attempts[state, labels]
            attempts[attempt] = None
            if len(attempts) == 1:
                self.oldest_changed(state, labels, attempt.since_unix)
        self.count(state, labels, 1)

    def leave(self, attempt: MeasuredAttempt, state: State, how: str) -> None:
        labels = attempt.labels
        with self._changing:
            attempts = self._attempts[state, labels]
            if attempt not in attempts:  # it was the parent's, before a fork
                return
            was_oldest = next(iter(attempts)) is attempt
            del attempts[attempt]
            if was_oldest:
                oldest = next(iter(attempts), None)
                since = None if oldest is None else oldest.since_unix
                self.oldest_changed(state, labels, since)
        self.count(state, labels, -1)
        self.lasted(state, labels, time.perf_counter() - attempt.since, how)

    def _start_again(self) -> None:
        # Another thread may have had the lock when the process was forked.
        self._pid, self._changing = os.getpid(), threading.Lock()
        inherited = {key: len(attempts) for key, attempts in self._attempts.items()}
        self._attempts.clear()
        for (state, labels), attempts in inherited.items():
            self.reset(state, labels, attempts)


class MeasuredAttempt:
    """One attempt, which waits and then may hold; an ``AttemptObserver``.

    ``since``, ``since_unix``: when the attempt began to wait, or to hold the lock, by
    the clock of ``perf_counter`` and in Unix time.
    """

    def __init__(self, meter: AttemptMeter, labels: Labels) -> None:
        self._meter = meter
        self.labels: Labels = labels
        self._begin("waiting")

    def obtained(self, resource: str, fence: int) -> None:
        del resource, fence
        self._meter.leave(self, "waiting", "obtained")
        # The hold is measured from the end of the wait.
        self._begin("held")

    def failed(self, error: BaseException | None) -> None:
        self._meter.leave(self, "waiting", outcome_of(error))

    def ended(self, how: GrantEnd) -> None:
        self._meter.leave(self, "held", how)

    def _begin(self, state: State) -> None:
        self.since: float = time.perf_counter()
        self.since_unix: float = time.time()
        self._meter.enter(self, state)
