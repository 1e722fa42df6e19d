"""A store over the two published tables, for any database with a desk."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote._util.purge import FIRST_KEY, EveryNth, Key, Purger
from aiorwlock_remote.cas.arrivals import ArrivalNotices
from aiorwlock_remote.cas.poller import StatePoller
from aiorwlock_remote.cas.port import StoredState
from aiorwlock_remote.cas.server_time import ServerTime
from aiorwlock_remote.cas.store import CasLockStore
from aiorwlock_remote.cas.table_rows import StoredRow, state_of
from aiorwlock_remote.cas.tables import StatementExecutor, TableCas, TableStepper, newer
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN
from aiorwlock_remote.core.names import Resource, from_row
from aiorwlock_remote.errors import BadRecord
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    EventLoop,
    Renewer,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

Page = Callable[[str, int], Awaitable[Sequence[tuple[str, int, StoredRow]]]]

FORGET_EVERY = 4096
"""Steps after which doormen that nobody uses any more are looked for."""
LEAST_MEMORY = 60.0
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
        self._forgets = EveryNth(FORGET_EVERY)
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
        resource = from_row(kind, number)
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
        latest = newer(state, self._steps.known(resource))
        assert latest is not None
        self._steps.saw(resource, latest)

    async def _forgotten(self, after: Key) -> Key | None:
        memory = max(LEAST_MEMORY, self._settings.fence_memory)
        return await self.forget(memory, after)
