"""``cassandra://``: locks in a table of Cassandra."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from aiorwlock_remote._util.threads import run_blocking
from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.cas import CassandraCas, state_of_row
from aiorwlock_remote.backends.cassandra.options import options_of
from aiorwlock_remote.backends.cassandra.stepper import CassandraStepper, LocalGrants
from aiorwlock_remote.backends.cassandra.table import Table, examine
from aiorwlock_remote.cas import (
    CasLockStore,
    CasRenewer,
    CasStepper,
    CasStore,
    StoredStates,
    VersionClock,
)
from aiorwlock_remote.cas.backoff import Later
from aiorwlock_remote.cas.stepper import WakeClients
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    Address,
    CallbackThread,
    Capability,
    EventLoop,
    Finding,
    StoreSettings,
    WakeCallback,
    resource_from_row,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

# A scan of that many rows is logged: it delays other requests of the cluster.
LARGE_SCAN_ROWS = 100_000


class CassandraStore(CasLockStore):
    """Store whose steps are lightweight transactions; waiting clients poll."""

    capabilities: Capability = (
        CasLockStore.capabilities
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    log = log

    def __init__(
        self, table: Table, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> None:
        self._table = table
        self._memory = VersionClock(table.options.clock_skew)
        self._local_grants = LocalGrants()
        cas = CassandraCas(table, loop, self._memory)
        super().__init__(loop, wake, settings, cas)

    def stepper(self, cas: CasStore, wakes: WakeClients, later: Later) -> CasStepper:
        return CassandraStepper(cas, self._local_grants, wakes, later)

    async def stored(self, resource_type: str | None) -> StoredStates:
        del resource_type
        seen = 0
        request = self._table.request("scan")
        pages = self._table.client.pages(self.event_loop, request)
        async with aclosing(pages):
            async for rows in pages:
                seen += len(rows)
                # Once for each scan, with the page that passes the limit.
                if seen >= LARGE_SCAN_ROWS > seen - len(rows):
                    log_event(log, "large_scan", rows=seen)
                for row in rows:
                    of_row = row["resource_type"], row["resource_id"]
                    yield resource_from_row(*of_row), partial(state_of_row, row)

    def examine(self) -> AsyncGenerator[Finding, None]:
        return examine(self._table, self.event_loop)

    def renewer(self) -> CasRenewer:
        # Leases must be renewed although the caller's loop may be blocked.
        thread = CallbackThread(self.event_loop.clock)
        cas = CassandraCas(self._table, thread, self._memory)
        return self.renewer_over(cas, thread)

    async def aclose(self) -> None:
        await super().aclose()
        await run_blocking(self._table.close)


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
