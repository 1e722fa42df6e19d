"""A store in local files for the event loop: threads do all that blocks."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import nullcontext
from random import uniform

from aiorwlock_remote._util.native import sleep
from aiorwlock_remote._util.purge import EveryNth, Key, Purger
from aiorwlock_remote.core.commands import Command, NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.transition import Step
from aiorwlock_remote.embedded.connection import KeptLocked, LocalConnection, Seen
from aiorwlock_remote.embedded.watcher import ChangeWatcher, WatchIntervals
from aiorwlock_remote.embedded.worker import BUSY_TIMEOUT, RenewalsFirst, Worker
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

KEPT_TIMEOUT = 0.2
"""Seconds for which a batch of renewals waits for records that are kept locked."""
KEPT_PAUSE = 0.0002, 0.002
"""Bounds, in seconds, of the random pause between two tries for such a record."""
PURGE_EVERY = 4096
"""Steps, on average, from one purge of unused records to the next."""


class EmbeddedStore(StoreBase):
    """Store with a worker thread for steps, and a watcher thread while a task waits."""

    capabilities: Capability = (
        Capability.MANY_PROCESSES
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    one_lock: bool = False
    """Whether all steps need the same lock of the system."""

    def __init__(
        self,
        connect: Callable[[], LocalConnection],
        name: str,
        loop: EventLoop,
        wake: WakeCallback,
        settings: StoreSettings,
        intervals: WatchIntervals | None = None,
    ) -> None:
        """Start the worker thread, called ``name``.

        ``connect()`` returns a new connection, not yet open; it is called once for each
        thread that needs one. ``wake(resource, seconds)`` is called in ``loop`` when a
        waiter may be granted after so many seconds. ``intervals`` are the watcher's
        pauses between polls.
        """
        super().__init__(loop, wake, settings)
        self._connect = connect
        self._first = RenewalsFirst() if self.one_lock else None
        self._worker = Worker(connect(), loop, name, self._wake_own, self._first)
        self._intervals = intervals or WatchIntervals()
        self._watcher = ChangeWatcher(
            connect(), settings.client_id, loop, wake, self._intervals
        )
        self._purge_due = EveryNth(PURGE_EVERY)
        self._purger = Purger(self._purge, loop.spawn)

    def connections(self) -> dict[str, str]:
        return {"worker": self._worker.state, "watcher": self._watcher.state}

    @property
    def poll_interval(self) -> tuple[float, float] | None:
        return self._intervals.shortest, self._intervals.longest

    async def open(self) -> None:
        timeout = self.settings.connect_timeout
        try:
            await self._worker.call(lambda connection: connection.open(timeout))
        except BaseException:
            self._worker.close().log_failure()
            raise

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        if self._purge_due.now():
            self._purger.begin(resource.row)
        return self._worker.step(resource, command)

    def watch(self, resource: Resource) -> None:
        self._watcher.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        self._watcher.unwatch(resource)

    async def look(self, resource: Resource) -> Snapshot:
        snapshot = await self._worker.call(lambda c: c.look(resource), resource)
        assert isinstance(snapshot, Snapshot)
        return snapshot

    async def scan(self, resource_type: str | None) -> AsyncGenerator[Snapshot, None]:
        seen: Seen = {}
        try:
            await self._worker.call(lambda c: c.scan(seen))
        except KeptLocked as exc:  # the other resources are shown all the same
            log_event(log, "record_kept_locked", error=str(exc))
        for snapshot in seen.values():
            if snapshot and resource_type in (None, snapshot.resource.type):
                yield snapshot

    def renewer(self) -> RenewerBase:
        return ConnectionRenewer(self._connect(), self.event_loop.clock, self._first)

    async def aclose(self) -> None:
        self._watcher.close()
        await self._purger.end()
        await self._worker.close()

    async def _purge(self, after: Key) -> Key | None:
        memory = self.settings.fence_memory
        last: Key | None = await self._worker.call(lambda c: c.forget(memory, after))
        return last

    def _wake_own(self, resource: Resource, client_ids: tuple[str, ...]) -> None:
        # Other clients' watchers see the change themselves; this client's own watcher
        # may pass over changes of its own process (``InotifyWakeEvent``).
        if self.settings.client_id in client_ids:
            self.wake(resource, 0.0)


class ConnectionRenewer(RenewerBase):
    """Renews leases in the lease keeper's thread, over a connection of its own."""

    def __init__(
        self,
        connection: LocalConnection,
        clock: Clock,
        first: RenewalsFirst | None = None,
    ) -> None:
        """Use ``connection``, opened when needed; ``first`` makes the worker wait."""
        self._connection = connection
        self._clock = clock
        self._renewing = nullcontext if first is None else first.renewing
        self._open = False

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        # Only for a moment: the keeper learns that the other leases were renewed when
        # the whole batch is done, and they must not run out meanwhile
        # (test_mutex_file.py: test_renewals_of_a_batch_do_not_wait_for_one).
        timeout = min(timeout, BUSY_TIMEOUT)
        until = self._clock.now() + min(timeout, KEPT_TIMEOUT)
        if not self._open:
            self._connection.open(timeout)
            self._open = True
        commands = [(r.resource, Renew(((r.ticket, r.lease),))) for r in batch]
        with self._renewing():
            return self._carry_out(commands, timeout, until)

    def _carry_out(
        self, commands: Sequence[tuple[Resource, Command]], timeout: float, until: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        steps = self._connection.steps(commands, timeout)
        while True:
            kept = [n for n, step in enumerate(steps) if isinstance(step, KeptLocked)]
            if not kept or self._clock.now() >= until:
                return [_renewed(step) for step in steps]
            sleep(uniform(*KEPT_PAUSE))
            again = self._connection.steps([commands[n] for n in kept], timeout)
            for number, step in zip(kept, again, strict=True):
                steps[number] = step

    def close(self) -> None:
        self._connection.close()


def _renewed(step: Step | Exception) -> Grant | NotHeld | Exception:
    if isinstance(step, Exception):
        return step
    assert isinstance(step.reply, Renewed)
    (outcome,) = step.reply.outcomes
    return outcome
