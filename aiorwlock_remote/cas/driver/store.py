"""A store over the two published tables, by a driver that needs an asyncio loop.

Renewals over a driver that needs an asyncio loop: a loop and a connection of theirs.

Not a driver's blocking side: at a server that is silent while it logs in, that may wait
for ever. They log in when the store is opened, not when the first renewal is due: of a
short lease that takes a good part.

A store over the two published tables, for any database with a desk.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, TypeVar

import anyio

from aiorwlock_remote._util.driver_loop import DriverLoop, OtherThreadLoop, ThreadLoop
from aiorwlock_remote._util.pending import InFlight, Pending
from aiorwlock_remote._util.purge import FIRST_KEY, EveryNth, Key, Purger
from aiorwlock_remote._util.statements import run_plan_autocommit
from aiorwlock_remote.cas.driver.executor import BatchingExecutor, DriverExecutor, Send
from aiorwlock_remote.cas.driver.external_pool import (
    BorrowedConnections,
    ConnectionOptions,
    ExternalPool,
    request_connections,
)
from aiorwlock_remote.cas.driver.pool import ConnectionPool, ConnectionSource
from aiorwlock_remote.cas.poller import StatePoller
from aiorwlock_remote.cas.port import StoredState
from aiorwlock_remote.cas.renewer import (
    CallbackThread,
    CasRenewer,
    TwoLaneRenewer,
    wake_no_client,
)
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.store import CasLockStore
from aiorwlock_remote.cas.table_cas import (
    ArrivalNotices,
    StatementExecutor,
    TableCas,
    TableStepper,
    newer_state,
)
from aiorwlock_remote.cas.table_rows import StoredRow, state_of
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN
from aiorwlock_remote.core.names import Resource, resource_from_row
from aiorwlock_remote.core.row import Plan, Statement
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    Capability,
    Clock,
    EventLoop,
    Renewer,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

RENEWAL_CONNECTIONS = 4
"""Connections for renewals, of which all but one are for many at a time."""
LOCKED_ROW_CONNECTIONS = 2
"""Connections for renewals that may wait for a row which somebody keeps locked."""

C = TypeVar("C")
R = TypeVar("R", bound=ConnectionOptions)


class RenewalLoop(Generic[C]):
    """Runs from the beginning; ``connect`` once it is known that one can."""

    def __init__(
        self,
        name: str,
        lines: ConnectionPool[C],
        apart: ConnectionPool[C],
        clock: Clock,
    ) -> None:
        """``name``: of the store. ``lines``: of the loop that is started here.

        ``apart``: those over which locked rows are waited for. ``host`` is of the
        keeper's thread, where answers are wanted.
        """
        self.host: CallbackThread = CallbackThread(clock)
        self.far: ThreadLoop = ThreadLoop(self.host, f"{name} keeper")
        self.lines: ConnectionPool[C] = lines
        self.apart: ConnectionPool[C] = apart

    def connect(self) -> Pending[None]:
        """Connect now: a renewal is due. Told in the keeper's thread."""
        pending: Pending[None] = Pending()
        self.far.spawn(partial(self._connect, pending))
        return pending

    def get_ready(self) -> None:
        """Connect for the first renewal."""
        self.connect().log_failure()

    def end(self) -> None:
        """Hang up. Blocks until the thread has ended."""
        self.far.end(self._hang_up)

    def _hang_up(self) -> None:
        self.lines.abort()
        self.apart.abort()

    async def _connect(self, pending: Pending[None]) -> None:
        await self.lines.connect()
        self.far.tell(pending.set_result, None)


Renewals = RenewalLoop[C] | BorrowedConnections[C]
"""Over a connection of the keeper's own; or, over a user's pool, through the loop."""


def make_connections(
    name: str,
    lender: ExternalPool[C] | None,
    own: Callable[[R, int], ConnectionPool[C]],
    options: R,
    clock: Clock,
) -> tuple[ConnectionSource[C], Renewals[C]]:
    """What requests go over, and renewals. ``own``: makes lines, so many at most."""
    if lender is not None:
        timeout = options.connect_timeout
        lent = BorrowedConnections(lender, options.where, timeout)
        return request_connections(lent, lender.most, timeout), lent
    lines = own(options, options.connections)
    apart = own(options, LOCKED_ROW_CONNECTIONS)
    return lines, RenewalLoop(name, own(options, RENEWAL_CONNECTIONS), apart, clock)


@asynccontextmanager
async def closing_on_failure(
    close: Callable[[], Awaitable[object]], renewals: Renewals[Any]
) -> AsyncIterator[Callable[[], object]]:
    """While a store is opened: what was made for it goes if that fails.

    Gives what is to be called once it is known that one can log in.
    """
    keeping = renewals if isinstance(renewals, RenewalLoop) else None
    try:
        yield _nothing if keeping is None else keeping.get_ready
    except BaseException:
        with anyio.CancelScope(shield=True):
            if keeping is not None:
                await anyio.to_thread.run_sync(keeping.end)
            await close()
        raise


def _nothing() -> None:
    """A user's pool is ready."""


log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

Page = Callable[[str, int], Awaitable[Sequence[tuple[str, int, StoredRow]]]]

PURGE_EVERY = 4096
"""Steps after which doormen that nobody uses any more are looked for."""
MIN_FENCE_MEMORY = 60.0
"""Seconds: what is still on its way finds the version it must not find."""


class TableStore(CasLockStore, ABC):
    """Steps are swaps; waiters poll by plain reads where nobody tells them."""

    def __init__(
        self,
        desk: StatementExecutor,
        time: ServerTime,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
        ears: ArrivalNotices | None = None,
    ) -> None:
        """``desk``: of the loop of ``host``. ``ears``: if it tells other processes."""
        super().__init__(host, bell, settings)
        self._time = time
        self._cas = TableCas(desk, host.clock, time, ears)
        self._steps = TableStepper(self._cas, self._wakes, self._later)
        self._watcher = StatePoller(
            self._cas.load,
            lambda state: self._cas.times(state).now,
            self._steps.saw,
            settings.client_id,
            host,
            bell,
            self.looks,
        )
        self._forgets = EveryNth(PURGE_EVERY)
        self._forgetting = Purger(self._forgotten, host.spawn)

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """As ``CasLockStore.step``; now and then it sees to old doormen."""
        if self._forgets.now():
            self._forgetting.begin(resource.row)
        return self._steps.step(resource, command)

    async def look(self, resource: Resource) -> Snapshot:
        """The resource as it stands, after all that was asked for here before."""
        await self._steps.answered(resource)
        return self._snapshot(resource, await self._cas.load(resource))

    @abstractmethod
    def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All resources that are held or waited for."""

    @abstractmethod
    def renewer(self) -> Renewer:
        """A new renewer; opens its connection at the first use."""

    @abstractmethod
    async def forget(self, seconds: float, after: Key = FIRST_KEY) -> Key | None:
        """Delete doormen that nobody has used for so long, a ``ROWS_PER_REQUEST`` at
        most.

        Where the next portion begins; None: there is none.
        """

    async def aclose(self) -> None:
        """Wait for what is under way."""
        self._watcher.close()
        await self._forgetting.end()
        await self._over()

    async def _paged(
        self, page: Page, resource_type: str | None
    ) -> AsyncIterator[Snapshot]:
        """All that is there, in the order of the keys; ``page``: behind one of them."""
        last = "", 0
        while rows := await page(*last):
            last = rows[-1][:2]
            for kind, number, found in rows:
                resource = self._wanted(kind, number, resource_type)
                if resource is None:
                    continue
                snapshot = self._shown(resource, found)
                if snapshot is not None:
                    yield snapshot

    def _wanted(
        self, kind: str, number: int, resource_type: str | None
    ) -> Resource | None:
        """The resource of a row, if it is of that type."""
        resource = resource_from_row(kind, number)
        return resource if resource_type in (None, resource.type) else None

    def _shown(self, resource: Resource, found: StoredRow) -> Snapshot | None:
        """What to show of it, if there is anything."""
        try:
            state = state_of(found)
        except BadRecord as exc:  # the others are to be seen all the same
            log_event(log, "bad_record", resource=resource.label, error=str(exc))
            return None
        if state.record is None and state.seat is None:
            return None
        return self._snapshot(resource, state)

    def _snapshot(self, resource: Resource, state: StoredState) -> Snapshot:
        now: int = state.mark.now
        return Snapshot(resource, state.record or UNUSED_DOORMAN, state.seat, now, now)

    def _tell(self, resource: Resource, state: StoredState) -> None:
        """What others saw: the keeper, or who sent a notification."""
        latest = newer_state(state, self._steps.known(resource))
        assert latest is not None
        self._steps.saw(resource, latest)

    async def _forgotten(self, after: Key) -> Key | None:
        memory = max(MIN_FENCE_MEMORY, self._settings.fence_memory)
        return await self.forget(memory, after)


MIN_ROW_WAIT = 0.05
MAX_ROW_WAIT = 1.0
"""Seconds for which a renewal waits for a row that was found locked before."""

T = TypeVar("T")


class DriverTableStore(TableStore):
    """Renews in a loop of its own, or through the user's where a pool was lent."""

    capabilities: Capability = TableStore.capabilities

    def __init__(
        self,
        desk: DriverExecutor,
        time: ServerTime,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
        renewals: Renewals[Any],
        ears: ArrivalNotices | None = None,
    ) -> None:
        """``desk``: of the loop of ``host``, as a user's pool is."""
        super().__init__(desk, time, host, bell, settings, ears)
        self._ears = ears
        self._close = desk.close
        self._renewals = renewals
        self._renewed = False
        self._plans: InFlight = InFlight()  # on tables of the user's
        if isinstance(renewals, BorrowedConnections):
            self.capabilities &= ~Capability.OFF_LOOP_RENEWAL

    @abstractmethod
    def _sending(self, side: DriverLoop, lines: ConnectionSource[Any]) -> Send:
        """Sends several requests at once."""

    @abstractmethod
    def _carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Begin with a plan, whose statements are committed one by one."""

    def carry(self, plan: Plan[Statement, T]) -> Pending[T]:
        """Statements on the user's tables; see ``SupportsRowLocks``."""
        return self._plans.add(run_plan_autocommit(self._carry, plan))

    def renewer(self) -> TwoLaneRenewer:
        """Renews over connections of its own, in a loop of its own."""
        renewals, self._renewed = self._renewals, True
        clock = self._host.clock
        apart = CallbackThread(clock)
        if isinstance(renewals, BorrowedConnections):
            host, close, ready = CallbackThread(clock), None, None
            quick = self._renewing(host, OtherThreadLoop(self._host, host), renewals)
            patient = self._renewing(
                apart, OtherThreadLoop(self._host, apart), renewals
            )
        else:
            host, close, ready = renewals.host, renewals.end, renewals.connect
            quick = self._renewing(host, renewals.far, renewals.lines)
            patient = self._renewing(
                apart, OtherThreadLoop(renewals.far, apart), renewals.apart
            )
        quick.patience = 0.0

        def fit(resources: int, seconds: float) -> None:
            share = seconds / (2 * resources)
            patient.patience = min(MAX_ROW_WAIT, max(MIN_ROW_WAIT, share))

        return TwoLaneRenewer(
            self._renewer_of(host, quick, close=close, ready=ready),
            self._renewer_of(apart, patient, fit=fit),
            clock,
        )

    async def aclose(self) -> None:
        """Wait for what is under way; close the connections that are ours."""
        await super().aclose()
        with anyio.CancelScope(shield=True):
            await self._plans.wait_closed()
            if isinstance(self._renewals, RenewalLoop) and not self._renewed:
                await anyio.to_thread.run_sync(self._renewals.end)
            await self._close()

    def _renewing(
        self, host: CallbackThread, side: DriverLoop, lines: ConnectionSource[Any]
    ) -> TableCas:
        return TableCas(
            BatchingExecutor(self._sending(side, lines), host.call_soon),
            host.clock,
            self._time,
            self._ears,
        )

    def _renewer_of(
        self,
        host: CallbackThread,
        cas: TableCas,
        *,
        close: Callable[[], object] | None = None,
        ready: Callable[[], Pending[None]] | None = None,
        fit: Callable[[int, float], object] | None = None,
    ) -> CasRenewer:
        steps = TableStepper(cas, wake_no_client, host.later)
        tell = partial(self._host.call_soon, self._tell)
        known = self._steps.known
        return CasRenewer(host, steps, known, tell, newer_state, close, ready, fit)
