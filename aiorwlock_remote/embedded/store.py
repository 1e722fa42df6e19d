"""A store in files, as the event loop sees it: nothing here blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import nullcontext
from random import uniform

from aiorwlock_remote._util.purge import EveryNth, Key, Purger
from aiorwlock_remote.core.commands import Command, NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import PollPolicy
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
    Snapshot,
    StoreSettings,
    WakeCallback,
)

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")

KEPT_TIMEOUT = 0.2
"""Seconds for which a batch of renewals waits for records that are kept locked."""
KEPT_PAUSE = 0.0002, 0.002
"""Seconds between two tries, at random."""
FORGET_EVERY = 4096
"""Steps after which what nobody uses any more is looked for."""


class EmbeddedStore:
    """A worker thread for steps, a watcher thread while somebody waits."""

    capabilities: Capability = (
        Capability.MANY_PROCESSES
        | Capability.NOTIFIES
        | Capability.OFF_LOOP_RENEWAL
        | Capability.PUBLISHED_LAYOUT
    )
    pace: PollPolicy = PollPolicy()
    one_lock: bool = False
    """Whether all steps need the same lock of the system."""

    def __init__(
        self,
        connect: Callable[[], LocalConnection],
        name: str,
        host: EventLoop,
        bell: WakeCallback,
        settings: StoreSettings,
        rhythm: WatchIntervals | None = None,
    ) -> None:
        """``connect`` makes one that the worker, the watcher or the keeper opens."""
        self._connect = connect
        self._host = host
        self._settings = settings
        self._bell = bell
        self._first = RenewalsFirst() if self.one_lock else None
        self._worker = Worker(connect(), host, name, self._wakes, self._first)
        self._watcher = ChangeWatcher(
            connect(), settings.client_id, host, bell, rhythm or WatchIntervals()
        )
        self._forgets = EveryNth(FORGET_EVERY)
        self._forgetting = Purger(self._forgotten, host.spawn)

    async def open(self) -> None:
        """Open it; see ``LocalConnection.open``."""
        timeout = self._settings.connect_timeout
        try:
            await self._worker.call(lambda connection: connection.open(timeout))
        except BaseException:
            self._worker.close().log_failure()
            raise

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Queue one step for the worker."""
        if self._forgets.now():
            self._forgetting.begin(resource.row)
        return self._worker.step(resource, command)

    def watch(self, resource: Resource) -> None:
        """Ring when it may be free for us."""
        self._watcher.watch(resource)

    def unwatch(self, resource: Resource) -> None:
        """Not any more."""
        self._watcher.unwatch(resource)

    async def look(self, resource: Resource) -> Snapshot:
        """The resource as it stands."""
        snapshot = await self._worker.call(lambda c: c.look(resource), resource)
        assert isinstance(snapshot, Snapshot)
        return snapshot

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All resources with a record or a seat."""
        seen: Seen = {}
        try:
            await self._worker.call(lambda c: c.scan(seen))
        except KeptLocked as exc:  # the others are to be seen all the same
            log_event(log, "record_kept_locked", error=str(exc))
        for snapshot in seen.values():
            if snapshot and resource_type in (None, snapshot.resource.type):
                yield snapshot

    def renewer(self) -> ConnectionRenewer:
        """Renews over a connection of its own."""
        return ConnectionRenewer(self._connect(), self._host.clock, self._first)

    async def aclose(self) -> None:
        """Finish what is queued and close the connection."""
        self._watcher.close()
        await self._forgetting.end()
        await self._worker.close()

    async def _forgotten(self, after: Key) -> Key | None:
        memory = self._settings.fence_memory
        last: Key | None = await self._worker.call(lambda c: c.forget(memory, after))
        return last

    def _wakes(self, resource: Resource, gates: tuple[str, ...]) -> None:
        if self._settings.client_id in gates:  # the watcher may not see what we did
            self._bell(resource, 0.0)


class ConnectionRenewer:
    """Renewals of the keeper's thread."""

    def __init__(
        self,
        connection: LocalConnection,
        clock: Clock,
        first: RenewalsFirst | None = None,
    ) -> None:
        """Opens the connection at the first renewal. ``first``: as of ``Worker``."""
        self._connection = connection
        self._clock = clock
        self._renewing = nullcontext if first is None else first.renewing
        self._open = False

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Renew all in one batch.

        Those whose record another process keeps locked are tried again for a moment;
        the others' leases must not run out meanwhile, as nobody has been told yet that
        they were renewed.
        """
        timeout = min(timeout, BUSY_TIMEOUT)
        until = self._clock.now() + min(timeout, KEPT_TIMEOUT)
        if not self._open:
            self._connection.open(timeout)
            self._open = True
        commands = [(r.resource, Renew(((r.ticket, r.lease),))) for r in batch]
        with self._renewing():
            return self._carried_out(commands, timeout, until)

    def _carried_out(
        self, commands: Sequence[tuple[Resource, Command]], timeout: float, until: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        steps = self._connection.steps(commands, timeout)
        while True:
            kept = [n for n, step in enumerate(steps) if isinstance(step, KeptLocked)]
            if not kept or self._clock.now() >= until:
                return [_renewed(step) for step in steps]
            time.sleep(uniform(*KEPT_PAUSE))
            again = self._connection.steps([commands[n] for n in kept], timeout)
            for number, step in zip(kept, again, strict=True):
                steps[number] = step

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _renewed(step: Step | Exception) -> Grant | NotHeld | Exception:
    if isinstance(step, Exception):
        return step
    assert isinstance(step.reply, Renewed)
    (outcome,) = step.reply.outcomes
    return outcome
