"""``mariadb://`` — locks in two tables of a MariaDB database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio

from aiorwlock_remote._util.driver_loop import DriverLoop, driver_loop_for
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.purge import FIRST_KEY, ROWS_PER_REQUEST, Key
from aiorwlock_remote.backends.mariadb import opening, rows
from aiorwlock_remote.backends.mariadb.connector import own_lines
from aiorwlock_remote.backends.mariadb.driver import Connection
from aiorwlock_remote.backends.mariadb.examine import examine
from aiorwlock_remote.backends.mariadb.executor import MariadbExecutor
from aiorwlock_remote.backends.mariadb.joining import ASYNCMY
from aiorwlock_remote.backends.mariadb.options import Options, options_of
from aiorwlock_remote.backends.mariadb.statements import statement
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
from aiorwlock_remote.cas.poller import PollIntervals
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.polling import PollPolicy
from aiorwlock_remote.core.row_dialects import MARIADB, Dialect
from aiorwlock_remote.core.row_plans import Plan, Statement
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.ports import (
    EventLoop,
    Finding,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

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
        return self._desk.begin(partial(rows.carried, plan, seconds=seconds))

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
    lines, renewals = make_connections(
        "mariadb", lender, own_lines, options, host.clock
    )
    desk = MariadbExecutor(driver_loop_for(host, "mariadb"), lines, options)
    async with closing_on_failure(desk.close, renewals) as let_in:
        time = await opening.opened(desk, options, host.clock, let_in)
    return MariadbStore(desk, options, time, host, bell, settings, renewals)
