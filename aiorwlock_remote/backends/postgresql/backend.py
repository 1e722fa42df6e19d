"""``PostgresqlBackend``: locks over what the user has; and making their tables."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from aiorwlock_remote._util.driver_loop import check_asyncio
from aiorwlock_remote.backends.postgresql.options import (
    Options,
    check_schema,
    check_timeout,
)
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback

if TYPE_CHECKING:
    from aiorwlock_remote.backends.postgresql.store import PostgresqlStore


@final
class PostgresqlBackend:
    """Takes the place of a URL: ``connect(PostgresqlBackend(pool))``.

    ``pool`` is asyncpg's, or an ``AsyncEngine`` of SQLAlchemy for postgresql+asyncpg.
    It belongs to the running loop, must stay open while locks are in use, and is never
    closed or changed here. Each request takes one of its connections for a moment, the
    keeper's renewals too: with a pool of the user's a loop that is blocked for longer
    than a lease loses its locks. Waiters poll: a connection of a pool is not kept to
    listen.

    ``schema``: of the tables, if not the first of the search path. ``call_timeout``:
    seconds until a request is given up.
    """

    def __init__(
        self,
        pool: Any,  # noqa: ANN401 - asyncpg.Pool or AsyncEngine
        *,
        schema: str = "",
        call_timeout: float = 5.0,
    ) -> None:
        """No I/O.

        Raises:
            ConfigurationError: it is neither, or an option cannot be used.
        """
        from aiorwlock_remote.backends.postgresql.connector import external_pool_for  # noqa: PLC0415 - an extra

        self._options = Options(
            schema=check_schema(schema),
            listen=False,
            call_timeout=check_timeout(call_timeout),
        )
        self._lender = external_pool_for(pool)

    def __repr__(self) -> str:
        """Without the pool, which knows a password."""
        return f"<PostgresqlBackend of {self._options.schema or 'the search path'}>"

    def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> Awaitable[PostgresqlStore]:
        """As ``Opener``.

        Raises:
            ConfigurationError: not in an asyncio loop.
        """
        from aiorwlock_remote.backends.postgresql.store import open_over  # noqa: PLC0415

        check_asyncio("a pool of asyncpg", "postgresql")
        options = replace(self._options, connect_timeout=settings.connect_timeout)
        return open_over(self._lender, options, host, bell, settings)

    async def create_schema(self) -> None:
        """Make both tables where they are not there.

        What ``rwlock schema postgresql`` prints, without its grants. Nothing else here
        changes a schema.

        Raises:
            BackendError: the role may not, nobody answers.
        """
        from aiorwlock_remote.backends.postgresql.connector import create_tables  # noqa: PLC0415

        await create_tables(self._lender, self._options)
