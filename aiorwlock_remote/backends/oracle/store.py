"""``oracle://`` — locks in two tables of an Oracle database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from aiorwlock_remote._util.driver_loop import DriverLoop, driver_loop_for
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.purge import FIRST_KEY, ROWS_PER_REQUEST, Key
from aiorwlock_remote.backends.oracle import opening, rows
from aiorwlock_remote.backends.oracle.connector import own_lines
from aiorwlock_remote.backends.oracle.driver import Connection
from aiorwlock_remote.backends.oracle.examine import examine
from aiorwlock_remote.backends.oracle.executor import OracleExecutor
from aiorwlock_remote.backends.oracle.options import Options, options_of
from aiorwlock_remote.cas.driver.executor import Send
from aiorwlock_remote.cas.driver.external_pool import ExternalPool
from aiorwlock_remote.cas.driver.pool import ConnectionSource
from aiorwlock_remote.cas.driver.renewal_loop import (
    Renewals,
    closing_on_failure,
    make_connections,
)
from aiorwlock_remote.cas.driver.store import DriverTableStore
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.core.polling import PollPolicy
from aiorwlock_remote.core.row_dialects import ORACLE, Dialect
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
        return self._desk.begin(partial(rows.carried, plan))

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
    opening.check_driver()
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
    lines, renewals = make_connections("oracle", lender, own_lines, options, host.clock)
    desk = OracleExecutor(driver_loop_for(host, "oracle"), lines, options)
    async with closing_on_failure(desk.close, renewals) as let_in:
        time = await opening.opened(desk, options, host.clock, let_in)
    return OracleStore(desk, options, time, host, bell, settings, renewals)
