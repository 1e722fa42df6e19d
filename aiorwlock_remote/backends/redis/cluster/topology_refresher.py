"""When the map of a cluster is asked for again."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import anyio

from aiorwlock_remote.backends.redis.connection.background_task import BackgroundTask
from aiorwlock_remote.core.polling import back_off
from aiorwlock_remote.ports import EventLoop

MAX_SEARCH_INTERVAL = 5.0
"""Seconds between two looks, at most, while a node stays away."""


class TopologyRefresher:
    """Asks, ever more seldom, until the map is in no doubt and every node is there.

    A doubt keeps it going and does not hasten it: a cluster that is down refuses every
    call, for as long as it takes. What has changed does: more may change with it.
    """

    def __init__(
        self,
        host: EventLoop,
        ask: Callable[[], Awaitable[bool]],
        complete: Callable[[], bool],
    ) -> None:
        """``ask()``: whether somebody told; ``complete()``: every node is there."""
        self._ask = ask
        self._complete = complete
        self._doubted = False
        self._attempts = 0
        self._hastened: anyio.Event | None = None
        self.errand: BackgroundTask = BackgroundTask(host, self._run)

    def doubt(self, *, soon: bool = False) -> None:
        """The map may be wrong; ``soon``: for a reason that is new."""
        self._doubted = True
        if soon:
            self.hasten()
        self.errand.start()

    def hasten(self) -> None:
        """Something has changed."""
        self._attempts = 0
        if self._hastened is not None:
            self._hastened.set()
        self.errand.start()

    def go_on(self) -> None:
        """Somebody needs what is looked for: all tasks may have been cancelled."""
        self.errand.start()

    async def _run(self) -> None:
        self._attempts = 0
        while True:
            await self._pause()
            if not self._doubted and self._complete():
                return
            self._doubted = False
            if not await self._ask():
                self._doubted = True

    async def _pause(self) -> None:
        self._hastened = anyio.Event()
        seconds = back_off(self._attempts, random.random(), longest=MAX_SEARCH_INTERVAL)
        self._attempts += 1
        with anyio.move_on_after(seconds):
            await self._hastened.wait()
            await anyio.sleep(back_off(0, random.random()))  # a storm is looked at once
