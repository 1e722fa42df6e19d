"""How many acquires a process has on their way to the store.

A grant's lease counts from before its request was sent. Thousands of requests sent at
once are answered so late that their leases are due by then, and a loop that works them
off leaves the keeper's threads no time to renew. So new requests are held back while
as many are under way as the store answers in ``SLOW_REPLY`` seconds, all but one at a
time while renewals are late.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.ports import Clock

INITIAL_WINDOW = 128
MAX_WINDOW = 512
MIN_WINDOW = 8
"""Requests under way: at first, and within which bounds."""
SLOW_REPLY = 1.0
"""Seconds: an answer that takes longer halves their number; each other adds one."""


class AcquireThrottle:
    """Holds acquires back, in their order. Belongs to the loop.

    Only who would send a request of its own is counted: a task that has its place in a
    queue is not. At least one is always let in, so that nobody waits for a renewal.
    ``behind``: renewals are late; set by the keeper, from any thread.
    """

    def __init__(self, clock: Clock) -> None:
        """Nothing is under way."""
        self.behind: bool = False
        self._clock = clock
        self._window = INITIAL_WINDOW
        self._halved_at = clock.now()
        self._under_way = 0
        self._coming = 0  # let in, and about to send
        self._held: dict[Pending[None], None] = {}

    @property
    def full(self) -> bool:
        """Whether the next one is to wait for its turn."""
        return bool(self._held) or not self._room

    def sent(self, request: Pending[Any]) -> None:
        """Count a request until it is answered."""
        self._under_way += 1
        request.add_done_callback(partial(self._answered, self._clock.now()))

    async def turn(self, seconds: float | None) -> None:
        """Wait until it may be sent, or for so long; call ``let_in`` after sending.

        Raises:
            Closed: meanwhile.
        """
        turn: Pending[None] = Pending()
        self._held[turn] = None
        self.let_in()
        let_in = False
        try:
            with anyio.move_on_after(seconds):
                await turn
            let_in = True
        finally:
            if turn.done() and turn.error is None:
                self._coming -= 1
            else:
                self._held.pop(turn, None)
            if not let_in:
                self.let_in()

    def let_in(self) -> None:
        """Let those in for whom there is room."""
        while self._held and self._room:
            turn = next(iter(self._held))
            del self._held[turn]
            self._coming += 1
            turn.set_result(None)

    def close(self, error: BaseException) -> None:
        """End all waiting with ``error``."""
        held, self._held = self._held, {}
        for turn in held:
            turn.set_exception(error)

    @property
    def _room(self) -> bool:
        return self._under_way + self._coming < (1 if self.behind else self._window)

    def _answered(self, sent_at: float, _: object) -> None:
        self._under_way -= 1
        now = self._clock.now()
        if now - sent_at <= SLOW_REPLY:
            self._window = min(MAX_WINDOW, self._window + 1)
        elif sent_at >= self._halved_at:  # those sent before tell nothing new
            self._window, self._halved_at = max(MIN_WINDOW, self._window // 2), now
        if self._held:
            self.let_in()
