"""``postgresql://`` — locks in two tables of a PostgreSQL database."""

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
from aiorwlock_remote.backends.postgresql import row_plans, startup
from aiorwlock_remote.backends.postgresql.arrival_reader import ArrivalReader
from aiorwlock_remote.backends.postgresql.connector import own_lines
from aiorwlock_remote.backends.postgresql.driver import Connection
from aiorwlock_remote.backends.postgresql.examine import examine
from aiorwlock_remote.backends.postgresql.executor import PostgresqlExecutor
from aiorwlock_remote.backends.postgresql.listener import Listener
from aiorwlock_remote.backends.postgresql.options import Options, options_of
from aiorwlock_remote.backends.postgresql.row_waiters import RowWaiterPresence
from aiorwlock_remote.backends.postgresql.statements import statement
from aiorwlock_remote.backends.postgresql.transactions import ASYNCPG
from aiorwlock_remote.cas.arrivals import ArrivalNotices
from aiorwlock_remote.cas.driver.executor import Send
from aiorwlock_remote.cas.driver.external_pool import ExternalPool
from aiorwlock_remote.cas.driver.pool import ConnectionSource
from aiorwlock_remote.cas.driver.renewal_loop import (
    Renewals,
    closing_on_failure,
    make_connections,
)
from aiorwlock_remote.cas.driver.store import DriverTableStore
from aiorwlock_remote.cas.driver.transactions import lock_row
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.table_rows import StoredRow, state_of
from aiorwlock_remote.core.names import Resource, from_row
from aiorwlock_remote.core.polling import PollPolicy
from aiorwlock_remote.core.row_dialects import POSTGRESQL, Dialect
from aiorwlock_remote.core.row_plans import Plan, Statement
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    Finding,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

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
            partial(row_plans.run_row_plan, plan, self._desk.notices)
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
        resource = from_row(kind, number)
        if resource in self._waited:
            if found is not None:
                with suppress(BadRecord):
                    self._tell(resource, state_of(found))
            self._bell(resource, 0.0)

    def _came(self, kind: str, number: int, version: str) -> None:
        self._newcomers.came(from_row(kind, number), version)

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
        "postgresql", lender, own_lines, options, host.clock
    )
    side = driver_loop_for(host, "postgresql")
    desk = PostgresqlExecutor(side, lines, options)
    async with closing_on_failure(desk.close, renewals) as let_in:
        time = await startup.check_server(desk, options, host.clock, let_in)
    return PostgresqlStore(side, desk, options, time, host, bell, settings, renewals)
