"""Two calls that count, the first of which stands still before its commit.

A counter is read, and written with one more, under a lock. If the lock is released
before the commit, the second call reads what the first has not committed yet, and one
of two calls that succeeded is not counted. No time decides about that: the first commit
goes on when the second call has read the counter, or waits for the lock, or has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg

from aiorwlock_remote.sync import Locks

LOCK = ("counter", 7)
OUTER = ("account", 7)
"""Acquired before that, where a call needs two."""


class Race:
    """One race; the caller's code says where it has read, and where it commits."""

    def __init__(self, url: str, waiting: Callable[[], bool]) -> None:
        self._url = url
        self._waiting = waiting
        self._read = 0
        self._at_commit = threading.Event()
        self._go_on = threading.Event()
        self._first: int | None = None

    def read(self) -> None:
        """A call has read the counter."""
        self._read += 1
        self._first = self._first or threading.get_ident()

    def before_commit(self) -> None:
        """A call is going to commit."""
        if threading.get_ident() == self._first and not self._at_commit.is_set():
            self._at_commit.set()
            self._go_on.wait()

    def lost(self, call: Callable[[], bool]) -> int:
        """Call twice; return how many calls that returned True were not counted."""
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(call)
            _until(lambda: self._at_commit.is_set() or first.done())
            second = pool.submit(call)
            try:
                _until(lambda: self._read == 2 or self._waiting() or second.done())
            finally:
                self._go_on.set()
            succeeded = first.result() + second.result()
        return succeeded - self.total()

    def total(self) -> int:
        with psycopg.connect(self._url) as connection:
            row = connection.execute("SELECT total FROM counters").fetchone()
        assert row is not None
        return int(row[0])


def waits_in(locks: Callable[[], Locks]) -> Callable[[], bool]:
    """Return a function that looks whether a call waits for its lock."""
    return lambda: any(
        entry.waiting
        for name in (LOCK, OUTER)
        for entry in locks().mutex(*name).info().queue
    )


@contextmanager
def counters(url: str) -> Iterator[None]:
    """The table, with one counter, which is 0."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE counters (id int PRIMARY KEY, total int)")
        connection.execute("INSERT INTO counters VALUES (7, 0)")
        yield


def _until(true: Callable[[], bool]) -> None:
    pause = threading.Event()
    while not true():
        pause.wait(0.005)
