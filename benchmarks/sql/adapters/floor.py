"""The floor of SQL databases, by any driver: INSERT and DELETE of the published row.

There is no lease, fence or queue, and no way to wait for the lock.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

from benchmarks.harness.lock import Cycle, row_of

INSERT = "INSERT INTO mutex_locks (resource_type, resource_id, ticket) VALUES ({})"
DELETE = (
    "DELETE FROM mutex_locks WHERE resource_type = {} AND resource_id = {}"
    " AND ticket = {}"
)
CONNECTIONS = 8
"""As many as our own store opens at most."""
SESSION_CONNECTIONS = 80
"""Connections for session locks, of which each waiting task needs one."""

C = TypeVar("C")
Values = tuple[str, int, str]
Execute = Callable[[C, str, Values], Awaitable[object]]


class Connections(Generic[C]):
    """The cheapest pool: the connection used last is used first.

    Connections are opened when needed, at most ``most`` at once.
    """

    def __init__(self, open_one: Callable[[], Awaitable[C]], most: int) -> None:
        self._open_one = open_one
        self._turns = asyncio.Semaphore(most)
        self._idle: list[C] = []
        self.opened: list[C] = []

    async def take(self) -> C:
        """Return a connection that no other task uses."""
        await self._turns.acquire()
        if self._idle:
            return self._idle.pop()
        self.opened.append(await self._open_one())
        return self.opened[-1]

    def put(self, connection: C) -> None:
        """Return a connection to the pool."""
        self._idle.append(connection)
        self._turns.release()


class FloorClient(Generic[C]):
    """A client of the floor.

    Args:
        connections: Of the driver.
        execute: Executes one statement, as the driver does it.
        marks: Placeholders of the driver for the three values.
    """

    def __init__(
        self,
        connections: Connections[C],
        execute: Execute[C],
        marks: tuple[str, str, str] = ("%s", "%s", "%s"),
    ) -> None:
        self._connections = connections
        self._execute = execute
        self.insert: str = INSERT.format(", ".join(marks))
        self.delete: str = DELETE.format(*marks)

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self, key)

    async def execute(self, statement: str, values: Values) -> None:
        """Execute a statement on a connection of the pool."""
        connection = await self._connections.take()
        try:
            await self._execute(connection, statement, values)
        finally:
            self._connections.put(connection)


class _Lock(Generic[C]):
    """The lock of one task."""

    def __init__(self, client: FloorClient[C], key: str) -> None:
        self._client = client
        self._key = row_of(key)
        self._ticket = ""

    async def __aenter__(self) -> None:
        self._ticket = secrets.token_hex(16)
        await self._client.execute(self._client.insert, (*self._key, self._ticket))

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.execute(self._client.delete, (*self._key, self._ticket))
