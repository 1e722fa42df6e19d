"""``cassandra://``: locks in a table of Cassandra."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from functools import partial

from aiorwlock_remote._util.threads import run_blocking
from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.cas import CassandraCas
from aiorwlock_remote.backends.cassandra.options import options_of
from aiorwlock_remote.backends.cassandra.row_time import VersionClock
from aiorwlock_remote.backends.cassandra.stepper import CassandraStepper, LocalGrants
from aiorwlock_remote.backends.cassandra.table import Table, examine
from aiorwlock_remote.cas import StoredState
from aiorwlock_remote.cas.renewer import CallbackThread, CasRenewer, wake_no_client
from aiorwlock_remote.cas.store import CasLockStore
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    EventLoop,
    Finding,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

# A scan of that many rows is logged: it delays other requests of the cluster.
LARGE_SCAN_ROWS = 100_000


class CassandraStore(CasLockStore):
    """Store whose steps are lightweight transactions; waiting clients poll."""

    _log = log

    def __init__(
        self, table: Table, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> None:
        super().__init__(loop, wake, settings)
        self._table = table
        self._memory = VersionClock()
        self._local_grants = LocalGrants()
        self._cas = CassandraCas(table, loop, self._memory)
        self._steps = CassandraStepper(
            self._cas, self._local_grants, self.wake_clients, self._call_later
        )
        self._watcher = self._poller(self._cas, self._cas.peek)

    async def look(self, resource: Resource) -> Snapshot:
        """Return the state of a resource; if it is free, without the last fence."""
        await self._steps.answered(resource)
        return self._snapshot(resource, await self._cas.peek(resource))

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        seen = 0
        request = self._table.request("scan")
        async for rows in self._table.client.pages(self._event_loop, request):
            seen += len(rows)
            # Once for each scan, with the page that passes the limit.
            if seen >= LARGE_SCAN_ROWS > seen - len(rows):
                log_event(log, "large_scan", rows=seen)
            for row in rows:
                key = row["resource_type"], row["resource_id"]
                resource = self._wanted(*key, resource_type)
                if resource is None:
                    continue
                snapshot = self._shown(resource, partial(self._cas.read, row))
                if snapshot is not None:
                    yield snapshot

    def examine(self) -> AsyncIterator[Finding]:
        return examine(self._table, self._event_loop)

    def renewer(self) -> CasRenewer:
        # Leases must be renewed although the caller's loop may be blocked.
        thread = CallbackThread(self._event_loop.clock)
        cas = CassandraCas(self._table, thread, self._memory)
        steps = CassandraStepper(cas, self._local_grants, wake_no_client, thread.later)
        saw = partial(self._event_loop.call_soon, self._saw)
        return CasRenewer(thread, steps, self._steps.known, saw)

    async def aclose(self) -> None:
        self._watcher.close()
        await self._wait_idle()
        await run_blocking(self._table.close)

    def _snapshot(self, resource: Resource, state: StoredState) -> Snapshot:
        at = self._cas.times(state)
        record = state.record or UNUSED_DOORMAN
        return Snapshot(resource, record, state.seat, at.now, at.wall)


async def open_store(
    address: Address, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
) -> CassandraStore:
    """Open ``cassandra://host1,host2:9042/keyspace``, for the event loop ``loop``.

    ``wake(resource, seconds)`` is called in ``loop`` when a waiter may be granted after
    so many seconds.

    Raises:
        ConfigurationError: A part or an option of the URL cannot be used.
        BackendError: No node answers, or the table does not exist or is not fit.
    """
    options = options_of(address, connect_timeout=settings.connect_timeout)
    table = await opening.connect(options, loop)
    return CassandraStore(table, loop, wake, settings)
