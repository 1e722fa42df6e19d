"""Giving back what was lent, which asks the server something with most drivers.

A pool or an engine resets what it gets back: a request more. It is none of whoever had
the connection: it must neither hold up nor change what it was told before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from aiorwlock_remote.cas.driver.pool import in_time
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.swapping.lent_lines import Lender, Lending

RETURNS_IN = 5.0
"""Seconds for a connection to be taken back."""
GIVE_UP = 1.0
"""Seconds for its owner to find out that it is gone."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

C = TypeVar("C")


class Returning(Lending[C]):
    """Gives back soon, and hangs up what is not taken back in time."""

    def __init__(
        self, lender: Lender[C], hang_up: Callable[[C], object], *, asks: bool = True
    ) -> None:
        """``hang_up``: at once. ``asks``: whether the server is asked something.

        If not it is waited for, and the next request gets the same connection.
        """
        super().__init__(lender)
        self._hang_up = hang_up
        self._asks = asks
        self._returning: set[asyncio.Future[None]] = set()

    async def give_back(self, connection: C) -> None:
        """Never fails: that is written to the log."""
        returning = asyncio.ensure_future(self._return(connection))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)
        if not self._asks:
            await asyncio.wait({returning})

    async def settle(self) -> None:
        """Bounded."""
        if self._returning:
            await asyncio.wait(self._returning)
        await super().settle()

    async def _return(self, connection: C) -> None:
        closing = asyncio.ensure_future(super().give_back(connection))
        closing.add_done_callback(_heard)
        if not await in_time(closing, RETURNS_IN):
            self._hang_up(connection)
            await in_time(closing, GIVE_UP)


def _heard(closing: asyncio.Future[None]) -> None:
    if not closing.cancelled() and (error := closing.exception()) is not None:
        log_event(log, "connection_not_returned", exc_info=error)
