"""A store whose server runs the core, behind a network that loses and delays messages.

``SimulatedServer`` has the state of a store; ``SimulatedStore`` is what ``connect``
opens. Each store has two connections, one for the loop and one for the lease keeper's
threads. A connection keeps the order of its messages. When it is cut, the requests
under way may arrive later, and their replies are lost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import anyio

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Command, NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.doorman import Doorman, Grant, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.timing import PollPolicy, micros
from aiorwlock_remote.core.transition import transition
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.errors import BackendUnavailable
from aiorwlock_remote.ports import (
    Capability,
    EventLoop,
    Renewal,
    RenewerBase,
    Snapshot,
    StoreBase,
    StoreSettings,
    WakeCallback,
)
from tests.simulation.world import SimulatedProcess, World, current_thread

QUICK, SLOW = (0.0002, 0.003), (0.01, 0.6)
REQUEST_TIMEOUT = 2.0
REPAIR_SECONDS = (0.02, 1.5)
LATEST_GHOST = 3.0
LEARNS_SECONDS = 11.0
"""After which each waiter has looked again, and each holder has renewed its lease."""
LAST_WORDS = 1.5
"""Seconds before the end in which no later request makes up for one that failed."""


@dataclass
class Network:
    """How often what befalls a message; all zero: none is lost or slow."""

    slow: float = 0.0
    cut: float = 0.0
    message_lost: float = 0.0
    message_doubled: float = 0.0
    message_late: float = 0.0
    message_forged: float = 0.0

    def heal(self) -> None:
        self.slow = self.cut = self.message_lost = 0.0
        self.message_doubled = self.message_late = self.message_forged = 0.0


class SimulatedServer:
    """The state of all resources; commands are carried out as the core says."""

    settling_seconds = 4.0 + LATEST_GHOST + 0.5
    """After healing: connections are repaired, and late requests have come."""

    def __init__(self, world: World, speed: float) -> None:
        self.world = world
        self.network = Network()
        self.speed = speed
        self.ahead = world.random.uniform(1e9, 1.7e9)
        self.records: dict[Resource, Doorman] = {}
        self.seats: dict[Resource, MutexRecord] = {}
        self.stores: dict[str, StoreLinks] = {}
        self.all_stores: list[StoreLinks] = []
        self.foreign: dict[str, float] = {}
        """Until when another program has which mutex record."""
        self.busy_until = 0.0
        self.requests = 0
        self._jumps: list[tuple[float, float]] = []
        """When the clock was set forward, and until when that may matter."""

    def backend(self, process: SimulatedProcess) -> SimulatedBackend | str:
        """Return what a process connects to."""
        return SimulatedBackend(self, process)

    def patches(self) -> AbstractContextManager[None]:
        return nullcontext()

    def now(self) -> int:
        return micros(self.ahead + self.world.now * self.speed)

    def hang(self, seconds: float) -> None:
        """Answer nothing for so long."""
        self.busy_until = max(self.busy_until, self.world.now + seconds)

    def carry_out(self, resource: Resource, command: Command) -> Reply:
        self.requests += 1
        now = self.now()
        seat = self.seats.get(resource)
        if seat is not None and seat.expires is not None and seat.expires <= now:
            seat = None
        step = transition(
            *(self.records.get(resource), seat, command, now, now),
            semaphore=resource.is_semaphore,
        )
        self.records[resource] = step.record
        if step.seat is None:
            self.seats.pop(resource, None)
        else:
            self.seats[resource] = step.seat
        pushed = None if step.pushed is None else PushedGrant.of(step.pushed)
        for client_id in step.wakes:
            store = self.stores.get(client_id)
            if isinstance(store, SimulatedStore):
                self._send_message(store, resource, pushed)
        return step.reply

    def held(self, label: str = "") -> Mapping[Resource, tuple[Doorman, int]]:
        """Return the records, and the time by the clock that judges them.

        ``label``: of the one resource that is asked for; by default all are.
        """
        now = self.now()
        return {
            resource: (record, now)
            for resource, record in self.records.items()
            if label in ("", resource.label)
        }

    def processes_of_clients(self) -> Mapping[str, SimulatedProcess]:
        return {store.client_id: store.process for store in self.all_stores}

    def in_doubt(self, time: float, names: Collection[str]) -> bool:
        """Whether a grant of these processes may be lost, and given again, rightly."""
        del names
        return any(begin <= time <= end for begin, end in self._jumps)

    def heal(self) -> None:
        self.network.heal()

    def ends_in_trouble(self, process: SimulatedProcess) -> None:
        """Note that a process ends while faults may keep it from giving back."""

    def revive(self) -> None:
        for store in self.all_stores:
            store.revive()

    def faults(self, random: Random) -> list[Callable[[], object]]:
        """Return faults of connections and servers, each as often as it is likely."""
        cut, foreign = (
            partial(self._cut, random),
            partial(self._take_as_foreign, random),
        )
        return [cut, cut, foreign, foreign, partial(self._set_back, random)]

    def _take_as_foreign(self, random: Random) -> None:
        """Let another program have the mutex record, if it is free, for a while."""
        resource, ticket = Resource("a", "1"), f"program-{random.randrange(10**9)}"
        value, now = f"{ticket},1700000000", self.now()
        seat = self.seats.get(resource)
        if seat is not None and (seat.expires is None or seat.expires > now):
            return
        self.seats[resource] = MutexRecord(value)
        seconds = random.uniform(0.1, 2.0)
        self.foreign[resource.label] = self.world.now + seconds
        self.world.tell(f"another program has {resource.label} for {seconds:.3f} s")

        def leave() -> None:
            found = self.seats.get(resource)
            if found is None or found.value != value:
                self.world.fail(f"the record of another program is {found} now")
            else:
                del self.seats[resource]

        self.world.after(seconds, leave)

    def _set_back(self, random: Random) -> None:
        seconds = random.uniform(0.1, 3.0)
        self.world.tell(f"the server's clock is set back by {seconds:.3f} s")
        self.ahead -= seconds

    def set_forward(self, random: Random) -> None:
        """Let grants end sooner than their holders believe: only fences help."""
        seconds = random.uniform(0.1, 3.0)
        self.world.tell(f"the server's clock is set forward by {seconds:.3f} s")
        self.ahead += seconds
        now = self.world.now
        self._jumps.append((now, now + seconds + LEARNS_SECONDS))

    def _cut(self, random: Random) -> None:
        for store in self._a_store(random):
            link = random.choice([store.main, store.keeper])
            link.break_down("a fault of the network")

    def part(self, random: Random) -> None:
        """Keep a process and the server from each other for a while."""
        for store in self._a_store(random):
            until = self.world.now + random.uniform(0.5, 4.0)
            for link in (store.main, store.keeper):
                link.away_until = until
                link.break_down("the network is away")

    def _a_store(self, random: Random) -> list[StoreLinks]:
        stores = [s for s in self.stores.values() if not s.process.dead]
        return [random.choice(stores)] if stores else []

    def connect(
        self,
        process: SimulatedProcess,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> StoreBase:
        return SimulatedStore(self, process, loop, wake, settings)

    def left_behind(self) -> None:
        """Fail the run if what a process has given up is still there.

        What was in a request that came too late to be given up ends with its lease.
        """
        clients = self.processes_of_clients()
        names = {process.name: process for process in clients.values()}
        for resource, (record, now) in self.held().items():
            for grant in record.grants:
                process = names[grant.who.task.partition(".")[0]]
                if not (grant.dead(now) or process.dead or process.haunted):
                    self.world.fail(f"{grant.who.task} has left {resource} held")
            for entry in record.queue:
                process = clients[entry.client_id]
                alive = entry.expires > now
                # If its connection was lost, an entry that gets nothing may expire.
                if alive and not (process.dead or process.was_cut):
                    self.world.fail(f"{process.name} has left an entry at {resource}")

    def _send_message(
        self, store: SimulatedStore, resource: Resource, pushed: PushedGrant | None
    ) -> None:
        random, network = self.world.random, self.network
        if random.random() < network.message_lost:
            self.world.tell(f"server: a message to {store.process.name} is lost")
            return
        copies = 2 if random.random() < network.message_doubled else 1
        for _ in range(copies):
            delay = random.uniform(*QUICK)
            if random.random() < network.message_late:
                delay += random.uniform(0.0, 1.5)
            said = pushed
            if random.random() < network.message_forged:
                said = self._forged(pushed)
                self.world.tell(f"somebody forges a message to {store.process.name}")
            store.hear(resource, said, self.world.now + delay)

    def _forged(self, pushed: PushedGrant | None) -> PushedGrant:
        # By somebody who knows all but the ticket: or a true one with a later end.
        if pushed is not None:
            return replace(pushed, expires=pushed.expires + micros(5.0))
        now = self.now()
        return PushedGrant(now, now, now + micros(5.0), "0" * 40)


Deliver = Callable[[Callable[[], object], float], object]
"""Calls a function at a time: in the process's loop, or in any thread of it."""


class Link:
    """One connection of a store to the server."""

    def __init__(self, store: StoreLinks, name: str, deliver: Deliver) -> None:
        self._store = store
        self._deliver = deliver
        self._world = store.process.world
        self._server = store.server
        self._name = f"{store.process.name}'s {name} connection"
        self.is_open = True
        self.away_until = 0.0
        self._under_way: dict[int, Callable[[BackendUnavailable], object]] = {}
        self._number = 0
        self._last_there = 0.0
        self._last_back = 0.0

    def send(
        self,
        what: Callable[[], Any],
        answered: Callable[[Any], object],
        failed: Callable[[BackendUnavailable], object],
    ) -> None:
        """Have the server call ``what()``, and this process one of the others."""
        process = self._store.process
        process.perhaps_stall()
        if not self.is_open:
            self._store.last_refused = process.time
            failed(BackendUnavailable(what="not connected", nothing_done=True))
            return
        self._number += 1
        number = self._number
        self._under_way[number] = failed
        # In order, as a stream of bytes.
        there = max(self._last_there, process.time + self._delay())
        self._last_there = there
        self._world.at(there, partial(self._arrive, number, what, answered))
        self._deliver(partial(self._too_late, number), process.time + REQUEST_TIMEOUT)

    def cut(self, why: str) -> None:
        """Lose the connection: no request under way gets a reply."""
        if not self.is_open:
            return
        self._world.tell(f"{self._name} is cut: {why}")
        self.is_open, self._store.process.was_cut = False, True
        under_way, self._under_way = self._under_way, {}
        if under_way:
            self._store.last_refused = self._store.process.time
        for failed in under_way.values():
            failed(BackendUnavailable(what=f"the connection was cut: {why}"))
        seconds = self._world.random.uniform(*REPAIR_SECONDS)
        repaired = max(self._store.process.time + seconds, self.away_until)
        self._deliver(self._repaired, repaired)

    def break_down(self, why: str) -> None:
        """Cut the connection as soon as the process runs."""
        self._deliver(partial(self.cut, why), 0.0)

    def _repaired(self) -> None:
        self.is_open = True
        self._world.tell(f"{self._name} is back")
        self._store.connected_again(self)

    def _delay(self) -> float:
        random = self._world.random
        slow = random.random() < self._server.network.slow
        return random.uniform(*(SLOW if slow else QUICK))

    def _arrive(
        self, number: int, what: Callable[[], Any], answered: Callable[[Any], object]
    ) -> None:
        server, world = self._server, self._world
        if server.busy_until > world.now:
            again = partial(self._arrive, number, what, answered)
            world.at(server.busy_until, again)
            return
        if number not in self._under_way:
            # Cut meanwhile: the bytes are lost, or come late, after newer requests.
            if world.random.random() < 0.5:
                self._store.process.haunted = True
                late = world.random.uniform(0.0, LATEST_GHOST)
                world.after(late, partial(self._ghost, what))
            return
        reply = what()
        back = max(self._last_back, world.now + self._delay())
        self._last_back = back
        self._deliver(partial(self._answer, number, reply, answered), back)

    def _ghost(self, what: Callable[[], Any]) -> None:
        self._world.tell(f"a late request of {self._name} is carried out")
        what()

    def _answer(
        self, number: int, reply: object, answered: Callable[[Any], object]
    ) -> None:
        if self._under_way.pop(number, None) is not None:
            answered(reply)
            self._store.process.perhaps_interrupt()

    def _too_late(self, number: int) -> None:
        if number in self._under_way:
            self.cut("no reply in time")


class StoreLinks:
    """The connections of one ``Locks`` to the server."""

    def __init__(
        self,
        server: SimulatedServer,
        process: SimulatedProcess,
        settings: StoreSettings,
    ) -> None:
        self.server = server
        self.process = process
        self.client_id = settings.client_id
        self._leaving_since = 0.0
        self.last_refused = 0.0
        """When a request was last lost, or not sent for lack of a connection."""
        self.main = Link(self, "main", process.in_loop)
        self.keeper = Link(self, "keeper's", process.run_soon)
        server.stores[self.client_id] = self
        server.all_stores.append(self)

    def revive(self) -> None:
        self.main.is_open = self.keeper.is_open = True

    def begin_to_leave(self) -> None:
        self._leaving_since = self.process.time

    def leave(self) -> None:
        # What could not be given up on the way out ends with its lease.
        if self._leaving_since - self.last_refused < LAST_WORDS:
            self.process.haunted = True
        self.server.stores.pop(self.client_id, None)

    def connected_again(self, link: Link) -> None:
        raise NotImplementedError


class SimulatedStore(StoreBase, StoreLinks):
    """What the library sees of a server that runs the core: ``StoreBase``."""

    capabilities: Capability = (
        Capability.NOTIFIES
        | Capability.MANY_PROCESSES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUSHES
    )
    poll_policy: PollPolicy = PollPolicy(claim_window=0.3, pushes=True)

    def __init__(
        self,
        server: SimulatedServer,
        process: SimulatedProcess,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        # Messages come by ``SimulatedProcess.in_loop``.
        StoreBase.__init__(self, loop, wake, settings)
        StoreLinks.__init__(self, server, process, settings)
        self._watched: set[Resource] = set()
        self._closed = False

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        pending: Pending[Reply] = Pending()
        carry_out = partial(self.server.carry_out, resource, command)
        self.main.send(carry_out, pending.set_result, pending.set_exception)
        return pending

    def watch(self, resource: Resource) -> None:
        self._watched.add(resource)
        # The subscription: what changed before it is looked at once more.
        self.main.send(lambda: None, partial(self._look, resource), lambda _: None)

    def unwatch(self, resource: Resource) -> None:
        self._watched.discard(resource)

    def hear(self, resource: Resource, pushed: PushedGrant | None, time: float) -> None:
        """Get a message of the server at that time, if there is a connection then."""

        def heard() -> None:
            if self.main.is_open and not self._closed:
                self.wake(resource, 0.0, pushed)
                self.process.perhaps_interrupt()

        self.process.in_loop(heard, time)

    def connected_again(self, link: Link) -> None:
        if link is self.main:
            for resource in sorted(self._watched):
                self._look(resource)

    def _unsent(self, closing: Pending[None]) -> None:
        self.process.haunted = True
        closing.set_result(None)

    def _look(self, resource: Resource, reply: object = None) -> None:
        del reply
        if resource in self._watched and not self._closed:
            self.wake(resource, 0.0)

    async def look(self, resource: Resource) -> Snapshot:
        pending: Pending[Snapshot] = Pending()
        look = partial(self._snapshot, resource)
        self.main.send(look, pending.set_result, pending.set_exception)
        return await pending

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        for resource in sorted(self.server.records):
            if resource_type in (None, resource.type):
                yield await self.look(resource)

    def _snapshot(self, resource: Resource) -> Snapshot:
        server = self.server
        record = server.records.get(resource, Doorman())
        now = server.now()
        return Snapshot(resource, record, server.seats.get(resource), now, now)

    def renewer(self) -> SimulatedRenewer:
        return SimulatedRenewer(self)

    async def aclose(self) -> None:
        self.begin_to_leave()
        # The releases that were sent are answered first.
        pending: Pending[None] = Pending()
        if self.main.is_open:
            done = pending.set_result
            self.main.send(lambda: None, done, lambda _: self._unsent(pending))
            await pending
        else:
            self.process.haunted = True  # its last requests were never sent
        await anyio.lowlevel.checkpoint()
        self._closed = True
        self.leave()


class SimulatedRenewer(RenewerBase):
    """Renews over the keeper's connection; blocks the simulated thread that calls."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self._thread: Any = None
        self._given_up = False

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld]:
        self._thread = thread = current_thread()
        found: list[Grant | NotHeld | BackendUnavailable] = []

        def carry_out() -> list[Grant | NotHeld]:
            outcomes: list[Grant | NotHeld] = []
            for one in batch:
                command = Renew(((one.ticket, one.lease),))
                reply = self._store.server.carry_out(one.resource, command)
                assert isinstance(reply, Renewed)
                outcomes += reply.outcomes
            return outcomes

        def answered(outcomes: list[Grant | NotHeld]) -> None:
            found.extend(outcomes)
            thread.wake()

        def failed(error: BackendUnavailable) -> None:
            found.append(error)
            thread.wake()

        self._store.keeper.send(carry_out, answered, failed)
        if not found:
            thread.wait(timeout)
        if not found or isinstance(found[0], BackendUnavailable):
            raise BackendUnavailable(what="no renewal")
        return [one for one in found if not isinstance(one, BackendUnavailable)]

    def give_up(self) -> None:
        if self._thread is not None:
            self._thread.wake()


@dataclass(frozen=True)
class SimulatedBackend:
    """What a simulated process connects to."""

    server: SimulatedServer
    process: SimulatedProcess

    async def open(
        self, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
    ) -> StoreBase:
        await anyio.sleep(0.001)
        if self.server.busy_until > self.process.world.now:
            raise BackendUnavailable(what="the server hangs")
        return self.server.connect(self.process, loop, wake, settings)
