"""Deleting rows that nobody uses any more: some at a time, however many there are.

One statement for all of them would take the longer the larger the table is. Past the
time limit of a request none of them goes, the next time neither; and until then it
holds them all.

What is to be done now and then, however short the lives of processes are.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import choice, randrange

import anyio

from aiorwlock_remote.errors import BackendError, ConfigurationError
from aiorwlock_remote.logs import log_event

Key = tuple[str, int]
"""The primary key of both tables' rows."""
FIRST_KEY: Key = "", 0
"""Before all there are."""
ROWS_PER_REQUEST = 2_000
"""Rows that one request looks at."""
PAUSE_BETWEEN_REQUESTS = 0.05
"""Seconds between two requests, for those who wait for connections, rows or disks."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


class Purger:
    """One walk through the table at a time. Belongs to one loop."""

    def __init__(
        self,
        forget: Callable[[Key], Awaitable[Key | None]],
        spawn: Callable[[Callable[[], Awaitable[None]]], object],
    ) -> None:
        """``forget``: a portion behind a key; where the next one begins, if there is.

        ``spawn``: of the loop's ``Host``.
        """
        self._forget = forget
        self._spawn = spawn
        self._ended = anyio.Event()
        self._over: anyio.Event | None = None

    def begin(self, near: Key) -> None:
        """Walk on to the last row, unless such a walk is under way.

        From the first one or from ``near``, which is left to chance: where processes
        end soon, none of them may come far.
        """
        if self._over is None and not self._ended.is_set():
            self._over = anyio.Event()
            self._spawn(partial(self._walk, choice((FIRST_KEY, near)), self._over))

    async def end(self) -> None:
        """No more requests; wait for the one under way."""
        self._ended.set()
        if self._over is not None:
            await self._over.wait()

    async def _walk(self, after: Key, over: anyio.Event) -> None:
        last: Key | None = after
        try:
            while last is not None and not self._ended.is_set():
                last = await self._forget(last)
                with anyio.move_on_after(PAUSE_BETWEEN_REQUESTS):
                    await self._ended.wait()
        except (BackendError, ConfigurationError) as exc:  # what is gone is gone
            log_event(log, "purge_failed", error=str(exc))
        finally:
            self._over = None
            over.set()


class EveryNth:
    """Says yes once in so many times, of all processes together.

    The first time is left to chance: else processes that end soon, a command under a
    lock, would never come to it.
    """

    def __init__(self, every: int) -> None:
        """``every``: so many times."""
        self._every = every
        self._left = 1 + randrange(every)

    def now(self) -> bool:
        """Whether this is one of those times."""
        self._left -= 1
        if self._left:
            return False
        self._left = self._every
        return True
