"""``mariadb://`` — locks in two tables of a MariaDB database.

What ``rwlock doctor`` tells of a MariaDB server.

Opening: one connection, the server's version and modes, the tables, the time.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio

from aiorwlock_remote._util.driver_loop import DriverLoop, driver_loop_for
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.purge import FIRST_KEY, ROWS_PER_REQUEST, Key
from aiorwlock_remote.backends.mariadb import executor
from aiorwlock_remote.backends.mariadb.connector import ASYNCMY, own_pool
from aiorwlock_remote.backends.mariadb.driver import Connection
from aiorwlock_remote.backends.mariadb.executor import MariadbExecutor
from aiorwlock_remote.backends.mariadb.options import Options, options_of
from aiorwlock_remote.backends.mariadb.schema import check
from aiorwlock_remote.backends.mariadb.statements import NO_ROW_LIMIT, statement
from aiorwlock_remote.cas.driver.executor import Send
from aiorwlock_remote.cas.driver.external_pool import ExternalPool, lock_row
from aiorwlock_remote.cas.driver.pool import ConnectionSource, not_connected
from aiorwlock_remote.cas.driver.store import (
    DriverTableStore,
    Renewals,
    closing_on_failure,
    make_connections,
)
from aiorwlock_remote.cas.poller import PollIntervals
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.table_cas import clock_finding, read_server_time
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.row import Plan, Statement
from aiorwlock_remote.core.row_dialects import MARIADB, Dialect
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

FLUSH = "innodb_flush_log_at_trx_commit"


async def examine(
    desk: MariadbExecutor, options: Options, clock: Clock
) -> AsyncIterator[Finding]:
    """Look at its settings; changes nothing."""
    server = await desk.server()
    yield Finding("server", server["version"], options.where)
    if server["read_only"] != "OFF":
        meaning = "a replica, or set so: no lock can be had"
        yield Finding("role", "read-only", meaning, "bad")
    flush = server[FLUSH]
    if flush in {"1", "3"}:
        yield Finding(FLUSH, flush, "a grant that was told survives a crash")
    else:
        meaning = "after a crash the grants of the last second are forgotten"
        yield Finding(FLUSH, flush, meaning, "note")
    if server.get("wsrep_on") == "ON":
        meaning = "let all programs lock at one node: nodes lag behind each other"
        yield Finding("cluster", "Galera", meaning, "note")
    yield await clock_finding(desk, clock)


T = TypeVar("T")

LOOK_INTERVALS = tuple(0.001 * 2**look for look in range(9))
"""Seconds after a look that has told nothing; half a second in all."""


class MariadbStore(DriverTableStore):
    """Each step is one request; waiters poll by plain reads."""

    # So that a process whose tasks all wait asks five times a second at most.
    looks: PollIntervals = PollIntervals(near=0.3, far=0.3)
    pace: PollPolicy = replace(DriverTableStore.pace, claim_window=0.8)

    def __init__(
        self,
        desk: MariadbExecutor,
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
        """All that is there, a page at a time."""
        async for snapshot in self._paged(self._desk.page, resource_type):
            yield snapshot

    @property
    def dialect(self) -> Dialect:
        """Of statements on the user's tables."""
        return MARIADB

    async def join(self, resource: Resource, ticket: str, transaction: object) -> None:
        """As ``SupportsTransactions``: a connection of asyncmy's, or SQLAlchemy's."""
        tables = self._options.tables or self._options.database
        values = self._sitting(resource, ticket)
        texts = (statement(name, tables, **values) for name in ("seen", "join"))
        await lock_row(ASYNCMY, transaction, *texts)

    async def joined(self, resource: Resource, ticket: str) -> bool:
        """As ``SupportsTransactions``; whoever has the doorman for long waits for
        one.
        """
        values = self._sitting(resource, ticket)
        for pause in LOOK_INTERVALS:
            told = await self._desk.rows("free_to_change", **values)
            if told:
                (free,) = told[0]
                return not free and bool(await self._desk.rows("seen", **values))
            await anyio.sleep(pause)
        return True

    def examine(self) -> AsyncIterator[Finding]:
        """The server's version, settings and clock."""
        return examine(self._desk, self._options, self._host.clock)

    async def forget(self, seconds: float, after: Key = FIRST_KEY) -> Key | None:
        """As ``TableStore.forget``; behind ``after``, in the order of the keys."""
        begin = {"kind": after[0], "number": after[1]}
        found = await self._desk.rows("portion", **begin, most=ROWS_PER_REQUEST)
        if not found:
            return None
        kind, number = found[0][0].decode(), found[0][1]
        end = {"last_kind": kind, "last_number": number}
        await self._desk.rows("forget", **begin, **end, seconds=seconds)
        return kind, number

    def _carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        seconds = self._options.call_timeout / 2
        return self._desk.begin(partial(executor.run_row_plan, plan, seconds=seconds))

    def _sitting(self, resource: Resource, ticket: str) -> dict[str, object]:
        kind, number = resource.row
        return {"kind": kind, "number": number, "ticket": ticket}

    def _sending(self, side: DriverLoop, lines: ConnectionSource[Connection]) -> Send:
        return MariadbExecutor(side, lines, self._options).ask_all


async def open_store(
    address: Address, host: EventLoop, bell: WakeCallback, settings: StoreSettings
) -> MariadbStore:
    """Open ``mariadb://user:password@host:3306/database``.

    Raises:
        ConfigurationError: a part or an option of the URL cannot be used.
        BackendError: nobody answers, the user may not, or the tables are not fit.
    """
    options = options_of(address, connect_timeout=settings.connect_timeout)
    options.tls_context()  # files that cannot be used are told of at once
    return await open_over(None, options, host, bell, settings)


async def open_over(
    lender: ExternalPool[Connection] | None,
    options: Options,
    host: EventLoop,
    bell: WakeCallback,
    settings: StoreSettings,
) -> MariadbStore:
    """Over a user's connections, of the running asyncio loop; None: our own.

    Raises:
        ConfigurationError, BackendError: as ``open_store``.
    """
    lines, renewals = make_connections("mariadb", lender, own_pool, options, host.clock)
    desk = MariadbExecutor(driver_loop_for(host, "mariadb"), lines, options)
    async with closing_on_failure(desk.close, renewals) as let_in:
        time = await check_server(desk, options, host.clock, let_in)
    return MariadbStore(desk, options, time, host, bell, settings, renewals)


LEAST_SERVER = (10, 6)
LEAST_ROWS = 500
"""As many as one statement of ours tells, see ``scan``."""


async def check_server(
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
