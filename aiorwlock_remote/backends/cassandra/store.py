"""``cassandra://`` — locks in a table of Cassandra."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from functools import partial

import anyio

from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.cas import CassandraCas, later_state
from aiorwlock_remote.backends.cassandra.options import options_of
from aiorwlock_remote.backends.cassandra.row_time import VersionClock
from aiorwlock_remote.backends.cassandra.stepper import CassandraStepper, LocalGrants
from aiorwlock_remote.backends.cassandra.table import Table, examine
from aiorwlock_remote.cas import StoredState
from aiorwlock_remote.cas.poller import StatePoller
from aiorwlock_remote.cas.renewer import CallbackThread, CasRenewer, wake_no_client
from aiorwlock_remote.cas.store import CasLockStore
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN
from aiorwlock_remote.core.names import Resource, resource_from_row
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    EventLoop,
    Finding,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

LARGE_SCAN_ROWS = 100_000
"""Rows from which on a scan is said to be large."""


class CassandraStore(CasLockStore):
    """Steps are transactions of a session; waiters poll by plain reads."""

    def __init__(
        self, table: Table, host: EventLoop, bell: WakeCallback, settings: StoreSettings
    ) -> None:
        """Over an open table, which is closed with the store."""
        super().__init__(host, bell, settings)
        self._table = table
        self._memory = VersionClock()
        self._holders = LocalGrants()
        self._cas = self._new_cas(host)
        self._steps = CassandraStepper(
            self._cas, self._holders, self._wake_clients, self._call_later
        )
        self._watcher = StatePoller(
            self._cas.peek,
            lambda state: self._cas.times(state).now,
            self._steps.saw,
            settings.client_id,
            host,
            bell,
            self.looks,
        )

    async def look(self, resource: Resource) -> Snapshot:
        """The resource as it stands, after all that was asked for here before.

        A free one has no row, and no last fence.
        """
        await self._steps.answered(resource)
        return self._snapshot(resource, await self._cas.peek(resource))

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All that is there, a page at a time: it reads the whole table."""
        seen = 0
        async for rows in self._table.pages(
            self._event_loop, self._table.request("scan")
        ):
            seen += len(rows)
            if seen >= LARGE_SCAN_ROWS > seen - len(rows):
                log_event(log, "large_scan", rows=seen)
            for row in rows:
                resource = resource_from_row(row["resource_type"], row["resource_id"])
                if resource_type not in (None, resource.type):
                    continue
                try:
                    state = self._cas.read(row)
                except BadRecord as exc:  # the others are to be seen all the same
                    log_event(
                        log, "bad_record", resource=resource.label, error=str(exc)
                    )
                    continue
                if state.record is not None or state.seat is not None:
                    yield self._snapshot(resource, state)

    def examine(self) -> AsyncIterator[Finding]:
        """The servers' version and settings, and the table's."""
        return examine(self._table, self._event_loop)

    def renewer(self) -> CasRenewer:
        """Renews over the same session, whose driver has a thread of its own."""
        host = CallbackThread(self._event_loop.clock)
        cas = self._new_cas(host)
        steps = CassandraStepper(cas, self._holders, wake_no_client, host.later)
        tell = partial(self._event_loop.call_soon, self._tell)
        return CasRenewer(host, steps, self._steps.known, tell, later_state)

    async def aclose(self) -> None:
        """Wait for what is under way; end the session if it is ours."""
        self._watcher.close()
        await self._wait_idle()
        await anyio.to_thread.run_sync(self._table.close)

    def _new_cas(self, host: EventLoop) -> CassandraCas:
        return CassandraCas(self._table, host, self._memory)

    def _snapshot(self, resource: Resource, state: StoredState) -> Snapshot:
        at = self._cas.times(state)
        record = state.record or UNUSED_DOORMAN
        return Snapshot(resource, record, state.seat, at.now, at.wall)

    def _tell(self, resource: Resource, state: StoredState) -> None:
        latest = later_state(state, self._steps.known(resource))
        assert latest is not None
        self._steps.saw(resource, latest)


async def open_store(
    address: Address, host: EventLoop, bell: WakeCallback, settings: StoreSettings
) -> CassandraStore:
    """Open ``cassandra://host1,host2:9042/keyspace``.

    Raises:
        ConfigurationError: a part or an option of the URL cannot be used.
        BackendError: nobody answers, or the table is not there or not fit.
    """
    options = options_of(address, connect_timeout=settings.connect_timeout)
    table = await opening.connect(options, host)
    return CassandraStore(table, host, bell, settings)
