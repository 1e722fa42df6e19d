"""A store over the two published tables, by a driver that needs an asyncio loop."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import anyio

from aiorwlock_remote._util.driver_loop import DriverLoop, OtherThreadLoop
from aiorwlock_remote._util.pending import InFlight, Pending
from aiorwlock_remote._util.plan_runner import run_plan_autocommit
from aiorwlock_remote.cas.arrivals import ArrivalNotices
from aiorwlock_remote.cas.driver.executor import BatchingExecutor, DriverExecutor, Send
from aiorwlock_remote.cas.driver.external_pool import BorrowedConnections
from aiorwlock_remote.cas.driver.pool import ConnectionSource
from aiorwlock_remote.cas.driver.renewal_loop import RenewalLoop, Renewals
from aiorwlock_remote.cas.renewer import (
    CallbackThread,
    CasRenewer,
    LockedRowsApart,
    nobody,
)
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.table_store import TableStore
from aiorwlock_remote.cas.tables import TableCas, TableStepper, newer
from aiorwlock_remote.core.row_plans import Plan, Statement
from aiorwlock_remote.ports import Capability, EventLoop, StoreSettings, WakeCallback

SHORTEST_WAIT = 0.05
LONGEST_WAIT = 1.0
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

    def renewer(self) -> LockedRowsApart:
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
            patient.patience = min(LONGEST_WAIT, max(SHORTEST_WAIT, share))

        return LockedRowsApart(
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
        steps = TableStepper(cas, nobody, host.later)
        tell = partial(self._host.call_soon, self._tell)
        known = self._steps.known
        return CasRenewer(host, steps, known, tell, newer, close, ready, fit)
