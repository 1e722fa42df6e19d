"""Deletion of rows that no client uses any more, a limited number at a time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from random import choice, randrange

import anyio

from aiorwlock_remote.errors import BackendError, ConfigurationError
from aiorwlock_remote.logs import log_event

# The primary key of both tables' rows.
Key = tuple[str, int]
# Less than the key of any row.
FIRST_KEY: Key = "", 0

# One statement for all rows would lock them all, for longer the larger the table is.
# Past the time limit of a request it would delete nothing, and the next time neither.
ROWS_PER_REQUEST = 2_000
# Seconds between two requests, so that other requests get connections and rows.
PAUSE_BETWEEN_REQUESTS = 0.05

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


class Purger:
    """Deletes unused rows of a table in the background, used in one event loop.

    Args:
        forget: ``await forget(key)`` deletes unused rows after ``key``, and returns
            the key after which to continue, or None at the end of the table.
        spawn: Runs an async function as a task of the loop.
    """

    def __init__(
        self,
        forget: Callable[[Key], Awaitable[Key | None]],
        spawn: Callable[[Callable[[], Awaitable[None]]], object],
    ) -> None:
        self._forget = forget
        self._spawn = spawn
        self._ended = anyio.Event()
        self._over: anyio.Event | None = None

    def begin(self, near: Key) -> None:
        """Start a purge in the background, unless one is running.

        It begins at random at the table's first row or after ``near``, a key in use
        now.
        """
        # At random: where processes end soon, no walk from the first row gets far, and
        # the last rows would never be purged.
        if self._over is None and not self._ended.is_set():
            self._over = anyio.Event()
            self._spawn(partial(self._walk, choice((FIRST_KEY, near)), self._over))

    async def end(self) -> None:
        """Stop purging for good, and wait for the purge request under way."""
        self._ended.set()
        if self._over is not None:
            await self._over.wait()

    async def _walk(self, after: Key, over: anyio.Event) -> None:
        last: Key | None = after
        try:
            while last is not None and not self._ended.is_set():
                last = await self._forget(last)
                log_event(log, "record_purged", logging.DEBUG, next_key=last)
                with anyio.move_on_after(PAUSE_BETWEEN_REQUESTS):
                    await self._ended.wait()
        except (BackendError, ConfigurationError) as exc:
            log_event(log, "purge_failed", error=str(exc))
        finally:
            self._over = None
            over.set()


class EveryNth:
    """Counter that decides which calls do a rare job: one in ``every`` on average."""

    def __init__(self, every: int) -> None:
        # The first hit is random, so that short-lived processes (a command under a
        # lock) take part (tests/test_every_nth.py).
        self._every = every
        self._left = 1 + randrange(every)

    def now(self) -> bool:
        """Count a call; return True for every ``every``-th, the first hit at random."""
        self._left -= 1
        if self._left:
            return False
        self._left = self._every
        return True
