"""Opening: one connection, the server's version and modes, the tables, the time."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import anyio

from aiorwlock_remote.backends.mariadb.executor import MariadbExecutor
from aiorwlock_remote.backends.mariadb.options import Options
from aiorwlock_remote.backends.mariadb.schema import check
from aiorwlock_remote.backends.mariadb.statements import NO_ROW_LIMIT
from aiorwlock_remote.cas.driver.pool import not_connected
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.tables import read_server_time
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.ports import Clock

LEAST_SERVER = (10, 6)
LEAST_ROWS = 500
"""As many as one statement of ours tells, see ``scan``."""


async def opened(
    desk: MariadbExecutor,
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
        server = await desk.server()
        let_in()
        check_told(server, options.where)
        check_version(server["version"], options.where)
        check_session(server, options.where)
        owner = options.tables or options.database
        if not owner:
            ((owner,),) = await desk.rows("owner")
        if not owner:
            raise ConfigurationError(
                what=f"{options.where}: its connections are in no database",
                hint="MariadbBackend(pool, database=…)",
            )
        columns = await desk.rows("columns", owner=owner)
        check(columns, await desk.rows("keys", owner=owner), options.where)
        return await read_server_time(desk, clock)
    raise not_connected(options.where, options.connect_timeout)


def check_told(server: Mapping[str, str], where: str) -> None:
    """Whether all was told that was asked for, and will be.

    Raises:
        ConfigurationError: names the statement that sessions have to begin with.
    """
    if any("\0" in name for name in server):
        raise ConfigurationError(
            what=f"{where}: answers are in characters that the driver does not read",
            hint="SET NAMES utf8mb4",
        )
    needed = {"version", "sql_mode", "sql_select_limit"}
    if not needed <= {*server} or int(server["sql_select_limit"]) < LEAST_ROWS:
        raise ConfigurationError(
            what=f"{where}: sql_select_limit keeps rows back",
            hint=f"SET SESSION sql_select_limit = {NO_ROW_LIMIT}",
        )


def check_version(version: str, where: str) -> None:
    """Whether the server is one we know how to ask.

    Raises:
        Unsupported: it is too old, or no MariaDB.
    """
    numbers = re.match(r"(\d+)\.(\d+)", version)
    new = numbers and tuple(map(int, numbers.groups())) >= LEAST_SERVER
    if new and "mariadb" in version.lower():
        return
    raise Unsupported(
        what=f"{where}: version {version}",
        hint="MariaDB 10.6 or later is needed; MySQL has never been tried",
    )


def check_session(server: Mapping[str, str], where: str) -> None:
    """Whether a session is fit for locks. Our own are; a user's pool has its own ways.

    Raises:
        ConfigurationError: names the statement that its sessions have to begin with.
    """
    modes = server["sql_mode"].split(",")
    if not {"STRICT_ALL_TABLES", "STRICT_TRANS_TABLES"} & {*modes}:
        raise ConfigurationError(
            what=f"{where}: sql_mode is not strict, names could be cut",
            hint="SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
        )
    level = server.get("tx_isolation") or server.get("transaction_isolation")
    if level == "READ-UNCOMMITTED":
        raise ConfigurationError(
            what=f"{where}: sessions read what is not committed",
            hint="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )
