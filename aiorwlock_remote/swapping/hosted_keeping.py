"""Renewals over a driver that needs an asyncio loop: a loop and a connection of theirs.

Not a driver's blocking side: at a server that is silent while it logs in, that may wait
for ever. They log in when the store is opened, not when the first renewal is due: of a
short lease that takes a good part.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import anyio

from aiorwlock_remote.hosted import Far
from aiorwlock_remote.pending import Pending
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.swapping.keeping import ThreadHost


class FarLines(Protocol):
    """Connections that live in the loop of a thread."""

    async def connect(self) -> None:
        """Open one; a failure is left to the first request."""

    def hang_up(self) -> None:
        """Close them without a word."""


L = TypeVar("L", bound=FarLines)


class Keeping(Generic[L]):
    """Runs from the beginning; ``connect`` once it is known that one can."""

    def __init__(self, name: str, lines: L, clock: Clock) -> None:
        """``host``: of the keeper's thread, where answers are wanted."""
        self.host: ThreadHost = ThreadHost(clock)
        self.far: Far = Far(self.host, f"{name} keeper")
        self.lines: L = lines

    def connect(self) -> Pending[None]:
        """Connect now: a renewal is due. Told in the keeper's thread."""
        pending: Pending[None] = Pending()
        self.far.spawn(partial(self._connect, pending))
        return pending

    def get_ready(self) -> None:
        """Connect for the first renewal."""
        self.connect().unawaited()

    def end(self) -> None:
        """Hang up. Blocks until the thread has ended."""
        self.far.end(self.lines.hang_up)

    async def _connect(self, pending: Pending[None]) -> None:
        await self.lines.connect()
        self.far.tell(pending.resolve, None)


def ready(keeping: Keeping[Any] | None) -> Callable[[], object]:
    """What is to be called once it is known that one can log in."""
    return (lambda: None) if keeping is None else keeping.get_ready


@asynccontextmanager
async def closing_on_failure(
    close: Callable[[], Awaitable[object]], keeping: Keeping[Any] | None
) -> AsyncIterator[None]:
    """While a store is opened: what was made for it goes if that fails."""
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            if keeping is not None:
                await anyio.to_thread.run_sync(keeping.end)
            await close()
        raise
