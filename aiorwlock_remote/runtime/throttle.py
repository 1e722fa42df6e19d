"""A limit on the acquires of a process that are on their way to the store."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock

INITIAL_WINDOW = 128
MAX_WINDOW = 512
MIN_WINDOW = 8
"""Acquires under way at most: at first, and the bounds of that number."""
SLOW_REPLY = 1.0
"""Seconds: a reply that takes longer halves the window; each other adds one to it."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.acquire")


class AcquireThrottle:
    """Delays acquires, first come first served, while too many are under way.

    The lease of a grant counts from before its request was sent. The replies to
    thousands of requests sent at once come so late that their leases are due by then,
    and a loop that handles them all leaves the keeper's threads no time to renew. So
    the window is what the store answers in ``SLOW_REPLY`` seconds, found by additive
    increase and multiplicative decrease as in TCP's congestion control (RFC 5681), and
    one while renewals are late. One acquire is always let in, so that none waits for
    a renewal. Only requests are counted: tasks with a queue entry send none.
    """

    def __init__(self, clock: Clock) -> None:
        self.behind: bool = False
        """Whether renewals are late; set by the keeper, from any thread."""
        self._clock = clock
        self._window = INITIAL_WINDOW
        self._halved_at = clock.now()
        self._in_flight = 0
        self._let_in = 0  # tasks that were let in and have not sent yet
        self._waiting: dict[Pending[None], None] = {}

    @property
    def full(self) -> bool:
        """Whether the next acquire has to wait for its turn."""
        return bool(self._waiting) or not self._has_room

    def sent(self, request: Pending[Any]) -> None:
        """Count a request until it is answered."""
        self._in_flight += 1
        request.add_done_callback(partial(self._answered, self._clock.now()))

    async def turn(self, seconds: float | None) -> None:
        """Wait until a request may be sent, or for so long; then call ``let_in``.

        Raises:
            Closed: the ``Locks`` was closed meanwhile.
        """
        if log.isEnabledFor(logging.DEBUG):
            waiting, window = len(self._waiting), self._window
            event = "throttled"
            log_event(log, event, logging.DEBUG, waiting=waiting, window=window)
        turn: Pending[None] = Pending()
        self._waiting[turn] = None
        # Room may have come since ``full`` was read, as the keeper's thread sets
        # ``behind``, and then no reply need follow that would let this task in.
        self.let_in()
        has_turn = False
        try:
            with anyio.move_on_after(seconds):
                await turn
            has_turn = True
        finally:
            if turn.done() and turn.error is None:
                self._let_in -= 1
            else:
                self._waiting.pop(turn, None)
            if not has_turn:
                # Cancelled: pass the turn on, or the next task would wait for a reply
                # that may never come (test_throttle.py).
                self.let_in()

    def let_in(self) -> None:
        """Wake as many waiting tasks as there is room for."""
        while self._waiting and self._has_room:
            turn = next(iter(self._waiting))
            del self._waiting[turn]
            self._let_in += 1
            turn.set_result(None)

    def close(self, error: BaseException) -> None:
        """End all waits with ``error``."""
        waiting, self._waiting = self._waiting, {}
        for turn in waiting:
            turn.set_exception(error)

    @property
    def _has_room(self) -> bool:
        return self._in_flight + self._let_in < (1 if self.behind else self._window)

    def _answered(self, sent_at: float, _: object) -> None:
        self._in_flight -= 1
        now = self._clock.now()
        if now - sent_at <= SLOW_REPLY:
            self._window = min(MAX_WINDOW, self._window + 1)
        elif sent_at >= self._halved_at:
            # Replies to requests sent before the window was halved tell nothing about
            # the new window: halving for each of them would go down to the minimum.
            self._window, self._halved_at = max(MIN_WINDOW, self._window // 2), now
        if self._waiting:
            self.let_in()
