"""Opening: one connection, the server's version, the tables, the time."""

from __future__ import annotations

from collections.abc import Callable, Collection

import anyio

from aiorwlock_remote.backends.oracle import errors
from aiorwlock_remote.backends.oracle.driver import DRIVER
from aiorwlock_remote.backends.oracle.executor import OracleExecutor
from aiorwlock_remote.backends.oracle.options import Options
from aiorwlock_remote.backends.oracle.schema import check
from aiorwlock_remote.cas.driver.pool import not_connected
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.tables import read_server_time
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.ports import Clock

LEAST_DRIVER = 26
LEAST_SERVER = (12, 2)


async def opened(
    desk: OracleExecutor, options: Options, clock: Clock, let_in: Callable[[], object]
) -> ServerTime:
    """Look at the server and the tables; what time it is there.

    ``let_in``: called once the login was good. (Two that were not may lock an account.)

    Raises:
        ConfigurationError, BackendError: see ``errors`` and ``schema``.
    """
    check_driver()
    with anyio.move_on_after(options.connect_timeout):
        columns = await desk.rows("columns", {"i_owner": options.schema or None})
        let_in()
        check_session({row[4] for row in columns}, options)
        check(
            [(t, c, k, n) for t, c, k, n, _ in columns], options.schema, options.where
        )
        check_version(await desk.version(), options)
        return await read_server_time(desk, clock)
    raise not_connected(options.where, options.connect_timeout)


def check_driver() -> None:
    """Whether the driver is one we know.

    Raises:
        Unsupported: too old, or in thick mode.
    """
    if int(DRIVER.__version__.partition(".")[0]) < LEAST_DRIVER:
        raise Unsupported(
            what=f"python-oracledb {DRIVER.__version__}",
            hint=f"pip install 'oracledb>={LEAST_DRIVER}'",
        )
    if not DRIVER.is_thin_mode():
        raise errors.thick("oracledb")


def check_session(compares: Collection[str], options: Options) -> None:
    """Whether names are equal only if they are the same. ``compares``: NLS_COMP.

    Raises:
        ConfigurationError: texts are compared by a language.
    """
    for other in {*compares} - {"BINARY"}:
        raise ConfigurationError(
            what=f"{options.where}: NLS_COMP is {other}, by which different names may "
            "be equal",
            hint="ALTER SESSION SET NLS_COMP = BINARY, in a trigger when it logs on or "
            "the session_callback of a pool",
        )


def check_version(version: str, options: Options) -> None:
    """Whether the server is one we know how to ask.

    Raises:
        Unsupported: it is too old.
    """
    parts = version.split(".")
    if tuple(int(part) for part in parts[:2]) < LEAST_SERVER:
        raise errors.too_old(options.where, version)
