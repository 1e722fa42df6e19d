"""``oracle://`` — locks in two tables of an Oracle database.

What ``rwlock doctor`` tells of an Oracle database.

Opening: one connection, the server's version, the tables, the time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio

from aiorwlock_remote._util.driver_loop import DriverLoop, driver_loop_for
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.purge import FIRST_KEY, ROWS_PER_REQUEST, Key
from aiorwlock_remote.backends.oracle import errors, executor
from aiorwlock_remote.backends.oracle.connector import own_pool
from aiorwlock_remote.backends.oracle.driver import DRIVER, Connection
from aiorwlock_remote.backends.oracle.executor import OracleExecutor
from aiorwlock_remote.backends.oracle.options import Options, options_of
from aiorwlock_remote.backends.oracle.schema import check
from aiorwlock_remote.cas.driver.executor import Send
from aiorwlock_remote.cas.driver.external_pool import ExternalPool
from aiorwlock_remote.cas.driver.pool import ConnectionSource, not_connected
from aiorwlock_remote.cas.driver.store import (
    DriverTableStore,
    Renewals,
    closing_on_failure,
    make_connections,
)
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.table_cas import clock_finding, read_server_time
from aiorwlock_remote.core.row import Plan, Statement
from aiorwlock_remote.core.row_dialects import ORACLE, Dialect
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError, Unsupported
from aiorwlock_remote.ports import (
    Clock,
    EventLoop,
    Finding,
    Snapshot,
    StoreSettings,
    WakeCallback,
)


async def examine(
    desk: OracleExecutor, options: Options, clock: Clock
) -> AsyncIterator[Finding]:
    """Look at its version and clock; changes nothing."""
    yield Finding("server", f"Oracle Database {await desk.version()}", options.where)
    owner = options.schema or "the user itself"
    yield Finding("tables", f"of {owner}", "both are there, and their columns fit")
    yield await clock_finding(desk, clock)


T = TypeVar("T")

MAX_LOOKS_PER_REQUEST = 200
"""Resources that are looked at by one request."""


class OracleStore(DriverTableStore):
    """Each step is one anonymous block; waiters poll by plain reads."""

    # Who is next needs a read and a block for it, each of them a round trip.
    pace: PollPolicy = replace(DriverTableStore.pace, claim_window=1.0)

    def __init__(
        self,
        desk: OracleExecutor,
        options: Options,
        time: ServerTime,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
        renewals: Renewals[Connection],
    ) -> None:
        """``desk``: of the loop of ``host``."""
        super().__init__(desk, time, host, bell, settings, renewals)
        self._desk = desk
        self._options = options

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All that is there: all keys at once, then some resources at a time."""
        keys = [
            (kind, int(number)) for kind, number in await self._desk.rows("scan", {})
        ]
        found = [(key, self._wanted(*key, resource_type)) for key in keys]
        wanted = [(key, resource) for key, resource in found if resource]
        for first in range(0, len(wanted), MAX_LOOKS_PER_REQUEST):
            some = wanted[first : first + MAX_LOOKS_PER_REQUEST]
            binds = [{"i_kind": key[0], "i_number": key[1]} for key, _ in some]
            asked = self._desk.ask_all("look", binds)
            for (_, resource), answer in zip(some, asked, strict=True):
                snapshot = self._shown(resource, await answer)
                if snapshot is not None:
                    yield snapshot

    @property
    def dialect(self) -> Dialect:
        """Of statements on the user's tables."""
        return ORACLE

    def examine(self) -> AsyncIterator[Finding]:
        """The server's version and clock, and where the tables are."""
        return examine(self._desk, self._options, self._host.clock)

    async def forget(self, seconds: float, after: Key = FIRST_KEY) -> Key | None:
        """As ``TableStore.forget``; wherever they are: keys are in no order here."""
        binds = {"i_seconds": seconds, "i_most": ROWS_PER_REQUEST}
        ((gone,),) = await self._desk.rows("forget", binds)
        return after if gone == ROWS_PER_REQUEST else None

    def _carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        return self._desk.begin(partial(executor.run_row_plan, plan))

    def _sending(self, side: DriverLoop, lines: ConnectionSource[Connection]) -> Send:
        return OracleExecutor(side, lines, self._options).ask_all


async def open_store(
    address: Address, host: EventLoop, bell: WakeCallback, settings: StoreSettings
) -> OracleStore:
    """Open ``oracle://user:password@host:1521/service``.

    Raises:
        ConfigurationError: a part or an option of the URL cannot be used, or the tables
            are published ones with padded columns.
        BackendError: nobody answers, the user may not, or the tables are not fit.
    """
    options = options_of(address, connect_timeout=settings.connect_timeout)
    check_driver()
    return await open_over(None, options, host, bell, settings)


async def open_over(
    lender: ExternalPool[Connection] | None,
    options: Options,
    host: EventLoop,
    bell: WakeCallback,
    settings: StoreSettings,
) -> OracleStore:
    """Over a user's connections, of the running asyncio loop; None: our own.

    Raises:
        ConfigurationError, BackendError: as ``open_store``.
    """
    lines, renewals = make_connections("oracle", lender, own_pool, options, host.clock)
    desk = OracleExecutor(driver_loop_for(host, "oracle"), lines, options)
    async with closing_on_failure(desk.close, renewals) as let_in:
        time = await check_server(desk, options, host.clock, let_in)
    return OracleStore(desk, options, time, host, bell, settings, renewals)


LEAST_DRIVER = 26
LEAST_SERVER = (12, 2)


async def check_server(
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
