"""``memory://`` — locks among the tasks of one process.

``memory://`` is one store per process, ``memory://name`` another; several ``Locks`` (of
several event loops, in several threads) share it. A forked child begins with empty
ones. For tests, and for programs that are to move to a real store later.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence

from aiorwlock_remote._util.purge import EveryNth
from aiorwlock_remote.core.commands import Command, NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, Grant, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import PollPolicy, micros
from aiorwlock_remote.core.transition import Step, transition
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.ports import (
    Capability,
    Clock,
    EventLoop,
    Pending,
    Renewal,
    Snapshot,
    StoreSettings,
    WakeCallback,
)

SWEEP_EVERY = 1024
"""Steps after which records that nobody uses any more are looked for."""


class MemoryDatabase:
    """What one name's store holds; shared by its ``Locks``, guarded by a lock."""

    def __init__(self) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.records: dict[Resource, Doorman] = {}
        self.seats: dict[Resource, MutexRecord] = {}
        self.bells: dict[str, Callable[[Resource], None]] = {}

    def step(self, resource: Resource, command: Command, clock: Clock) -> Step:
        """One atomic step."""
        with self.lock:
            now, wall = micros(clock.now()), micros(clock.wall())
            seat = self.seats.get(resource)
            if seat is not None and _is_expired(seat, now):
                seat = None
            step = transition(self.records.get(resource), seat, command, now, wall)
            self.records[resource] = step.record
            if step.seat is None:
                self.seats.pop(resource, None)
            else:
                self.seats[resource] = step.seat
            return step

    def sweep(self, now: int, wall: int, memory: float) -> None:
        """Forget records that nobody used for ``memory`` seconds, and their seats."""
        with self.lock:
            self.records = {
                resource: record
                for resource, record in self.records.items()
                if record.updated > wall - micros(memory)
                or any(not grant.dead(now) for grant in record.grants)
            }
            self.seats = {
                resource: seat
                for resource, seat in self.seats.items()
                if resource in self.records or not _is_expired(seat, now)
            }


def _is_expired(seat: MutexRecord, now: int) -> bool:
    return seat.expires is not None and seat.expires <= now


_databases: dict[str, MemoryDatabase] = {}
_databases_lock = threading.Lock()


def named_database(name: str) -> MemoryDatabase:
    """The store of that name in this process."""
    with _databases_lock:
        return _databases.setdefault(name, MemoryDatabase())


def _reset_in_child() -> None:
    """In a forked child: its parent's grants are not there, nor who had the locks."""
    global _databases_lock  # noqa: PLW0603 - a module has no other way to do it
    _databases_lock = threading.Lock()
    _databases.clear()


if hasattr(os, "register_at_fork"):  # not where there is no fork
    os.register_at_fork(after_in_child=_reset_in_child)


class MemoryStore:
    """One ``Locks``' way to a shelf."""

    capabilities: Capability = Capability.NOTIFIES | Capability.OFF_LOOP_RENEWAL
    pace: PollPolicy = PollPolicy()

    def __init__(
        self,
        shelf: MemoryDatabase,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        """Rings ``bell`` in the host's loop for the places of ``settings.gate``."""
        self._shelf = shelf
        self._host = host
        self._memory = settings.fence_memory
        self._gate = settings.client_id
        self._bell = bell
        self._sweeps = EveryNth(SWEEP_EVERY)
        with shelf.lock:
            shelf.bells[self._gate] = self._ring_from_anywhere

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Carried out before it returns."""
        clock = self._host.clock
        step = self._shelf.step(resource, command, clock)
        if self._sweeps.now():
            self._shelf.sweep(micros(clock.now()), micros(clock.wall()), self._memory)
        for gate in step.wakes:
            wake = self._shelf.bells.get(gate)
            if wake is not None:
                wake(resource)
        pending: Pending[Reply] = Pending()
        pending.set_result(step.reply)
        return pending

    def watch(self, resource: Resource) -> None:
        """Nothing to do: steps ring the bells of those they wake."""

    def unwatch(self, resource: Resource) -> None:
        """Nothing to do."""

    async def look(self, resource: Resource) -> Snapshot:
        """The resource as it stands."""
        with self._shelf.lock:
            return self._snapshot(resource)

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All resources that are held or waited for."""
        with self._shelf.lock:
            names = {*self._shelf.records, *self._shelf.seats}
            found = [self._snapshot(name) for name in sorted(names)]
        for snapshot in found:
            if resource_type in (None, snapshot.resource.type):
                yield snapshot

    def renewer(self) -> MemoryRenewer:
        """Renews under the shelf's lock."""
        return MemoryRenewer(self._shelf, self._host.clock)

    async def aclose(self) -> None:
        """Nobody to be woken any more."""
        with self._shelf.lock:
            self._shelf.bells.pop(self._gate, None)

    def _ring_from_anywhere(self, resource: Resource) -> None:
        self._host.call_soon(self._bell, resource, 0.0)

    def _snapshot(self, resource: Resource) -> Snapshot:
        clock = self._host.clock
        record = self._shelf.records.get(resource, UNUSED_DOORMAN)
        seat = self._shelf.seats.get(resource)
        return Snapshot(
            resource, record, seat, micros(clock.now()), micros(clock.wall())
        )


class MemoryRenewer:
    """Renewals of the keeper's thread."""

    def __init__(self, shelf: MemoryDatabase, clock: Clock) -> None:
        """Works on a shelf."""
        self._shelf = shelf
        self._clock = clock

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld]:
        """Renew all; never waits, so ``timeout`` is not needed."""
        del timeout
        outcomes: list[Grant | NotHeld] = []
        for item in batch:
            command = Renew(((item.ticket, item.lease),))
            reply = self._shelf.step(item.resource, command, self._clock).reply
            assert isinstance(reply, Renewed)
            outcomes += reply.outcomes
        return outcomes

    def close(self) -> None:
        """Nothing was opened."""


async def open_store(
    address: Address, host: EventLoop, bell: WakeCallback, settings: StoreSettings
) -> MemoryStore:
    """Open ``memory://`` or ``memory://name``.

    Raises:
        ConfigurationError: a user, port, path or option in the URL.
    """
    address.only()
    if address.path.strip("/") or address.port or address.username:
        raise ConfigurationError(
            what="memory:// takes a name at most", hint="memory:// or memory://name"
        )
    return MemoryStore(named_database(address.host), host, bell, settings)
