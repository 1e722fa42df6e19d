"""A database of two tables behind the same network: the compare-and-set stores."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from functools import partial
from random import Random

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.cas import (
    CasLockStore,
    CasRenewer,
    CasStepper,
    CasStore,
    ServerTime,
    StoredState,
)
from aiorwlock_remote.cas.backoff import Later
from aiorwlock_remote.cas.stepper import WakeClients
from aiorwlock_remote.cas.table_cas import (
    StoredRow,
    TableCas,
    TableStepper,
    Values,
    load_record,
)
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman
from aiorwlock_remote.core.names import Resource, resource_from_row
from aiorwlock_remote.core.timing import micros
from aiorwlock_remote.ports import (
    CallbackThread,
    EventLoop,
    Snapshot,
    StoreSettings,
    WakeCallback,
)
from tests.cas import tables
from tests.simulation.store import Link, SimulatedServer, StoreLinks
from tests.simulation.world import SimulatedProcess, World


class TableServer(SimulatedServer):
    """A server that compares and sets; each client computes its own steps."""

    def __init__(self, world: World) -> None:
        super().__init__(world, 1.0)
        self.tables = tables.Tables(world, self.ahead)

    def now(self) -> int:
        return self.tables.now()

    def held(self, label: str = "") -> dict[Resource, tuple[Doorman, int]]:
        now = self.now()
        rows = {
            resource_from_row(*key): (created, text)
            for key, (created, _, text) in self.tables.doormen.items()
        }
        return {
            resource: (load_record(text, created), now)
            for resource, (created, text) in rows.items()
            if text is not None and label in ("", resource.label)
        }

    def faults(self, random: Random) -> list[Callable[[], object]]:
        cut = partial(self._cut, random)
        return [cut, cut]

    def ask(self, name: str, values: Values) -> StoredRow:
        self.requests += 1
        if name == "look":
            return self.tables.look((values["i_kind"], values["i_number"]))
        return self.tables.swap(values)

    def connect(
        self,
        process: SimulatedProcess,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> SimulatedTableStore:
        return SimulatedTableStore(self, process, loop, wake, settings)


class LinkExecutor:
    """Sends the requests of a ``TableCas`` over a connection."""

    def __init__(
        self,
        server: TableServer,
        link: Link,
        deliver: Callable[..., object] = lambda function, *args: function(*args),
    ) -> None:
        """``deliver(function, *args)`` calls the function in the executor's thread."""
        self._server = server
        self._link = link
        self._deliver = deliver

    def ask(self, name: str, values: Values) -> Pending[StoredRow]:
        pending: Pending[StoredRow] = Pending()
        self._link.send(
            partial(self._server.ask, name, values),
            partial(self._deliver, pending.set_result),
            partial(self._deliver, pending.set_exception),
        )
        return pending


class SimulatedTableStore(CasLockStore, StoreLinks):
    """The library's own store over tables, but for the driver."""

    def __init__(
        self,
        server: TableServer,
        process: SimulatedProcess,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        StoreLinks.__init__(self, server, process, settings)
        self._server = server
        self._time = ServerTime(server.now(), micros(loop.clock.now()))
        executor = LinkExecutor(server, self.main)
        cas = TableCas(executor, loop.clock, self._time)
        CasLockStore.__init__(self, loop, wake, settings, cas)

    def stepper(self, cas: CasStore, wakes: WakeClients, later: Later) -> CasStepper:
        return TableStepper(cas, wakes, later)

    def connected_again(self, link: Link) -> None:
        del link  # the waiters poll

    async def look(self, resource: Resource) -> Snapshot:
        return self.snapshot(resource, await self.cas.load(resource))

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        for resource in sorted(self._server.held()):
            if resource_type in (None, resource.type):
                yield await self.look(resource)

    def renewer(self) -> CasRenewer:
        thread = CallbackThread(self.event_loop.clock)
        executor = LinkExecutor(self._server, self.keeper, thread.call_soon)
        cas = TableCas(executor, thread.clock, self._time)
        return self.renewer_over(cas, thread)

    async def aclose(self) -> None:
        self.begin_to_leave()
        self.poller.close()
        self.process.haunted |= not self.main.is_open
        with anyio.move_on_after(10.0) as scope:
            await super().aclose()
        self.process.haunted |= scope.cancelled_caught
        self.leave()

    def snapshot(self, resource: Resource, state: StoredState) -> Snapshot:
        now: int = state.mark.now
        return Snapshot(resource, state.record or UNUSED_DOORMAN, state.seat, now, now)
