"""MariaDB and MySQL: each step is one request, waiting tasks poll."""

from __future__ import annotations

from typing import Any, ClassVar, final

from aiorwlock_remote.backends.mariadb.options import Options, check_name
from aiorwlock_remote.cas.driver.external_pool import ExternalPoolBackend
from aiorwlock_remote.cas.driver.options import check_timeout


class AsyncmyBackend(ExternalPoolBackend):
    """Base of the backends that take a pool of asyncmy or an engine over it."""

    scheme: ClassVar[str]

    def __init__(
        self,
        pool: Any,  # noqa: ANN401 - asyncmy.pool.Pool or AsyncEngine
        *,
        database: str = "",
        call_timeout: float = 5.0,
    ) -> None:
        from aiorwlock_remote.backends.mariadb.store import STORES  # noqa: PLC0415 - an extra

        options = Options(
            tables=check_name(self.scheme, database),
            call_timeout=check_timeout(self.scheme, call_timeout),
        )
        tables = database or "the database of the pool"
        super().__init__(STORES[self.scheme], options, pool, tables)


@final
class MariadbBackend(AsyncmyBackend):
    """A user's connection pool or engine, passed to ``connect`` in place of a URL.

    Use it as ``connect(MariadbBackend(pool))``. The pool belongs to the running asyncio
    loop, must stay open while locks are in use, and is never closed or reconfigured by
    this library. Each request, also a renewal, takes a connection of the pool for a
    moment. If the loop is blocked for longer than a lease, its locks are lost.

    Args:
        pool: An asyncmy pool, or an ``AsyncEngine`` of SQLAlchemy for mariadb+asyncmy
            or mysql+asyncmy.
        database: Database of the tables, if not the one of the pool's connections.
        call_timeout: Seconds after which an unanswered request fails.

    Raises:
        ConfigurationError: The pool is neither of these, or an option has a bad value.
    """

    scheme = "mariadb"
