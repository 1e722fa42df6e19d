"""Oracle: two published tables, each step one anonymous block of PL/SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from aiorwlock_remote.backends.oracle.options import (
    Options,
    check_schema,
    check_timeout,
)
from aiorwlock_remote.cas.driver.external_pool import ExternalPoolBackend

if TYPE_CHECKING:
    from aiorwlock_remote.backends.oracle.driver import Pool
    from aiorwlock_remote.cas.driver.external_pool import SaEngine


@final
class OracleBackend(ExternalPoolBackend):
    """A user's connection pool or engine, passed to ``connect`` in place of a URL.

    Use it as ``connect(OracleBackend(pool))``. The pool belongs to the running asyncio
    loop, must stay open while locks are in use, and is never closed or reconfigured by
    this library. Each request, also a renewal, takes a connection of the pool for a
    moment. If the loop is blocked for longer than a lease, its locks are lost.

    Args:
        pool: An asyncio pool of python-oracledb, or an ``AsyncEngine`` of SQLAlchemy
            over the same driver. ``create_schema`` needs the right ``CREATE TABLE``.
        schema: Owner of the tables, if not the user of the pool.
        call_timeout: Seconds after which an unanswered request fails.

    Raises:
        ConfigurationError: The pool is neither of these, or an option has a bad value.
    """

    def __init__(
        self, pool: Pool | SaEngine, *, schema: str = "", call_timeout: float = 5.0
    ) -> None:
        from aiorwlock_remote.backends.oracle.store import OracleStore  # noqa: PLC0415 - an extra

        options = Options(
            schema=check_schema(schema), call_timeout=check_timeout(call_timeout)
        )
        tables = schema or "the pool user"
        super().__init__(OracleStore, options, pool, tables)
