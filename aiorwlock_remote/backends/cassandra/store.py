"""``cassandra://`` — locks in a table of Cassandra."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

import anyio

from aiorwlock_remote.backends.cassandra import opening
from aiorwlock_remote.backends.cassandra.cas import CassandraCas, newer
from aiorwlock_remote.backends.cassandra.examine import examine
from aiorwlock_remote.backends.cassandra.frame import Memory
from aiorwlock_remote.backends.cassandra.holders import Holders
from aiorwlock_remote.backends.cassandra.keeping import CassandraRenewer, ThreadHost
from aiorwlock_remote.backends.cassandra.options import options_of
from aiorwlock_remote.backends.cassandra.steps import Steps
from aiorwlock_remote.backends.cassandra.table import Table
from aiorwlock_remote.backends.cassandra.watcher import Watcher
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.names import Resource, from_row
from aiorwlock_remote.core.pauses import Pace
from aiorwlock_remote.core.record import Record
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.ports import (
    Bell,
    Capability,
    Finding,
    Host,
    Pending,
    Settings,
    Snapshot,
)
from aiorwlock_remote.swapping import State

log: logging.Logger = logging.getLogger("aiorwlock_remote.cassandra")

MANY = 100_000
"""Rows from which on a scan is said to be large."""


class CassandraStore:
    """Steps are transactions of a session; waiters poll by plain reads."""

    capabilities: Capability = (
        Capability.MANY_PROCESSES
        | Capability.MANY_HOSTS
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    # What is polled here is the watcher's business: this only keeps places alive, by a
    # transaction each time.
    pace: Pace = Pace(
        poll_min=1.5, poll_max=2.0, place_life=6.0, claim_window=0.5, sees_ends=True
    )

    def __init__(
        self, table: Table, host: Host, bell: Bell, settings: Settings
    ) -> None:
        """Over an open table, which is closed with the store."""
        self._table = table
        self._host = host
        self._bell = bell
        self._settings = settings
        self._memory = Memory()
        self._holders = Holders()
        self._cas = self._new_cas(host)
        self._steps = Steps(self._cas, self._holders, self._wakes, self._later)
        self._watcher = Watcher(
            self._cas.peek,
            lambda state: self._cas.times(state)[0],
            self._steps.saw,
            settings.gate,
            host,
            bell,
        )
        self._under_way = 0
        self._idle: anyio.Event | None = None

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """One transaction, or a few where others change the row at the same time."""
        self._under_way += 1
        stepped = self._steps.step(resource, command)
        stepped.then(self._stepped)
        return stepped

    def watch(self, resource: Resource) -> None:
        """Ring when it may be free for us."""
        self._watcher.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        """Not any more."""
        self._watcher.unwatch(resource)

    async def look(self, resource: Resource) -> Snapshot:
        """The resource as it stands; a free one has no row, and no last fence."""
        return self._snapshot(resource, await self._cas.peek(resource))

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All that is there, a page at a time: it reads the whole table."""
        prefix, seen = self._settings.prefix, 0
        async for rows in self._table.pages(self._host, self._table.request("scan")):
            seen += len(rows)
            if seen >= MANY > seen - len(rows):
                log.warning("large_scan", extra={"rows": seen})
            for row in rows:
                kind: str = row["resource_type"]
                if not kind.startswith(prefix):
                    continue
                resource = from_row(kind.removeprefix(prefix), row["resource_id"])
                if resource_type not in (None, resource.type):
                    continue
                try:
                    state = self._cas.read(row)
                except BadRecord as exc:  # the others are to be seen all the same
                    log.warning("bad_record %s: %s", resource.label, exc)
                    continue
                if state.record is not None or state.seat is not None:
                    yield self._snapshot(resource, state)

    def examine(self) -> AsyncIterator[Finding]:
        """The servers' version and settings, and the table's."""
        return examine(self._table, self._host)

    def renewer(self) -> CassandraRenewer:
        """Renews over the same session, whose driver has a thread of its own."""
        host = ThreadHost(self._host.clock)
        cas = self._new_cas(host)
        steps = Steps(cas, self._holders, _nobody, host.later)
        tell = partial(self._host.call_soon, self._tell)
        return CassandraRenewer(host, steps, self._steps.known, tell)

    async def aclose(self) -> None:
        """Wait for what is under way; end the session if it is ours."""
        self._watcher.close()
        while self._under_way:
            self._idle = anyio.Event()
            await self._idle.wait()
        await anyio.to_thread.run_sync(self._table.close)

    def _new_cas(self, host: Host) -> CassandraCas:
        return CassandraCas(self._table, host, self._settings.prefix, self._memory)

    def _snapshot(self, resource: Resource, state: State) -> Snapshot:
        now, _, wall = self._cas.times(state)
        return Snapshot(resource, state.record or Record(), state.seat, now, wall)

    def _stepped(self, _: Pending[Reply]) -> None:
        self._under_way -= 1
        if not self._under_way and self._idle is not None:
            self._idle.set()

    def _wakes(self, resource: Resource, gates: tuple[str, ...]) -> None:
        if self._settings.gate in gates:
            self._bell(resource, 0.0)

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        async def after() -> None:
            await anyio.sleep(seconds)
            function()

        self._host.spawn(after)

    def _tell(self, resource: Resource, state: State) -> None:
        latest = newer(state, self._steps.known(resource))
        assert latest is not None
        self._steps.saw(resource, latest)


def _nobody(resource: Resource, gates: tuple[str, ...]) -> None:
    """A renewal lets nobody in; whose lease it finds run out is seen by the poller."""


async def open_store(
    address: Address, host: Host, bell: Bell, settings: Settings
) -> CassandraStore:
    """Open ``cassandra://host1,host2:9042/keyspace``.

    Raises:
        ConfigurationError: a part or an option of the URL cannot be used.
        BackendError: nobody answers, or the table is not there or not fit.
    """
    options = options_of(address, connect_timeout=settings.connect_timeout)
    table = await opening.connect(options, host)
    return CassandraStore(table, host, bell, settings)
