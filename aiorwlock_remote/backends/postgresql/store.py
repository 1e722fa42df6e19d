"""``postgresql://`` — locks in two tables of a PostgreSQL database.

What ``rwlock doctor`` tells of a PostgreSQL server.

Opening: one connection, the server's version, the tables, the time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import anyio

from aiorwlock_remote._util.driver_loop import (
    DriverLoop,
    driver_loop_for,
    submit_and_wait,
)
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.purge import FIRST_KEY, ROWS_PER_REQUEST, Key
from aiorwlock_remote.backends.postgresql import executor
from aiorwlock_remote.backends.postgresql.connector import ASYNCPG, own_pool
from aiorwlock_remote.backends.postgresql.driver import Connection
from aiorwlock_remote.backends.postgresql.executor import PostgresqlExecutor
from aiorwlock_remote.backends.postgresql.listener import (
    ArrivalReader,
    Listener,
    RowWaiterPresence,
)
from aiorwlock_remote.backends.postgresql.options import Options, options_of
from aiorwlock_remote.backends.postgresql.schema import check
from aiorwlock_remote.backends.postgresql.statements import statement
from aiorwlock_remote.cas.driver.executor import Send
from aiorwlock_remote.cas.driver.external_pool import ExternalPool, lock_row
from aiorwlock_remote.cas.driver.pool import ConnectionSource, not_connected
from aiorwlock_remote.cas.driver.store import (
    DriverTableStore,
    Renewals,
    closing_on_failure,
    make_connections,
)
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.table_cas import (
    ArrivalNotices,
    clock_finding,
    read_server_time,
)
from aiorwlock_remote.cas.table_rows import StoredRow, state_of
from aiorwlock_remote.core.names import Resource, resource_from_row
from aiorwlock_remote.core.row import Plan, Statement
from aiorwlock_remote.core.row_dialects import POSTGRESQL, Dialect
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import BadRecord, Unsupported
from aiorwlock_remote.ports import (
    Capability,
    Clock,
    EventLoop,
    Finding,
    Snapshot,
    StoreSettings,
    WakeCallback,
)


async def examine(
    desk: PostgresqlExecutor, options: Options, clock: Clock
) -> AsyncIterator[Finding]:
    """Look at its settings; changes nothing."""
    (server,) = await desk.rows("server")
    yield Finding("server", f"PostgreSQL {server['version']}", options.where)
    if server["standby"]:
        yield Finding("role", "standby", "cannot be written: no lock can be had", "bad")
    elif server["read_only"] == "on":
        meaning = "transactions are read-only: no lock can be had"
        yield Finding("role", "read-only", meaning, "bad")
    for name in ("fsync", "synchronous_commit"):
        value = server[name]
        if value == "off":
            meaning = "after a crash of the server the last grants are forgotten"
            yield Finding(name, value, meaning, "bad" if name == "fsync" else "note")
        else:
            yield Finding(name, value, "a grant that was told survives a crash")
    if server["isolation"] != "read committed":
        meaning = "statements that meet are refused and tried again; all stays right"
        yield Finding("isolation", server["isolation"], meaning, "note")
    if not options.listen:
        yield Finding("waiting", "listen=no", "waiters poll", "note")
    yield await clock_finding(desk, clock)


T = TypeVar("T")


class PostgresqlStore(DriverTableStore):
    """Each step is one statement; who is next is told by ``NOTIFY``."""

    capabilities: Capability = DriverTableStore.capabilities | Capability.NOTIFIES
    pace: PollPolicy = PollPolicy(
        poll_min=1.5, poll_max=2.0, entry_ttl=6.0, claim_window=0.3
    )

    def __init__(
        self,
        side: DriverLoop,
        desk: PostgresqlExecutor,
        options: Options,
        time: ServerTime,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
        renewals: Renewals[Connection],
    ) -> None:
        """``desk``: of the loop of ``host``."""
        self._hearing = ArrivalNotices(settings.client_id)
        super().__init__(desk, time, host, bell, settings, renewals, self._hearing)
        self._side = side
        self._desk = desk
        self._options = options
        self._waited: set[Resource] = set()
        self._listening = False
        self._attendance = RowWaiterPresence(side)
        self._listener: Listener | None = None
        self._newcomers = ArrivalReader(self._cas.load, self._steps.known, self._tell)

    def watch(self, resource: Resource) -> None:
        """Ring when we are told that it is our turn; poll while nobody can tell us."""
        self._waited.add(resource)
        if self._listening:
            return
        super().watch(resource)
        self._listen()

    def unwatch(self, resource: Resource) -> None:
        """Not any more."""
        self._waited.discard(resource)
        super().unwatch(resource)

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All that is there, a page at a time."""
        async for snapshot in self._paged(self._desk.page, resource_type):
            yield snapshot

    @property
    def dialect(self) -> Dialect:
        """Of statements on the user's tables."""
        half = max(1, round(self._options.call_timeout * 500))
        return POSTGRESQL.patient(half)

    def watch_row(
        self, table: str, key: str, ring: Callable[[], object]
    ) -> Callable[[], object]:
        """As ``NotifiesRowReleases``; never rings if nobody is to listen."""
        row = table, key
        self._attendance.come(row, ring)
        self._listen()
        return partial(self._attendance.go, row)

    async def join(self, resource: Resource, ticket: str, transaction: object) -> None:
        """As ``SupportsTransactions``: a connection of asyncpg's, or SQLAlchemy's."""
        text = statement("join", self._options.schema)
        values = *resource.row, ticket
        await lock_row(ASYNCPG, transaction, text, values=values)

    async def joined(self, resource: Resource, ticket: str) -> bool:
        """As ``SupportsTransactions``."""
        (row,) = await self._desk.rows("joined", *resource.row, ticket)
        return bool(row["joined"])

    def examine(self) -> AsyncIterator[Finding]:
        """The server's version, settings and clock."""
        return examine(self._desk, self._options, self._host.clock)

    async def forget(self, seconds: float, after: Key = FIRST_KEY) -> Key | None:
        """As ``TableStore.forget``; behind ``after``, in the order of the keys."""
        found = await self._desk.rows("forget", seconds, *after, ROWS_PER_REQUEST)
        return (found[0]["resource_type"], found[0]["resource_id"]) if found else None

    async def aclose(self) -> None:
        """Wait for what is under way; close the connections that are ours."""
        with anyio.CancelScope(shield=True):
            if self._listener is not None:
                await submit_and_wait(self._side, self._listener.close)
        await super().aclose()

    def _carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        return self._desk.begin(
            partial(executor.run_row_plan, plan, self._desk.notices)
        )

    def _listen(self) -> None:
        if self._listener is None and self._options.listen:
            self._listener = Listener(
                *(self._side, self._options, self._settings.client_id),
                self._attendance,
                *(self._heard, self._came, self._listens),
            )
            self._listener.start()

    def _sending(self, side: DriverLoop, lines: ConnectionSource[Connection]) -> Send:
        return PostgresqlExecutor(side, lines, self._options).ask_all

    def _heard(self, kind: str, number: int, found: StoredRow | None) -> None:
        resource = resource_from_row(kind, number)
        if resource in self._waited:
            if found is not None:
                with suppress(BadRecord):
                    self._tell(resource, state_of(found))
            self._bell(resource, 0.0)

    def _came(self, kind: str, number: int, version: str) -> None:
        self._newcomers.came(resource_from_row(kind, number), version)

    def _listens(self, now: bool) -> None:  # noqa: FBT001
        self._listening = self._hearing.hears = now
        for resource in self._waited:
            if now:  # what was told meanwhile was told to nobody
                super().unwatch(resource)
                self._bell(resource, 0.0)
            else:
                super().watch(resource)


async def open_store(
    address: Address, host: EventLoop, bell: WakeCallback, settings: StoreSettings
) -> PostgresqlStore:
    """Open ``postgresql://user:password@host:5432/database``.

    Raises:
        ConfigurationError: a part or an option of the URL cannot be used.
        BackendError: nobody answers, the user may not, or the tables are not fit.
    """
    options = options_of(address, connect_timeout=settings.connect_timeout)
    return await open_over(None, options, host, bell, settings)


async def open_over(
    lender: ExternalPool[Connection] | None,
    options: Options,
    host: EventLoop,
    bell: WakeCallback,
    settings: StoreSettings,
) -> PostgresqlStore:
    """Over a user's connections, of the running asyncio loop; None: our own.

    Raises:
        ConfigurationError, BackendError: as ``open_store``.
    """
    lines, renewals = make_connections(
        "postgresql", lender, own_pool, options, host.clock
    )
    side = driver_loop_for(host, "postgresql")
    desk = PostgresqlExecutor(side, lines, options)
    async with closing_on_failure(desk.close, renewals) as let_in:
        time = await check_server(desk, options, host.clock, let_in)
    return PostgresqlStore(side, desk, options, time, host, bell, settings, renewals)


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
