"""Transactions of the user's, over asyncpg."""

from __future__ import annotations

from aiorwlock_remote.backends.postgresql import errors
from aiorwlock_remote.backends.postgresql.driver import DRIVER, Connection
from aiorwlock_remote.cas.driver.transactions import TransactionDriver


async def _first(connection: Connection, text: str, *values: object) -> object:
    return await connection.fetchrow(text, *values)


def _begun(connection: Connection) -> bool:
    begun: bool = connection.is_in_transaction()
    return begun


ASYNCPG = TransactionDriver(
    connections=(DRIVER.Connection, DRIVER.pool.PoolConnectionProxy),
    driver="asyncpg",
    dialects=("postgresql",),
    first=_first,
    begun=_begun,
    knows=lambda exc: bool(errors.code_of(exc)),
    map_error=errors.from_driver,
    hint="async with connection.transaction(): …",
)
