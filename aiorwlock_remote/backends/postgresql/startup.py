"""Opening: one connection, the server's version, the tables, the time."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from aiorwlock_remote.backends.postgresql.executor import PostgresqlExecutor
from aiorwlock_remote.backends.postgresql.options import Options
from aiorwlock_remote.backends.postgresql.schema import check
from aiorwlock_remote.cas.driver.pool import not_connected
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.tables import read_server_time
from aiorwlock_remote.errors import Unsupported
from aiorwlock_remote.ports import Clock

LEAST_SERVER = 120000


async def check_server(
    desk: PostgresqlExecutor,
    options: Options,
    clock: Clock,
    let_in: Callable[[], object],
) -> ServerTime:
    """Look at the server and the tables; what time it is there.

    ``let_in``: called once the login was good.

    Raises:
        ConfigurationError, BackendError: see ``errors`` and ``schema``.
    """
    with anyio.move_on_after(options.connect_timeout):
        (server,) = await desk.rows("server")
        let_in()
        if server["number"] < LEAST_SERVER:
            raise Unsupported(
                what=f"{options.where}: PostgreSQL {server['version']}",
                hint="12 or later is needed",
            )
        schema = options.schema or None
        columns = [tuple(row) for row in await desk.rows("columns", schema)]
        keyless = {row["table_name"] for row in await desk.rows("keyless", schema)}
        check(columns, keyless, options.schema, options.where)
        return await read_server_time(desk, clock)
    raise not_connected(options.where, options.connect_timeout)
