"""python-oracledb as far as we use it: its own types leave too much open."""

from __future__ import annotations

from typing import Any, Protocol, Self

import oracledb

DRIVER: Any = oracledb
NUMBER: Any = DRIVER.DB_TYPE_NUMBER
Error = oracledb.Error


class Cursor(Protocol):
    """``AsyncCursor``; closed by its ``with``, which waits for nothing."""

    arraysize: int
    description: Any
    rowcount: int

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def var(self, typ: Any, size: int = 0, arraysize: int = 1) -> Any:  # noqa: ANN401
        """A bind variable."""

    def setinputsizes(self, **sizes: Any) -> Any:  # noqa: ANN401
        """Types and sizes of binds."""

    async def execute(self, statement: str, parameters: Any) -> Any:  # noqa: ANN401
        """Once."""

    async def executemany(self, statement: str, parameters: Any) -> None:  # noqa: ANN401
        """Once for each."""

    async def parse(self, statement: str) -> None:
        """Not at all."""

    async def fetchall(self) -> list[tuple[Any, ...]]:
        """What a query found."""


class Connection(Protocol):
    """``AsyncConnection``. ``call_timeout``: milliseconds, 0: none."""

    call_timeout: int

    @property
    def version(self) -> str:
        """The server's."""

    def cursor(self) -> Cursor:
        """A new one."""

    def is_healthy(self) -> bool:
        """As far as is known without asking."""

    def cancel(self) -> None:
        """Break into the call under way."""

    def terminate(self) -> None:
        """Closed at once."""

    async def commit(self) -> None:
        """The transaction."""

    async def rollback(self) -> None:
        """The transaction."""

    async def close(self) -> None:
        """Log off."""


class Pool(Protocol):
    """``AsyncConnectionPool``."""

    @property
    def max(self) -> int:
        """The most connections that it opens."""

    def acquire(self) -> Any:  # noqa: ANN401 - a connection, awaited or entered
        """One that nobody else uses."""

    async def release(self, connection: Any) -> None:  # noqa: ANN401
        """To be used again."""

    async def drop(self, connection: Any) -> None:  # noqa: ANN401
        """Not to be used again."""
