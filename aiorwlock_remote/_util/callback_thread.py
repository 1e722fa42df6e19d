"""Callbacks and timers for a thread that blocks, such as the lease keeper's."""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from aiorwlock_remote._util.native import Empty, SimpleQueue

if TYPE_CHECKING:
    from aiorwlock_remote.ports import Clock

Call = Callable[[], object]


class CallbackThread:
    """Queue of callbacks and timers for a thread without an event loop."""

    def __init__(self, clock: Clock) -> None:
        self.clock: Clock = clock
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._timers: list[tuple[float, int, Call]] = []
        self._order = count()
        self._stopped = False

    def call_soon(self, function: Callable[..., object], *args: object) -> None:
        """Let ``run`` call ``function(*args)`` soon. Callable in any thread."""
        self._calls.put(partial(function, *args))

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        raise NotImplementedError

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Let ``run`` call ``function`` after ``seconds``. Call in ``run``'s thread."""
        due = self.clock.now() + seconds
        heapq.heappush(self._timers, (due, next(self._order), function))

    def run(self, done: Callable[[], bool], until: float) -> None:
        """Block, and run queued callbacks and timers, until ``done()`` returns True.

        Returns at the latest when ``clock.now()`` reaches ``until``, and after ``stop``
        at once.
        """
        while not done() and not self._stopped:
            now = self.clock.now()
            if now >= until:
                return
            if self._timers and self._timers[0][0] <= now:
                heapq.heappop(self._timers)[2]()
                continue
            nearest = min(until, self._timers[0][0]) if self._timers else until
            try:
                call = self._calls.get(timeout=nearest - now)
            except Empty:
                continue
            call()

    def run_queued(self) -> None:
        """Run the callbacks that are queued now; do not wait for others."""
        while not self._calls.empty():
            self._calls.get()()

    def stop(self) -> None:
        """Make ``run`` return, now and in all later calls. Callable in any thread."""
        self._stopped = True
        self.call_soon(int)  # ``run`` may be blocked until the next call
