"""Pools of connections that cannot be used."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import StaticPool

from aiorwlock_remote.core.shown import quoted
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
