"""Notices a server that has gone silent. Costs nothing per command."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from aiorwlock_remote.backends.redis.connection.background_task import BackgroundTask
from aiorwlock_remote.ports import EventLoop

CHECKS_PER_TIMEOUT = 20
"""Looks in the time of patience; the verdict is at most two looks late."""


class SilenceWatchdog:
    """Looks from time to time, while something is under way, at what is the oldest.

    ``oldest()``: the oldest unanswered command or None; ``silent()`` is called when
    that has been the same one for ``patience`` seconds; ``tidy(now)`` is called at each
    look and says whether other work is left to watch.
    """

    def __init__(
        self,
        host: EventLoop,
        patience: float,
        oldest: Callable[[], object],
        silent: Callable[[], object],
        tidy: Callable[[float], bool],
    ) -> None:
        """Not armed."""
        self._clock = host.clock
        self._patience = patience
        self._oldest = oldest
        self._silent = silent
        self._tidy = tidy
        self.errand: BackgroundTask = BackgroundTask(host, self._run)
        self.armed: bool = False

    def arm(self) -> None:
        """Something is under way."""
        if not self.armed:
            self.armed = True
            self.errand.start()

    async def _run(self) -> None:
        try:
            await self._look()
        finally:  # also if somebody cancelled every task of the loop
            self.armed = False

    async def _look(self) -> None:
        tick = self._patience / CHECKS_PER_TIMEOUT
        marked, since = self._oldest(), self._clock.now()
        last = since
        while True:
            await anyio.sleep(tick)
            now, oldest = self._clock.now(), self._oldest()
            # After a pause of our own (a loop that hung, SIGSTOP) the answer may lie
            # in the socket: the server gets its time anew.
            stalled = now - last > self._patience / 2
            last = now
            if oldest is not marked or stalled:
                marked, since = oldest, now
            elif oldest is not None and now - since >= self._patience:
                self._silent()
                marked, since = self._oldest(), now
            busy = self._tidy(now)
            if not busy and self._oldest() is None:
                return
