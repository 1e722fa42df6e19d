"""Connections that a user lends us: of a driver's pool, or of an engine over it.

All in one asyncio loop. Neither a pool nor an engine is ever closed or changed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, Protocol, TypeVar

from aiorwlock_remote.cas.driver.pool import in_time, later, none_free
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.logs import log_event

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

FEW = 8
"""Connections for requests if the lender does not tell how many it has."""
MANY = 5
"""Connections from which on renewals that wait for locked rows have one more."""

C = TypeVar("C")


class Lender(Protocol[C]):
    """What connections are taken from."""

    @property
    def most(self) -> int | None:
        """How many it lends at the same time at most; None: it does not tell."""

    async def borrow(self) -> C:
        """One that nobody else uses.

        Raises:
            BackendError, ConfigurationError: as ``errors`` says; or the driver's.
        """

    async def give_back(self, connection: C) -> None:
        """To be used again."""

    async def drop(self, connection: C) -> None:
        """Not to be used again; its call has ended."""

    def abandon(self, connection: C) -> None:
        """Not to be used again; its call does not end."""

    async def settle(self) -> None:
        """Until all that was given back has arrived."""


class Lending(Generic[C]):
    """A lender that does nothing of its own, to be refined."""

    def __init__(self, lender: Lender[C]) -> None:
        """Whatever it lends."""
        self._lender = lender

    @property
    def most(self) -> int | None:
        """As ``Lender.most``."""
        return self._lender.most

    async def borrow(self) -> C:
        """As ``Lender.borrow``."""
        return await self._lender.borrow()

    async def give_back(self, connection: C) -> None:
        """To be used again."""
        await self._lender.give_back(connection)

    async def drop(self, connection: C) -> None:
        """Not to be used again; its call has ended."""
        await self._lender.drop(connection)

    def abandon(self, connection: C) -> None:
        """Not to be used again; its call does not end."""
        self._lender.abandon(connection)

    async def settle(self) -> None:
        """Until all that was given back has arrived."""
        await self._lender.settle()


class Checked(Lending[C]):
    """Lends none whose server has hung up meanwhile; engines do not look."""

    def __init__(self, lender: Lender[C], healthy: Callable[[C], bool]) -> None:
        """``healthy``: as far as is known without asking."""
        super().__init__(lender)
        self._healthy = healthy

    async def borrow(self) -> C:
        """The next one that seems well."""
        while not self._healthy(connection := await self._lender.borrow()):
            self._lender.abandon(connection)
        return connection


class Reach(Protocol):
    """The options of a backend, as far as connections need them."""

    @property
    def where(self) -> str:
        """The server, for messages."""

    @property
    def connect_timeout(self) -> float:
        """Seconds until a connection is there."""

    @property
    def call_timeout(self) -> float:
        """Seconds for a call, at most."""

    @property
    def connections(self) -> int:
        """As many of our own at most."""


class LentLines(Generic[C]):
    """One request at a time over each."""

    def __init__(self, lender: Lender[C], where: str, connect_timeout: float) -> None:
        """Of the running loop. ``where``: the server, for messages."""
        self.at_once: int = 1  # the others are for whoever lends them
        self._lender = lender
        self._where = where
        self._timeout = connect_timeout
        self._used = 0
        self._closed = False
        self._idle: asyncio.Event | None = None

    async def take(self) -> C:
        """What the lender gives.

        Raises:
            BackendUnavailable: none in ``connect_timeout`` seconds, or it is closed;
                else what the lender raises.
        """
        if self._closed:
            raise BackendUnavailable(what="the store is closed", nothing_done=True)
        self._used += 1
        borrowing = asyncio.ensure_future(self._lender.borrow())
        try:
            if await in_time(borrowing, self._timeout):
                return borrowing.result()
        except BaseException:
            self._left()
            raise
        borrowing.add_done_callback(self._unwanted)
        borrowing.cancel()
        self._left()
        raise self.none_free()

    def none_free(self) -> BackendUnavailable:
        """The error for a request that got no connection."""
        return none_free(self._where, self._timeout)

    async def give_back(self, connection: C) -> None:
        """Its request has been answered, and stays so if the lender fails."""
        with self._leaving():
            await self._lender.give_back(connection)

    async def drop(self, connection: C) -> None:
        """Its request has failed: another one is opened when it is needed."""
        with self._leaving():
            await self._lender.drop(connection)

    def abandon(self, connection: C) -> None:
        """Its request does not end."""
        log_event(log, "lent_connection_lost", server=self._where)
        self._lender.abandon(connection)
        self._left()

    async def close(self) -> None:
        """Wait for what is under way: then its owner may close it."""
        self._closed = True
        while self._used:
            self._idle = asyncio.Event()
            await self._idle.wait()
        await self._lender.settle()

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - it is the lender's
            log_event(
                log, "connection_not_returned", server=self._where, error=str(exc)
            )
        finally:
            self._left()

    def _left(self) -> None:
        self._used -= 1
        if not self._used and self._idle is not None:
            self._idle.set()

    def _unwanted(self, borrowing: asyncio.Future[C]) -> None:
        if not borrowing.cancelled() and borrowing.exception() is None:
            later(self._lender.give_back(borrowing.result()))


class SparingLines(Generic[C]):
    """Lent connections for all requests but renewals, for which some are left over.

    A pool serves whoever asked first. Without this, renewals would queue behind every
    acquire of this process that waits for a connection, and behind releases that wait
    for a locked row (test_lent_lines.py).
    """

    def __init__(self, lines: LentLines[C], most: int, timeout: float) -> None:
        """``most``: connections at the same time. ``timeout``: seconds for a turn."""
        self.at_once: int = lines.at_once
        self._lines = lines
        self._free = most
        self._timeout = timeout
        self._waiting: dict[asyncio.Future[None], None] = {}

    async def take(self) -> C:
        """As ``LentLines.take``, in turn.

        Raises:
            BackendUnavailable: no turn in time; else as ``LentLines.take``.
        """
        if self._free:
            self._free -= 1
        else:
            turn = asyncio.get_running_loop().create_future()
            self._waiting[turn] = None
            if not await in_time(turn, self._timeout):
                del self._waiting[turn]
                raise self._lines.none_free()
        try:
            return await self._lines.take()
        except BaseException:
            self._next()
            raise

    async def give_back(self, connection: C) -> None:
        """As ``LentLines.give_back``."""
        self._next()
        await self._lines.give_back(connection)

    async def drop(self, connection: C) -> None:
        """As ``LentLines.drop``."""
        self._next()
        await self._lines.drop(connection)

    def abandon(self, connection: C) -> None:
        """As ``LentLines.abandon``."""
        self._next()
        self._lines.abandon(connection)

    async def close(self) -> None:
        """As ``LentLines.close``."""
        await self._lines.close()

    def _next(self) -> None:
        turn = next(iter(self._waiting), None)
        if turn is None:
            self._free += 1
        else:
            del self._waiting[turn]
            turn.set_result(None)


def sparing(lines: LentLines[C], most: int | None, timeout: float) -> SparingLines[C]:
    """``lines`` for requests that leave connections to renewals.

    ``most``: how many there are, if that is known. From five on two are left: one for
    renewals that wait for a locked row.
    """
    if most is None:
        return SparingLines(lines, FEW, timeout)
    left = 1 if most < MANY else 2
    return SparingLines(lines, max(1, most - left), timeout)


@asynccontextmanager
async def lent(lender: Lender[C], options: Reach) -> AsyncIterator[LentLines[C]]:
    """Over what it lends, in the running loop; in the end it has got all back."""
    lines = LentLines(lender, options.where, options.connect_timeout)
    try:
        yield lines
    finally:
        await lines.close()
