"""``postgresql://`` — locks in two tables of a PostgreSQL database."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import anyio

from aiorwlock_remote._util.driver_loop import submit_and_wait
from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.purge import FIRST_KEY, ROWS_PER_REQUEST, Key
from aiorwlock_remote.backends.postgresql.driver import (
    TRANSACTIONS,
    PostgresqlDriver,
    PostgresqlExecutor,
)
from aiorwlock_remote.backends.postgresql.listener import ArrivalReader, Listener
from aiorwlock_remote.backends.postgresql.options import options_of
from aiorwlock_remote.backends.postgresql.statements import statement
from aiorwlock_remote.cas.driver.executor import DriverExecutor
from aiorwlock_remote.cas.driver.external_pool import BorrowedConnections, lock_row
from aiorwlock_remote.cas.driver.options import ConnectionOptions
from aiorwlock_remote.cas.driver.pool import Driver
from aiorwlock_remote.cas.driver.store import RenewalLoop, TableStore
from aiorwlock_remote.cas.poller import PollIntervals
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.table_cas import (
    StoredRow,
    clock_finding,
    pushed_state,
    state_of,
)
from aiorwlock_remote.core.commands import Command, Reply, without_push
from aiorwlock_remote.core.names import Resource, resource_from_row
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.row_dialects import POSTGRESQL, Dialect
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import BadRecord, ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    Finding,
    HintChannel,
    Opener,
    StoreSettings,
    WakeCallback,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.postgresql")


class PostgresqlStore(TableStore):
    """Locks in PostgreSQL tables; ``NOTIFY`` wakes waiting tasks, else they poll."""

    scheme = "postgresql"
    driver_type: ClassVar[type[Driver[Any]]] = PostgresqlDriver
    executor_type: ClassVar[type[DriverExecutor]] = PostgresqlExecutor
    options_of: ClassVar[staticmethod[[Address, float], ConnectionOptions]] = (
        staticmethod(options_of)
    )
    capabilities: Capability = (
        TableStore.capabilities
        | Capability.NOTIFIES
        | Capability.PUSHES
        | Capability.TRANSACTIONS
        | Capability.ROW_RELEASES
    )
    poll_policy: PollPolicy = PollPolicy(
        poll_min=1.5, poll_max=2.0, entry_ttl=6.0, claim_window=0.5, pushes=True
    )
    poll_intervals: PollIntervals = PollIntervals(hinted=0.12)
    _driver: PostgresqlDriver
    _executor: PostgresqlExecutor

    def __init__(
        self,
        executor: PostgresqlExecutor,
        time: ServerTime,
        event_loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
        renewals: RenewalLoop[Any] | BorrowedConnections[Any],
    ) -> None:
        super().__init__(executor, time, event_loop, wake, settings, renewals)
        if not self._driver.options.listen:
            self.capabilities &= ~(Capability.NOTIFIES | Capability.PUSHES)
            self.poll_policy = replace(self.poll_policy, pushes=False)
        self._waited: set[Resource] = set()
        self._listening = False
        self._listener = Listener(
            executor.driver_loop,
            executor.driver.options,
            settings.client_id,
            self._on_wake,
            self._on_arrival,
            self._on_listening,
        )
        self._arrivals_read = ArrivalReader(self.cas.load, self.steps.known, self.saw)

    def connections(self) -> dict[str, str]:
        listens = "open" if self._listening else "none: waiters poll"
        return {**super().connections(), "listener": listens}

    @property
    def poll_interval(self) -> tuple[float, float] | None:
        return None if self._driver.options.listen else super().poll_interval

    async def use_channel(self, connect: Callable[[], HintChannel]) -> None:
        if self._driver.options.listen:
            raise ConfigurationError(
                what="wake: this store wakes its waiters by NOTIFY", hint="listen=no"
            )
        await super().use_channel(connect)

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        if not self._listening:
            command = without_push(command)
        return super().step(resource, command)

    def watch(self, resource: Resource) -> None:
        self._waited.add(resource)
        if self._listening:
            return
        super().watch(resource)
        self._listener.start()

    def unwatch(self, resource: Resource) -> None:
        self._waited.discard(resource)
        super().unwatch(resource)

    @property
    def dialect(self) -> Dialect:
        # The server gives a row lock up before we do: then its outcome is known.
        half = max(1, round(self._driver.options.call_timeout * 500))
        return POSTGRESQL.patient(half)

    def watch_row(
        self, table: str, key: str, ring: Callable[[], object]
    ) -> Callable[[], object]:
        # Where nothing listens, ``ring`` is never called: the waiter polls.
        row = table, key
        self._listener.rows.add(row, ring)
        self._listener.start()
        return partial(self._listener.rows.remove, row)

    async def join(self, resource: Resource, ticket: str, transaction: object) -> None:
        text = statement("join", self._driver.options.schema)
        values = *resource.row, ticket
        await lock_row(TRANSACTIONS, transaction, text, values=values)

    async def joined(self, resource: Resource, ticket: str) -> bool:
        (row,) = await self._executor.rows("joined", *resource.row, ticket)
        return bool(row["joined"])

    async def examine(self) -> AsyncGenerator[Finding, None]:
        options = self._driver.options
        (server,) = await self._executor.rows("server")
        yield Finding("server", f"PostgreSQL {server['version']}", options.where)
        if server["standby"]:
            meaning = "cannot be written: no lock can be had"
            yield Finding("role", "standby", meaning, "bad")
        elif server["read_only"] == "on":
            meaning = "transactions are read-only: no lock can be had"
            yield Finding("role", "read-only", meaning, "bad")
        for name in ("fsync", "synchronous_commit"):
            value = server[name]
            if value == "off":
                meaning = "after a crash of the server the last grants are forgotten"
                yield Finding(
                    name, value, meaning, "bad" if name == "fsync" else "note"
                )
            else:
                yield Finding(name, value, "a grant that was told survives a crash")
        if server["isolation"] != "read committed":
            meaning = (
                "statements that meet are refused and tried again; all stays right"
            )
            yield Finding("isolation", server["isolation"], meaning, "note")
        yield await clock_finding(self._executor, self.event_loop.clock)

    async def forget(self, seconds: float, after: Key = FIRST_KEY) -> Key | None:
        found = await self._executor.rows("forget", seconds, *after, ROWS_PER_REQUEST)
        return (found[0]["resource_type"], found[0]["resource_id"]) if found else None

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            loop = self._executor.driver_loop
            # First: a notification would start further requests.
            await submit_and_wait(loop, self._listener.close)
        await super().aclose()

    def wake_clients(self, resource: Resource, client_ids: tuple[str, ...]) -> None:
        # Another process has waited for what this one held, and may do so again. Unless
        # this process hears of that, each such release is refused once
        # (test_notified.py: test_whoever_has_made_others_wait_listens).
        if client_ids != (self.settings.client_id,):
            self._listener.start()
        super().wake_clients(resource, client_ids)

    def _on_wake(
        self,
        kind: str,
        number: int,
        found: StoredRow | None,
        pushed: PushedGrant | None,
    ) -> None:
        resource = resource_from_row(kind, number)
        if resource not in self._waited:
            return
        if log.isEnabledFor(logging.DEBUG):
            log_event(
                log,
                "woken",
                logging.DEBUG,
                resource=resource.label,
                client_id=self.settings.client_id,
                cause="message",
            )
        if found is not None:
            # If the record is damaged, the waiter's own step reports that.
            with suppress(BadRecord):
                if pushed is None:
                    self.saw(resource, state_of(found))
                else:
                    ticket = self._ticket_in_queue(resource)
                    self.saw(resource, pushed_state(found, pushed, ticket))
        self.wake(resource, 0.0, pushed)

    def _ticket_in_queue(self, resource: Resource) -> str:
        """Return the ticket of our own queue entry as we saw it last; "" if none."""
        known = self.steps.known(resource)
        if known is None or known.record is None:
            return ""
        entry = known.record.entry(self.settings.client_id, Mode.WRITE)
        return "" if entry is None else entry.ticket

    def _on_arrival(self, kind: str, number: int, version: str) -> None:
        self._arrivals_read.arrived(resource_from_row(kind, number), version)

    def _on_listening(self, now: bool) -> None:  # noqa: FBT001
        self._listening = now
        self.arrivals.hears = now
        for resource in self._waited:
            if now:
                # A notification sent before the connection listened is lost: look once
                # at each resource (test_listener.py).
                super().unwatch(resource)
                self.wake(resource, 0.0)
            else:
                super().watch(resource)


open_store: Opener = PostgresqlStore.open_url
