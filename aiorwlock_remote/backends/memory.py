"""``memory://``: locks among the tasks of one process.

``memory://`` is one store per process, ``memory://name`` another; several ``Locks`` (of
several event loops, in several threads) share it. A forked child begins with empty
stores. For tests, and for programs that will move to another store later.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence

from aiorwlock_remote._util.native import Lock
from aiorwlock_remote._util.purge import EveryNth
from aiorwlock_remote.core.commands import Command, NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.doorman import UNUSED_DOORMAN, Doorman, Grant, MutexRecord
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pushed import PushedGrant
from aiorwlock_remote.core.timing import PollPolicy, micros
from aiorwlock_remote.core.transition import Step, transition
from aiorwlock_remote.core.url import Address
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import (
    Capability,
    Clock,
    EventLoop,
    Pending,
    Renewal,
    RenewerBase,
    Snapshot,
    StoreBase,
    StoreSettings,
    WakeCallback,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

SWEEP_EVERY = 1024
"""Steps, on average, from one purge of unused records to the next."""


class MemoryDatabase:
    """State shared by all ``Locks`` on one ``memory://`` name, protected by a mutex."""

    def __init__(self) -> None:
        self.lock: Lock = Lock()
        self.records: dict[Resource, Doorman] = {}
        self.seats: dict[Resource, MutexRecord] = {}
        # By client id, the function that wakes the client's waiters from any thread.
        self.callbacks: dict[str, Callable[[Resource, PushedGrant | None], None]] = {}

    def step(self, resource: Resource, command: Command, clock: Clock) -> Step:
        with self.lock:
            now, wall = micros(clock.now()), micros(clock.wall())
            seat = self.seats.get(resource)
            if seat is not None and _is_expired(seat, now):
                seat = None
            step = transition(
                *(self.records.get(resource), seat, command, now, wall),
                semaphore=resource.is_semaphore,
            )
            self.records[resource] = step.record
            if step.seat is None:
                self.seats.pop(resource, None)
            else:
                self.seats[resource] = step.seat
            return step

    def sweep(self, now: int, wall: int, memory: float) -> None:
        """Remove the free resources that were not used in the last ``memory`` seconds.

        ``now`` and ``wall``: present time of the boot clock and of the wall clock, in
        microseconds.
        """
        with self.lock:
            before = len(self.records)
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
            purged = before - len(self.records)
        if purged:
            log_event(log, "record_purged", logging.DEBUG, records=purged)


def _is_expired(seat: MutexRecord, now: int) -> bool:
    return seat.expires is not None and seat.expires <= now


_databases: dict[str, MemoryDatabase] = {}
_databases_lock = Lock()


def named_database(name: str) -> MemoryDatabase:
    """Return this process's database of that name, created at the first call."""
    with _databases_lock:
        return _databases.setdefault(name, MemoryDatabase())


def _reset_in_child() -> None:
    # The parent's holders do not run in the child, and another thread of the parent may
    # have held the lock at the fork (test_memory_forked.py).
    global _databases_lock  # noqa: PLW0603 - a module has no other way to do it
    _databases_lock = Lock()
    _databases.clear()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_reset_in_child)


class MemoryStore(StoreBase):
    """The store of one ``Locks``, as client of a database that others may share."""

    capabilities: Capability = (
        Capability.NOTIFIES | Capability.OFF_LOOP_RENEWAL | Capability.PUSHES
    )
    poll_policy: PollPolicy = PollPolicy(claim_window=0.3, pushes=True)

    def __init__(
        self,
        database: MemoryDatabase,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
    ) -> None:
        super().__init__(loop, wake, settings)
        self._database = database
        self._sweep_due = EveryNth(SWEEP_EVERY)
        with database.lock:
            database.callbacks[self.settings.client_id] = self._wake_from_any_thread

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        clock = self.event_loop.clock
        step = self._database.step(resource, command, clock)
        if self._sweep_due.now():
            now, wall = micros(clock.now()), micros(clock.wall())
            self._database.sweep(now, wall, self.settings.fence_memory)
        pushed = None if step.pushed is None else PushedGrant.of(step.pushed)
        for client_id in step.wakes:
            callback = self._database.callbacks.get(client_id)
            if callback is not None:
                callback(resource, pushed)
        pending: Pending[Reply] = Pending()
        pending.set_result(step.reply)
        return pending

    async def look(self, resource: Resource) -> Snapshot:
        with self._database.lock:
            return self._snapshot(resource)

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        with self._database.lock:
            names = {*self._database.records, *self._database.seats}
            found = [self._snapshot(name) for name in sorted(names)]
        for snapshot in found:
            if resource_type in (None, snapshot.resource.type):
                yield snapshot

    def renewer(self) -> RenewerBase:
        return MemoryRenewer(self._database, self.event_loop.clock)

    async def aclose(self) -> None:
        with self._database.lock:
            self._database.callbacks.pop(self.settings.client_id, None)

    def _wake_from_any_thread(
        self, resource: Resource, pushed: PushedGrant | None
    ) -> None:
        self.event_loop.call_soon(self.wake, resource, 0.0, pushed)

    def _snapshot(self, resource: Resource) -> Snapshot:
        clock = self.event_loop.clock
        record = self._database.records.get(resource, UNUSED_DOORMAN)
        seat = self._database.seats.get(resource)
        return Snapshot(
            resource, record, seat, micros(clock.now()), micros(clock.wall())
        )


class MemoryRenewer(RenewerBase):
    """Renews grants for the lease keeper's thread, under the database's mutex."""

    def __init__(self, database: MemoryDatabase, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld]:
        del timeout
        outcomes: list[Grant | NotHeld] = []
        for item in batch:
            command = Renew(((item.ticket, item.lease),))
            reply = self._database.step(item.resource, command, self._clock).reply
            assert isinstance(reply, Renewed)
            outcomes += reply.outcomes
        return outcomes


async def open_store(
    address: Address, loop: EventLoop, wake: WakeCallback, settings: StoreSettings
) -> MemoryStore:
    """Open the store of a URL ``memory://`` or ``memory://name``.

    Raise ``ConfigurationError`` if the URL has a user, a port, a path or an option.
    """
    address.only()
    if address.path.strip("/") or address.port or address.username:
        raise ConfigurationError(
            what="the URL of a memory store takes a name at most",
            hint="write memory:// or memory://name",
        )
    return MemoryStore(named_database(address.host), loop, wake, settings)
