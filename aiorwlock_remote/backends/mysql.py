"""MySQL, which shares all but a dialect with ``mariadb``."""

from __future__ import annotations

from typing import final

from aiorwlock_remote.backends.mariadb import AsyncmyBackend


@final
class MysqlBackend(AsyncmyBackend):
    """A user's connection pool or engine, passed to ``connect`` in place of a URL.

    Use it as ``connect(MysqlBackend(pool))``. The pool belongs to the running asyncio
    loop, must stay open while locks are in use, and is never closed or reconfigured by
    this library. Each request, also a renewal, takes a connection of the pool for a
    moment. If the loop is blocked for longer than a lease, its locks are lost.

    Args:
        pool: An asyncmy pool, or an ``AsyncEngine`` of SQLAlchemy for mysql+asyncmy.
        database: Database of the tables, if not the one of the pool's connections.
        call_timeout: Seconds after which an unanswered request fails.

    Raises:
        ConfigurationError: The pool is neither of these, or an option has a bad value.
    """

    scheme = "mysql"
