"""``mariadb://``, ``mysql://`` — locks in two tables of a MariaDB or MySQL database."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, ClassVar

import anyio

from aiorwlock_remote._util.purge import FIRST_KEY, ROWS_PER_REQUEST, Key
from aiorwlock_remote.backends.mariadb.driver import (
    MariadbDriver,
    MysqlDriver,
    transactions_of,
)
from aiorwlock_remote.backends.mariadb.executor import MariadbExecutor
from aiorwlock_remote.backends.mariadb.options import options_of
from aiorwlock_remote.backends.mariadb.statements import statement
from aiorwlock_remote.cas.driver.executor import DriverExecutor
from aiorwlock_remote.cas.driver.external_pool import lock_row
from aiorwlock_remote.cas.driver.options import ConnectionOptions
from aiorwlock_remote.cas.driver.pool import Driver
from aiorwlock_remote.cas.driver.store import TableStore
from aiorwlock_remote.cas.poller import PollIntervals
from aiorwlock_remote.cas.table_cas import clock_finding
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.row_dialects import Dialect
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.ports import Capability, Finding, Opener

JOINED_LOOK_PAUSES = tuple(0.001 * 2**look for look in range(9))
"""Seconds after each read that found the row locked; half a second in all."""
_FLUSH = "innodb_flush_log_at_trx_commit"


class MariadbStore(TableStore):
    """Locks in MariaDB tables: each step is one request, waiting tasks poll."""

    scheme = "mariadb"
    driver_type: ClassVar[type[Driver[Any]]] = MariadbDriver
    executor_type: ClassVar[type[DriverExecutor]] = MariadbExecutor
    options_of: ClassVar[staticmethod[[Address, float], ConnectionOptions]] = (
        staticmethod(options_of)
    )
    # A process whose tasks all wait sends five reads a second at most.
    poll_intervals: PollIntervals = PollIntervals(near=0.3, far=0.3, hinted=0.3)
    poll_policy: PollPolicy = replace(TableStore.poll_policy, claim_window=0.8)
    pushes_by_hint: ClassVar[bool] = True
    capabilities: Capability = TableStore.capabilities | Capability.TRANSACTIONS
    _driver: MariadbDriver
    _executor: MariadbExecutor

    @property
    def dialect(self) -> Dialect:
        return self._driver.dialect.rows

    async def join(self, resource: Resource, ticket: str, transaction: object) -> None:
        # Always by name: the user's connection may be in another database.
        options = self._driver.options
        tables = options.tables or options.database
        values = self._mutex_row(resource, ticket)
        # ``seen`` does not lock: it shows whether the snapshot has our mutex row.
        texts = (statement(name, tables, **values) for name in ("seen", "join"))
        transactions = transactions_of(self._driver.dialect)
        await lock_row(transactions, transaction, *texts)

    async def joined(self, resource: Resource, ticket: str) -> bool:
        values = self._mutex_row(resource, ticket)
        for pause in JOINED_LOOK_PAUSES:
            found = await self._executor.rows("free_to_change", **values)
            if found:
                (free,) = found[0]
                if free:
                    return False
                return bool(await self._executor.rows("seen", **values))
            await anyio.sleep(pause)
        # No step of ours has the doormans row locked for so long: a transaction has.
        return True

    async def examine(self) -> AsyncGenerator[Finding, None]:
        server = await self._executor.server()
        yield Finding("server", server["version"], self._driver.options.where)
        if server["read_only"] != "OFF":
            meaning = "a replica, or set so: no lock can be had"
            yield Finding("role", "read-only", meaning, "bad")
        flush = server[_FLUSH]
        if flush in {"1", "3"}:
            yield Finding(_FLUSH, flush, "a grant that was told survives a crash")
        else:
            meaning = "after a crash the grants of the last second are forgotten"
            yield Finding(_FLUSH, flush, meaning, "note")
        ((autocommit,),) = await self._executor.rows("default_autocommit")
        if autocommit:
            yield Finding("autocommit", "on in new sessions", "each change is kept")
        else:
            meaning = "each step of a lock is committed; your programs must commit, too"
            yield Finding("autocommit", "off in new sessions", meaning, "note")
        if server.get("wsrep_on") == "ON":
            meaning = "let all programs lock at one node: nodes lag behind each other"
            yield Finding("cluster", "Galera", meaning, "note")
        if server.get("group_replication_group_name"):
            single = server["group_replication_single_primary_mode"] == "ON"
            meaning = "a failover loses no grant: a majority has it before its holder"
            if not single:
                meaning = "let all programs lock at one primary: others lag behind"
            mode = "single" if single else "multi"
            yield Finding("cluster", f"group, {mode}-primary", meaning, "note")
        yield await clock_finding(self._executor, self.event_loop.clock)

    async def forget(self, seconds: float, after: Key = FIRST_KEY) -> Key | None:
        begin = {"kind": after[0], "number": after[1]}
        found = await self._executor.rows("portion", **begin, most=ROWS_PER_REQUEST)
        if not found:
            return None
        kind, number = found[0][0].decode(), found[0][1]
        end = {"last_kind": kind, "last_number": number}
        await self._executor.rows("forget", **begin, **end, seconds=seconds)
        return kind, number

    def _mutex_row(self, resource: Resource, ticket: str) -> dict[str, object]:
        kind, number = resource.row
        return {"kind": kind, "number": number, "ticket": ticket}


class MysqlStore(MariadbStore):
    """The same tables and steps in a MySQL database."""

    scheme = "mysql"
    driver_type: ClassVar[type[Driver[Any]]] = MysqlDriver


STORES: dict[str, type[MariadbStore]] = {
    store.scheme: store for store in (MariadbStore, MysqlStore)
}
open_mariadb: Opener = MariadbStore.open_url
open_mysql: Opener = MysqlStore.open_url
