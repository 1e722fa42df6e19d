"""The store over the two published tables, and the event loop of its renewals."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, ClassVar, Generic, Self, TypeVar

import anyio

from aiorwlock_remote._util.driver_loop import (
    DriverLoop,
    OtherThreadLoop,
    ThreadLoop,
    driver_loop_for,
)
from aiorwlock_remote._util.pending import InFlight, Pending
from aiorwlock_remote._util.purge import FIRST_KEY, EveryNth, Key, Purger
from aiorwlock_remote._util.statements import run_plan_autocommit
from aiorwlock_remote._util.threads import run_blocking
from aiorwlock_remote.cas.arrivals import ArrivalNotices
from aiorwlock_remote.cas.backoff import Later
from aiorwlock_remote.cas.driver.executor import BatchingExecutor, DriverExecutor
from aiorwlock_remote.cas.driver.external_pool import (
    BorrowedConnections,
    ExternalPool,
    RequestConnections,
)
from aiorwlock_remote.cas.driver.options import ConnectionOptions
from aiorwlock_remote.cas.driver.pool import (
    ConnectionPool,
    ConnectionSource,
    Driver,
    not_connected,
)
from aiorwlock_remote.cas.port import CasStore, StoredState, StoredStates
from aiorwlock_remote.cas.renewer import RowRenewer, RowsApartRenewer, TwoLaneRenewer
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.stepper import CasStepper, WakeClients
from aiorwlock_remote.cas.store import CasLockStore
from aiorwlock_remote.cas.table_cas import (
    TableCas,
    TableStepper,
    VersionMark,
    read_server_time,
    state_of,
)
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN
from aiorwlock_remote.core.names import Resource, resource_from_row
from aiorwlock_remote.core.row import Plan, Statement
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.ports import (
    CallbackThread,
    Capability,
    Clock,
    EventLoop,
    Finding,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

RENEWAL_CONNECTIONS = 4
"""Most connections for renewals of rows that are not locked."""
LOCKED_ROW_CONNECTIONS = 2
"""Connections for renewals that may wait for a row that another program has locked."""
ROW_LOCK_CONNECTIONS = 4
"""Most connections for renewals of row locks, in tables of the user's."""
MIN_ROW_WAIT = 0.05
MAX_ROW_WAIT = 1.0
"""Bounds, in seconds, of a renewal's wait for a row that was found locked before."""
PURGE_EVERY = 4096
"""Steps, of all processes together, after which unused doorman rows are deleted."""
MIN_FENCE_MEMORY = 60.0
"""Seconds that an unused doorman row is kept at least, whatever ``fence_memory`` is.

Otherwise a swap that is still under way could find its row deleted and created again.
"""

C = TypeVar("C")
T = TypeVar("T")


# The drivers' blocking interfaces would need no loop, but may wait for ever for a
# server that is silent during the login.
class RenewalLoop(Generic[C]):
    """An asyncio loop in a thread of its own, with the connections for renewals."""

    def __init__(self, name: str, driver: Driver[C], clock: Clock) -> None:
        # Renewals wait for their answers in the keeper's thread, which runs this.
        self.callbacks: CallbackThread = CallbackThread(clock)
        self.loop: ThreadLoop = ThreadLoop(self.callbacks, f"{name} keeper")
        self.connections: ConnectionPool[C] = ConnectionPool(
            driver, RENEWAL_CONNECTIONS
        )
        self.locked_row_connections: ConnectionPool[C] = ConnectionPool(
            driver, LOCKED_ROW_CONNECTIONS
        )
        self.row_lock_connections: ConnectionPool[C] = ConnectionPool(
            driver, ROW_LOCK_CONNECTIONS
        )

    def connect(self) -> Pending[None]:
        """Try to open a connection; the reply comes in the lease keeper's thread."""
        pending: Pending[None] = Pending()
        self.loop.spawn(partial(self._connect, pending))
        return pending

    def connect_row_locks(self) -> None:
        """Open a connection for row locks, without waiting for it."""
        self.loop.spawn(self.row_lock_connections.connect)

    def end(self) -> None:
        """Abort the renewal connections; block until the loop's thread has ended."""
        self.loop.end(self._abort)

    def _abort(self) -> None:
        self.connections.abort()
        self.locked_row_connections.abort()
        self.row_lock_connections.abort()

    async def _connect(self, pending: Pending[None]) -> None:
        await self.connections.connect()
        self.loop.tell(pending.set_result, None)


class TableStore(CasLockStore, ABC):
    """Base of the stores over the SQL tables ``mutex_locks`` and ``doormans``.

    Each step is a swap. Waiting tasks poll by plain reads, unless a subclass wakes
    them. Renewals have connections and an event loop of their own; over a user's pool
    they go through the caller's event loop.
    """

    scheme: ClassVar[str]
    driver_type: ClassVar[type[Driver[Any]]]
    executor_type: ClassVar[type[DriverExecutor]]
    options_of: ClassVar[staticmethod[[Address, float], ConnectionOptions]]
    capabilities: Capability = (
        CasLockStore.capabilities
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
        | Capability.ROW_LOCKS
    )

    def __init__(
        self,
        executor: DriverExecutor,
        time: ServerTime,
        event_loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
        renewals: RenewalLoop[Any] | BorrowedConnections[Any],
    ) -> None:
        arrivals = ArrivalNotices(settings.client_id)
        # Those that the database itself sends. A channel's are sent by ``steps``.
        notifies = Capability.NOTIFIES in self.capabilities
        self._notified = arrivals if notifies else None
        cas = TableCas(executor, event_loop.clock, time, self._notified)
        super().__init__(event_loop, wake, settings, cas, arrivals)
        self._driver = executor.driver
        self._executor = executor
        self._time = time
        self._renewals = renewals
        self._renewed = False
        self._row_plans: InFlight = InFlight()
        self._purge_due = EveryNth(PURGE_EVERY)
        self._purger = Purger(self._purge, event_loop.spawn)
        # Renewals then go through the caller's loop, and are late if that is blocked.
        if isinstance(renewals, BorrowedConnections):
            self.capabilities &= ~Capability.OFF_LOOP_RENEWAL

    @classmethod
    async def open_url(
        cls,
        address: Address,
        event_loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> Self:
        """Call ``open`` for the store of a URL, with connections of the store's own."""
        options = cls.options_of(address, settings.connect_timeout)
        driver = cls.driver_type(options)
        return await cls.open(driver, None, event_loop, wake, settings)

    @classmethod
    async def open(
        cls,
        driver: Driver[Any],
        pool: ExternalPool[Any] | None,
        event_loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> Self:
        """Connect, check the server and its tables, and return the store.

        Args:
            driver: Driver with the address and login of the database.
            pool: A user's pool, of the running asyncio loop; None for our own.
            event_loop: Event loop of the caller.
            wake: Called as ``wake(resource, seconds)`` in that loop: a waiting task of
                this client may be granted the resource after ``seconds``.
            settings: The options of ``connect``.

        Raises:
            ConfigurationError: The sessions or the tables have unsuitable settings.
            BackendError: The server does not answer, refuses the login, is too old, or
                its tables are missing or unsuitable.
        """
        options, clock = driver.options, event_loop.clock
        loop: RenewalLoop[Any] | None = None
        source: ConnectionSource[Any]
        renewals: RenewalLoop[Any] | BorrowedConnections[Any]
        if pool is None:
            source = ConnectionPool(driver, options.connections)
            renewals = loop = RenewalLoop(cls.scheme, driver, clock)
        else:
            renewals = BorrowedConnections(pool, driver)
            source = RequestConnections(renewals, pool.most, options.connect_timeout)

        def logged_in() -> None:
            # Not at the first renewal: a login takes a good part of a short lease.
            if loop is not None:
                loop.connect().log_failure()

        driver_loop = driver_loop_for(event_loop, cls.scheme)
        executor = cls.executor_type(driver_loop, source, driver)
        try:
            time: ServerTime | None = None
            with anyio.move_on_after(options.connect_timeout):
                await executor.check_server(logged_in)
                time = await read_server_time(executor, clock)
            if time is None:
                raise not_connected(options.where, options.connect_timeout)  # noqa: TRY301 - cleaned up below, as every failure
            return cls(executor, time, event_loop, wake, settings, renewals)
        except BaseException:
            with anyio.CancelScope(shield=True):
                if loop is not None:
                    await run_blocking(loop.end)
                await executor.close()
            raise

    def connections(self) -> dict[str, str]:
        found = {**super().connections(), "requests": self._executor.connections}
        if isinstance(self._renewals, RenewalLoop):
            found["renewals"] = self._renewals.connections.state
        return found

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        # Counted over all processes: none of them need run for long.
        if self._purge_due.now():
            self._purger.begin(resource.row)
        return self.steps.step(resource, command)

    def stepper(self, cas: CasStore, wakes: WakeClients, later: Later) -> CasStepper:
        return TableStepper(cas, wakes, later)

    async def stored(self, resource_type: str | None) -> StoredStates:
        del resource_type
        last = "", 0
        while rows := await self._executor.page(*last):
            last = rows[-1][:2]
            for kind, number, found in rows:
                yield resource_from_row(kind, number), partial(state_of, found)

    @abstractmethod
    def examine(self) -> AsyncGenerator[Finding, None]:
        """Yield the findings of ``rwlock doctor`` about the server. Changes nothing."""

    @abstractmethod
    async def forget(self, seconds: float, after: Key = FIRST_KEY) -> Key | None:
        """Delete unused doorman rows in one part of the table, to keep requests short.

        A row is deleted if it was last changed more than ``seconds`` ago and its lock
        is free. The part begins after the key ``after``. Returns the last key of the
        part, to pass as ``after`` of the next call, or None at the end of the table.
        """

    def expect_row_renewals(self) -> None:
        if isinstance(self._renewals, RenewalLoop):
            self._renewals.connect_row_locks()

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        return self._row_plans.add(
            run_plan_autocommit(self._executor.run_row_plan, plan)
        )

    def renewer(self) -> RowsApartRenewer:
        renewals, self._renewed = self._renewals, True
        clock = self.event_loop.clock
        slow_thread, row_thread = CallbackThread(clock), CallbackThread(clock)
        row_source: ConnectionSource[Any]
        if isinstance(renewals, BorrowedConnections):
            thread, close, ready = CallbackThread(clock), None, None
            loop = OtherThreadLoop(self.event_loop, thread)
            slow_loop = OtherThreadLoop(self.event_loop, slow_thread)
            row_loop = OtherThreadLoop(self.event_loop, row_thread)
            row_source = renewals
            fast = self._renewal_cas(thread, loop, renewals)
            slow = self._renewal_cas(slow_thread, slow_loop, renewals)
        else:
            thread, close, ready = renewals.callbacks, renewals.end, renewals.connect
            slow_loop = OtherThreadLoop(renewals.loop, slow_thread)
            slow_source = renewals.locked_row_connections
            row_loop = OtherThreadLoop(renewals.loop, row_thread)
            row_source = renewals.row_lock_connections
            fast = self._renewal_cas(thread, renewals.loop, renewals.connections)
            slow = self._renewal_cas(slow_thread, slow_loop, slow_source)
        # A row that another program keeps locked must not delay the renewals of other
        # rows: the fast lane fails at once and the slow lane tries those rows again
        # (test_stuck_rows.py).
        fast.patience = 0.0

        def set_patience(resources: int, seconds: float) -> None:
            # All rows of a batch together may take half of the time that is left.
            share = seconds / (2 * resources)
            slow.patience = min(MAX_ROW_WAIT, max(MIN_ROW_WAIT, share))

        locks = TwoLaneRenewer(
            self.renewer_over(fast, thread, close, ready),
            self.renewer_over(slow, slow_thread, fit=set_patience),
            clock,
        )
        rows = self.executor_type(row_loop, row_source, self._driver)
        carry = partial(run_plan_autocommit, rows.run_row_plan)
        return RowsApartRenewer(locks, RowRenewer(row_thread, carry))

    async def aclose(self) -> None:
        self.poller.close()
        await self._purger.end()
        await super().aclose()
        with anyio.CancelScope(shield=True):
            await self._row_plans.wait_closed()
            # A renewer that was handed out closes the loop itself.
            if isinstance(self._renewals, RenewalLoop) and not self._renewed:
                await run_blocking(self._renewals.end)
            await self._executor.close()

    def _renewal_cas(
        self, thread: CallbackThread, loop: DriverLoop, source: ConnectionSource[Any]
    ) -> TableCas:
        send = self.executor_type(loop, source, self._driver).ask_all
        executor = BatchingExecutor(send, thread.call_soon)
        return TableCas(
            executor, thread.clock, self._time.with_own_slack(), self._notified
        )

    def shown_by(self, state: StoredState) -> int | None:
        mark: VersionMark = state.mark
        return mark.now

    def snapshot(self, resource: Resource, state: StoredState) -> Snapshot:
        now: int = state.mark.now
        return Snapshot(resource, state.record or UNUSED_DOORMAN, state.seat, now, now)

    async def _purge(self, after: Key) -> Key | None:
        memory = max(MIN_FENCE_MEMORY, self.settings.fence_memory)
        return await self.forget(memory, after)
