"""A bare INSERT and DELETE of the published row, by any driver: the floor.

No lease, no fence, no queue, and nobody can wait for it.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

from benchmarks.shared.client import Cycle
from benchmarks.shared.row import row
from benchmarks.sql.adapters.stock import Stock

INSERT = "INSERT INTO mutex_locks (resource_type, resource_id, ticket) VALUES ({})"
DELETE = (
    "DELETE FROM mutex_locks WHERE resource_type = {} AND resource_id = {}"
    " AND ticket = {}"
)
CONNECTIONS = 8
"""As many as our own store opens at most."""

C = TypeVar("C")
Values = tuple[str, int, str]
Execute = Callable[[C, str, Values], Awaitable[object]]


class BareClient(Generic[C]):
    """``execute``: as the driver does it. ``marks``: where values stand in a text."""

    def __init__(
        self,
        stock: Stock[C],
        execute: Execute[C],
        marks: tuple[str, str, str] = ("%s", "%s", "%s"),
    ) -> None:
        self._stock = stock
        self._execute = execute
        self.take: str = INSERT.format(", ".join(marks))
        self.free: str = DELETE.format(*marks)

    async def lock(self, key: str, mode: str) -> Cycle:
        """As ``Client``."""
        assert mode == "mutex"
        return _Lock(self, key)

    async def ask(self, statement: str, values: Values) -> None:
        """Over a connection that nobody else uses."""
        connection = await self._stock.take()
        try:
            await self._execute(connection, statement, values)
        finally:
            self._stock.give(connection)


class _Lock(Generic[C]):
    """One for each task."""

    def __init__(self, client: BareClient[C], key: str) -> None:
        self._client = client
        self._key = row(key)
        self._ticket = ""

    async def __aenter__(self) -> None:
        self._ticket = secrets.token_hex(16)
        await self._client.ask(self._client.take, (*self._key, self._ticket))

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._client.ask(self._client.free, (*self._key, self._ticket))
