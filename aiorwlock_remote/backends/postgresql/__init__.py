"""PostgreSQL: each step is one SQL statement, waiting tasks are woken by ``NOTIFY``."""

from __future__ import annotations

from typing import Any, final

from aiorwlock_remote.backends.postgresql.options import (
    Options,
    check_schema,
    check_timeout,
)
from aiorwlock_remote.cas.driver.external_pool import ExternalPoolBackend


@final
class PostgresqlBackend(ExternalPoolBackend):
    """A user's connection pool or engine, passed to ``connect`` in place of a URL.

    Use it as ``connect(PostgresqlBackend(pool))``. The pool belongs to the running
    asyncio loop, must stay open while locks are in use, and is never closed or
    reconfigured by this library. Each request, also a renewal, takes a connection of
    the pool for a moment. If the loop is blocked for longer than a lease, its locks are
    lost. Waiting tasks poll, because no connection of the pool is kept to listen.

    Args:
        pool: An asyncpg pool, or an ``AsyncEngine`` of SQLAlchemy for
            postgresql+asyncpg.
        schema: Schema of the tables, if not the first of the search path.
        call_timeout: Seconds after which an unanswered request fails.

    Raises:
        ConfigurationError: The pool is neither of these, or an option has a bad value.
    """

    def __init__(
        self,
        pool: Any,  # noqa: ANN401 - asyncpg.Pool or AsyncEngine
        *,
        schema: str = "",
        call_timeout: float = 5.0,
    ) -> None:
        from aiorwlock_remote.backends.postgresql.store import PostgresqlStore  # noqa: PLC0415 - an extra

        options = Options(
            schema=check_schema(schema),
            listen=False,
            call_timeout=check_timeout(call_timeout),
        )
        tables = schema or "the search path"
        super().__init__(PostgresqlStore, options, pool, tables)
