"""``OracleBackend``: locks over a pool or engine of the user's; making their tables."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, final

from aiorwlock_remote._util.driver_loop import check_asyncio
from aiorwlock_remote.backends.oracle.options import (
    Options,
    check_schema,
    check_timeout,
)
from aiorwlock_remote.ports import EventLoop, StoreSettings, WakeCallback

if TYPE_CHECKING:
    from aiorwlock_remote.backends.oracle.driver import Pool
    from aiorwlock_remote.backends.oracle.store import OracleStore
    from aiorwlock_remote.cas.driver.external_pool import SaEngine


@final
class OracleBackend:
    """Takes the place of a URL: ``connect(OracleBackend(pool))``.

    ``pool`` is python-oracledb's asyncio pool or, over the same driver, SQLAlchemy's
    ``AsyncEngine``. Its connections belong to the running loop; it must stay open while
    locks are in use, and is never closed or changed here. Each request takes one of its
    connections for a moment, the keeper's renewals too: a loop that is blocked for
    longer than a lease loses its locks.

    ``schema``: the owner of the tables, if not the user of the pool. ``call_timeout``:
    seconds until a request is given up.
    """

    def __init__(
        self,
        pool: Pool | SaEngine,
        *,
        schema: str = "",
        call_timeout: float = 5.0,
    ) -> None:
        """No I/O.

        Raises:
            ConfigurationError: it is no asyncio pool, or an option cannot be used.
        """
        from aiorwlock_remote.backends.oracle.connector import external_pool_for  # noqa: PLC0415 - needs the driver

        self._options = Options(
            schema=check_schema(schema), call_timeout=check_timeout(call_timeout)
        )
        self._lender = external_pool_for(pool)

    def __repr__(self) -> str:
        """Without the pool, which knows a password."""
        return f"<OracleBackend of {self._options.schema or 'the pool user'}>"

    def open(
        self, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> Awaitable[OracleStore]:
        """As ``Opener``.

        Raises:
            ConfigurationError: not in an asyncio loop.
        """
        from aiorwlock_remote.backends.oracle.store import open_over  # noqa: PLC0415

        check_asyncio("a pool or engine over python-oracledb", "oracle")
        options = replace(self._options, connect_timeout=settings.connect_timeout)
        return open_over(self._lender, options, host, bell, settings)

    async def create_schema(self) -> None:
        """Make both tables; the user needs ``CREATE TABLE``.

        What ``rwlock schema oracle`` prints, without its grants. A table that is there
        already stays as it is. Nothing else here changes a schema.

        Raises:
            BackendError: the user may not, nobody answers.
        """
        from aiorwlock_remote.backends.oracle.connector import create_tables  # noqa: PLC0415

        await create_tables(self._lender, self._options)
