"""Connections of our own to a database, opened when needed and kept.

All in one asyncio loop. No request is ever cancelled here: what does not end in time is
left to itself. Only connecting is, when it takes too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from aiorwlock_remote.errors import BackendUnavailable

CLOSE_TIMEOUT = 1.0
"""Seconds for logging off."""

T = TypeVar("T")
C = TypeVar("C")


class DriverConnector(Protocol[C]):
    """How a driver connects, and ends a connection."""

    async def dial(self) -> C:
        """A new connection; there is a time limit around it."""

    def healthy(self, connection: C) -> bool:
        """As far as is known without asking."""

    async def close(self, connection: C) -> None:
        """In order; there is a time limit around it."""

    def abort(self, connection: C) -> None:
        """At once, without a word, whatever is under way."""


class ConnectionSource(Protocol[C]):
    """Where connections come from and go to: our own, or those that a user lends.

    ``at_once``: how many of them one batch of requests may use.
    """

    at_once: int

    async def take(self) -> C:
        """One that nobody else uses.

        Raises:
            BackendUnavailable: none in ``connect_timeout`` seconds; else what the
                driver raises.
        """

    async def give_back(self, connection: C) -> None:
        """Its request has been answered."""

    async def drop(self, connection: C) -> None:
        """It is not to be used again."""

    def abandon(self, connection: C) -> None:
        """Its request does not end."""

    async def close(self) -> None:
        """Close those that are ours; nobody uses them any more."""


class ConnectionPool(Generic[C]):
    """Each connection is used by one request at a time.

    Whoever is not let in, as by a server that has as many clients as it takes, waits
    for one of ours to come free; as long as there are any.
    """

    def __init__(
        self,
        dialling: DriverConnector[C],
        where: str,
        connect_timeout: float,
        most: int,
    ) -> None:
        """``where``: the server, for messages. ``most``: connections at once."""
        self._dialling = dialling
        self._where = where
        self._timeout = connect_timeout
        self.at_once: int = most
        self._open = 0
        self._closed = False
        self._idle: list[C] = []
        # In order; whether a connection has been asked for on its behalf.
        self._waiting: dict[asyncio.Future[C], bool] = {}
        self._refused: dict[asyncio.Future[C], Exception] = {}  # those of them, and why

    async def take(self) -> C:
        """An idle one, a new one, or one that comes back before that is there.

        Raises:
            BackendUnavailable: none in ``connect_timeout`` seconds, or closed; else
                what the driver raises, by then if one of ours could have come free.
        """
        if self._closed:
            raise BackendUnavailable(what=f"{self._where}: closed", nothing_done=True)
        while self._idle:
            connection = self._idle.pop()
            if self._dialling.healthy(connection):
                return connection
            self.abandon(connection)
        turn: asyncio.Future[C] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = False
        self._more()
        if not await in_time(turn, self._timeout):
            raise self._left(turn) or none_free(self._where, self._timeout)
        return turn.result()

    async def give_back(self, connection: C) -> None:
        """Its request has been answered: to whoever waits longest."""
        if self._closed:
            self._dialling.abort(connection)
            return
        turn = next(iter(self._waiting), None)
        if turn is None:
            self._idle.append(connection)
        else:
            self._left(turn)
            turn.set_result(connection)

    async def drop(self, connection: C) -> None:
        """Its request has failed."""
        self.abandon(connection)

    def abandon(self, connection: C) -> None:
        """Its request does not end; the server finds out by itself."""
        self._dialling.abort(connection)
        self._open -= 1
        refused = next(iter(self._refused), None)
        if refused is not None:  # there may be room now
            del self._refused[refused]
            self._waiting[refused] = False
        self._more()

    async def connect(self) -> None:
        """Open one; a failure is left to the first request."""
        with suppress(Exception):
            await self.give_back(await self.take())

    def abort(self) -> None:
        """Without a word; what is under way, when it is over."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            self._dialling.abort(connection)

    async def close(self) -> None:
        """Log off, or be gone; what is under way, when it is over."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            closing = asyncio.ensure_future(self._dialling.close(connection))
            if not await in_time(closing, CLOSE_TIMEOUT) or closing.exception():
                closing.add_done_callback(ignore_result)
                self._dialling.abort(connection)

    def _more(self) -> None:
        """Another one for those who wait, if there may be more; one try for each."""
        turn = next((turn for turn, tried in self._waiting.items() if not tried), None)
        if turn is not None and self._open < self.at_once:
            self._waiting[turn] = True
            self._open += 1
            spawn_detached(self._connect(turn))

    async def _connect(self, turn: asyncio.Future[C]) -> None:
        try:
            connection = await self._connected()
        except Exception as exc:  # noqa: BLE001 - handed to whoever waits
            self._open -= 1
            if turn in self._waiting:
                self._refused[turn] = exc
            if not self._open:
                self._turn_away()
            self._more()
            return
        await self.give_back(connection)

    def _left(self, turn: asyncio.Future[C]) -> Exception | None:
        """It waits no longer; why no connection was made for it, if one was tried."""
        self._waiting.pop(turn, None)
        return self._refused.pop(turn, None)

    def _turn_away(self) -> None:
        """No connection of ours is left that could come free."""
        for turn, why in list(self._refused.items()):
            self._left(turn)
            turn.set_exception(why)

    async def _connected(self) -> C:
        connecting = asyncio.ensure_future(self._dialling.dial())
        if not await in_time(connecting, self._timeout):
            connecting.add_done_callback(self._unwanted)
            connecting.cancel()
            raise not_connected(self._where, self._timeout)
        return connecting.result()

    def _unwanted(self, connecting: asyncio.Future[C]) -> None:
        if not connecting.cancelled() and connecting.exception() is None:
            self._dialling.abort(connecting.result())


async def in_time(future: asyncio.Future[T], seconds: float) -> bool:
    """Whether it is done by then; it is never cancelled."""
    done, _ = await asyncio.wait({future}, timeout=seconds)
    return bool(done)


def ignore_result(working: asyncio.Future[T]) -> None:
    """What became of it interests nobody."""
    if not working.cancelled():
        working.exception()


_tasks: set[asyncio.Future[None]] = set()  # the loop keeps only weak references


def spawn_detached(work: Awaitable[None]) -> None:
    """As a task that nobody waits for."""
    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def none_free(where: str, seconds: float) -> BackendUnavailable:
    """All are in use."""
    return BackendUnavailable(
        what=f"{where}: no connection was free in {seconds:g} s", nothing_done=True
    )


def not_connected(where: str, seconds: float) -> BackendUnavailable:
    """Nobody let us in."""
    return BackendUnavailable(
        what=f"{where}: not connected in {seconds:g} s", nothing_done=True
    )
