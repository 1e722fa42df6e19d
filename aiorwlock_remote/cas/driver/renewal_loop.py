"""Renewals over a driver that needs an asyncio loop: a loop and a connection of theirs.

Not a driver's blocking side: at a server that is silent while it logs in, that may wait
for ever. They log in when the store is opened, not when the first renewal is due: of a
short lease that takes a good part.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import anyio

from aiorwlock_remote._util.driver_loop import ThreadLoop
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas.driver.external_pool import (
    BorrowedConnections,
    ConnectionOptions,
    ExternalPool,
    sparing,
)
from aiorwlock_remote.cas.driver.pool import ConnectionPool, ConnectionSource
from aiorwlock_remote.cas.renewer import CallbackThread
from aiorwlock_remote.ports import Clock

MAX_CONNECTIONS = 4
"""Connections for renewals, of which all but one are for many at a time."""
FOR_LOCKED_ROWS = 2
"""Connections for renewals that may wait for a row which somebody keeps locked."""

C = TypeVar("C")
R = TypeVar("R", bound=ConnectionOptions)


class RenewalLoop(Generic[C]):
    """Runs from the beginning; ``connect`` once it is known that one can."""

    def __init__(
        self,
        name: str,
        lines: ConnectionPool[C],
        apart: ConnectionPool[C],
        clock: Clock,
    ) -> None:
        """``name``: of the store. ``lines``: of the loop that is started here.

        ``apart``: those over which locked rows are waited for. ``host`` is of the
        keeper's thread, where answers are wanted.
        """
        self.host: CallbackThread = CallbackThread(clock)
        self.far: ThreadLoop = ThreadLoop(self.host, f"{name} keeper")
        self.lines: ConnectionPool[C] = lines
        self.apart: ConnectionPool[C] = apart

    def connect(self) -> Pending[None]:
        """Connect now: a renewal is due. Told in the keeper's thread."""
        pending: Pending[None] = Pending()
        self.far.spawn(partial(self._connect, pending))
        return pending

    def get_ready(self) -> None:
        """Connect for the first renewal."""
        self.connect().log_failure()

    def end(self) -> None:
        """Hang up. Blocks until the thread has ended."""
        self.far.end(self._hang_up)

    def _hang_up(self) -> None:
        self.lines.abort()
        self.apart.abort()

    async def _connect(self, pending: Pending[None]) -> None:
        await self.lines.connect()
        self.far.tell(pending.set_result, None)


Renewals = RenewalLoop[C] | BorrowedConnections[C]
"""Over a connection of the keeper's own; or, over a user's pool, through the loop."""


def make_connections(
    name: str,
    lender: ExternalPool[C] | None,
    own: Callable[[R, int], ConnectionPool[C]],
    options: R,
    clock: Clock,
) -> tuple[ConnectionSource[C], Renewals[C]]:
    """What requests go over, and renewals. ``own``: makes lines, so many at most."""
    if lender is not None:
        timeout = options.connect_timeout
        lent = BorrowedConnections(lender, options.where, timeout)
        return sparing(lent, lender.most, timeout), lent
    lines = own(options, options.connections)
    apart = own(options, FOR_LOCKED_ROWS)
    return lines, RenewalLoop(name, own(options, MAX_CONNECTIONS), apart, clock)


@asynccontextmanager
async def closing_on_failure(
    close: Callable[[], Awaitable[object]], renewals: Renewals[Any]
) -> AsyncIterator[Callable[[], object]]:
    """While a store is opened: what was made for it goes if that fails.

    Gives what is to be called once it is known that one can log in.
    """
    keeping = renewals if isinstance(renewals, RenewalLoop) else None
    try:
        yield _nothing if keeping is None else keeping.get_ready
    except BaseException:
        with anyio.CancelScope(shield=True):
            if keeping is not None:
                await anyio.to_thread.run_sync(keeping.end)
            await close()
        raise


def _nothing() -> None:
    """A user's pool is ready."""
