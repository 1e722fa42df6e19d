"""Connections of a user's engine, and pools of them that cannot be used."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.pool import StaticPool

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError


def check_pool(engine: AsyncEngine) -> None:
    """Refuse one that gives all the same connection: it would end others' steps.

    Raises:
        ConfigurationError: it is that of SQLite in memory.
    """
    if isinstance(engine.sync_engine.pool, StaticPool):
        raise ConfigurationError(
            what=f"{quoted(engine)} cannot be used: all its connections are one",
            hint="a database in a file, or another poolclass",
        )


@asynccontextmanager
async def autocommitting(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection of its own, each of whose statements commits.

    Told to do so when there is one: an engine with that option asks the server before
    anybody could give back a connection that turns out to be dead.
    """
    async with engine.connect() as connection:
        yield await connection.execution_options(isolation_level="AUTOCOMMIT")
