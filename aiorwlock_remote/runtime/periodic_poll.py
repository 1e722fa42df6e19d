"""Looking after something from time to time, sooner on a hint, but not too often."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from random import random

import anyio

from aiorwlock_remote.ports import EventLoop

JITTER = 0.2
"""Looks come this fraction earlier or later, so that processes do not meet."""
SPACING = 1.0
"""Seconds: two looks in any two of them, and no more, whatever is hinted."""


class PeriodicPoll:
    """Calls ``look()`` every so many seconds, between ``start`` and ``end``.

    A ``hint`` brings the next look nearer. Hints are cheap and may be wrong: looks are
    at most two in 2 s, one a second on the average.
    """

    def __init__(
        self, host: EventLoop, every: float, look: Callable[[], object]
    ) -> None:
        """Not started."""
        self._host = host
        self._clock = host.clock
        self._every = every
        self._look = look
        self._wanted = False
        self._running = False
        self._nearer = anyio.Event()
        self._hinted = math.inf
        self._polled = 0.0
        self._looks: deque[float] = deque([-math.inf, -math.inf], maxlen=2)

    def start(self) -> None:
        """Somebody is to be looked after."""
        if not self._wanted:
            self._wanted = True
            self._hinted = math.inf
            self._plan()
        if not self._running:  # whoever cancelled all tasks has cancelled it as well
            self._running = True
            self._host.spawn(self._run)

    def end(self) -> None:
        """Nobody is."""
        self._wanted = False
        self._nearer.set()

    def hint(self, seconds: float) -> None:
        """There may be something to see in so many seconds."""
        at = self._clock.now() + seconds
        if at < self._hinted:
            self._hinted = at
            self._nearer.set()

    @property
    def due(self) -> float:
        """When the next look is, local clock."""
        hinted = max(self._hinted, self._looks[0] + 2 * SPACING)
        # A look just before would be wasted, and use up what the hint needs.
        if self._polled <= hinted <= self._polled + SPACING:
            return hinted
        return min(self._polled, hinted)

    def _plan(self) -> None:
        spread = 1 + JITTER * (2 * random() - 1)
        self._polled = self._clock.now() + self._every * spread

    async def _run(self) -> None:
        try:
            while self._wanted:
                self._nearer = anyio.Event()
                pause = self.due - self._clock.now()
                if pause > 0:
                    with anyio.move_on_after(pause):
                        await self._nearer.wait()
                else:
                    self._hinted = math.inf
                    self._looks.append(self._clock.now())
                    self._plan()
                    self._look()
        finally:
            self._running = False
