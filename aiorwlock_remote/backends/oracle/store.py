"""``oracle://`` — locks in two tables of an Oracle database."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from aiorwlock_remote._util.purge import FIRST_KEY, ROWS_PER_REQUEST, Key
from aiorwlock_remote.backends.oracle.driver import OracleDriver, OracleExecutor
from aiorwlock_remote.backends.oracle.options import options_of
from aiorwlock_remote.cas.driver.executor import DriverExecutor
from aiorwlock_remote.cas.driver.options import ConnectionOptions
from aiorwlock_remote.cas.driver.pool import Driver
from aiorwlock_remote.cas.driver.store import TableStore
from aiorwlock_remote.cas.port import StoredStates
from aiorwlock_remote.cas.table_cas import clock_finding, state_of
from aiorwlock_remote.core.row_dialects import ORACLE, Dialect
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.ports import Finding, Opener, resource_from_row

MAX_LOOKS_PER_REQUEST = 200


class OracleStore(TableStore):
    """Locks in Oracle tables: each step is one PL/SQL block, waiting tasks poll."""

    scheme = "oracle"
    driver_type: ClassVar[type[Driver[Any]]] = OracleDriver
    executor_type: ClassVar[type[DriverExecutor]] = OracleExecutor
    options_of: ClassVar[staticmethod[[Address, float], ConnectionOptions]] = (
        staticmethod(options_of)
    )
    # To claim a grant takes a read and a block, each of them a round trip.
    poll_policy: PollPolicy = replace(TableStore.poll_policy, claim_window=1.0)
    _driver: OracleDriver
    _executor: OracleExecutor

    async def stored(self, resource_type: str | None) -> StoredStates:
        # All keys at once, then some resources at a time.
        keys = [
            (kind, int(number))
            for kind, number in await self._executor.rows("scan", {})
        ]
        found = [(key, resource_from_row(*key)) for key in keys]
        wanted = [one for one in found if resource_type in (None, one[1].type)]
        for first in range(0, len(wanted), MAX_LOOKS_PER_REQUEST):
            some = wanted[first : first + MAX_LOOKS_PER_REQUEST]
            binds = [{"i_kind": key[0], "i_number": key[1]} for key, _ in some]
            asked = self._executor.ask_all("look", binds)
            for (_, resource), answer in zip(some, asked, strict=True):
                yield resource, partial(state_of, await answer)

    @property
    def dialect(self) -> Dialect:
        return ORACLE

    async def examine(self) -> AsyncGenerator[Finding, None]:
        options, version = self._driver.options, await self._executor.version()
        yield Finding("server", f"Oracle Database {version}", options.where)
        owner = options.schema or "the user itself"
        meaning = "both are there, and their columns fit"
        yield Finding("tables", f"of {owner}", meaning)
        yield await clock_finding(self._executor, self.event_loop.clock)

    async def forget(self, seconds: float, after: Key = FIRST_KEY) -> Key | None:
        # Wherever the rows are: the statement does not go in the order of the keys.
        binds = {"i_seconds": seconds, "i_most": ROWS_PER_REQUEST}
        ((deleted,),) = await self._executor.rows("forget", binds)
        return after if deleted == ROWS_PER_REQUEST else None


open_store: Opener = OracleStore.open_url
