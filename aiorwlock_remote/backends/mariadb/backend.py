"""``MariadbBackend``: locks over a pool of the user's; and making their tables."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from aiorwlock_remote._util.driver_loop import check_asyncio
from aiorwlock_remote.backends.mariadb.options import Options, check_name, check_timeout
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback

if TYPE_CHECKING:
    from aiorwlock_remote.backends.mariadb.store import MariadbStore


@final
class MariadbBackend:
    """Takes the place of a URL: ``connect(MariadbBackend(pool))``.

    ``pool`` is asyncmy's, or an ``AsyncEngine`` of SQLAlchemy for mariadb+asyncmy (or
    mysql+asyncmy). It belongs to the running loop, must stay open while locks are in
    use, and is never closed or changed here. Each request takes one of its connections
    for a moment, the keeper's renewals too: a loop that is blocked for longer than a
    lease loses its locks.

    ``database``: of the tables, if not the one of the pool's connections.
    ``call_timeout``: seconds until a request is given up.
    """

    def __init__(
        self,
        pool: Any,  # noqa: ANN401 - asyncmy.pool.Pool or AsyncEngine
        *,
        database: str = "",
        call_timeout: float = 5.0,
    ) -> None:
        """No I/O.

        Raises:
            ConfigurationError: it is neither, or an option cannot be used.
        """
        from aiorwlock_remote.backends.mariadb.connector import external_pool_for  # noqa: PLC0415 - an extra

        self._options = Options(
            tables=check_name(database), call_timeout=check_timeout(call_timeout)
        )
        self._lender = external_pool_for(pool)

    def __repr__(self) -> str:
        """Without the pool, which knows a password."""
        database = self._options.tables or "the database of the pool"
        return f"<MariadbBackend of {database}>"

    def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> Awaitable[MariadbStore]:
        """As ``Opener``.

        Raises:
            ConfigurationError: not in an asyncio loop.
        """
        from aiorwlock_remote.backends.mariadb.store import open_over  # noqa: PLC0415

        check_asyncio("a pool of asyncmy", "mariadb")
        options = replace(self._options, connect_timeout=settings.connect_timeout)
        return open_over(self._lender, options, host, bell, settings)

    async def create_schema(self) -> None:
        """Make both tables where they are not there.

        What ``rwlock schema mariadb`` prints, without its grants. Nothing else here
        changes a schema.

        Raises:
            BackendError: the user may not, nobody answers.
        """
        from aiorwlock_remote.backends.mariadb.connector import create_tables  # noqa: PLC0415

        await create_tables(self._lender, self._options)
