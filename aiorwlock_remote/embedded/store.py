"""A store in files, as the event loop sees it: nothing here blocks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from aiorwlock_remote.core.commands import Command, NotHeld, Renew, Renewed, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pauses import Pace
from aiorwlock_remote.core.record import Grant
from aiorwlock_remote.embedded.connection import Connection
from aiorwlock_remote.embedded.watcher import Rhythm, Watcher
from aiorwlock_remote.embedded.worker import BUSY_TIMEOUT, Worker
from aiorwlock_remote.forgetting import Forgetting, Key
from aiorwlock_remote.ports import (
    Bell,
    Capability,
    Host,
    Pending,
    Renewal,
    Settings,
    Snapshot,
)
from aiorwlock_remote.seldom import Seldom

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
    pace: Pace = Pace()

    def __init__(
        self,
        connect: Callable[[], Connection],
        name: str,
        host: Host,
        bell: Bell,
        settings: Settings,
        rhythm: Rhythm | None = None,
    ) -> None:
        """``connect`` makes one that the worker, the watcher or the keeper opens."""
        self._connect = connect
        self._host = host
        self._settings = settings
        self._bell = bell
        self._worker = Worker(connect(), host, name, self._wakes)
        self._watcher = Watcher(
            connect(), settings.gate, host, bell, rhythm or Rhythm()
        )
        self._forgets = Seldom(FORGET_EVERY)
        self._forgetting = Forgetting(self._forgotten, host.spawn)

    async def open(self) -> None:
        """Open it; see ``Connection.open``."""
        timeout = self._settings.connect_timeout
        try:
            await self._worker.call(lambda connection: connection.open(timeout))
        except BaseException:
            self._worker.close().unawaited()
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
        snapshot = await self._worker.call(lambda c: c.look(resource))
        assert isinstance(snapshot, Snapshot)
        return snapshot

    async def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """All resources with a record or a seat."""
        for snapshot in await self._worker.call(lambda c: list(c.scan())):
            if resource_type in (None, snapshot.resource.type):
                yield snapshot

    def renewer(self) -> ConnectionRenewer:
        """Renews over a connection of its own."""
        return ConnectionRenewer(self._connect())

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
        if self._settings.gate in gates:  # the watcher may not see what we did
            self._bell(resource, 0.0)


class ConnectionRenewer:
    """Renewals of the keeper's thread."""

    def __init__(self, connection: Connection) -> None:
        """Opens the connection at the first renewal."""
        self._connection = connection
        self._open = False

    def renew(
        self, batch: Sequence[Renewal], timeout: float
    ) -> Sequence[Grant | NotHeld | Exception]:
        """Renew all in one batch."""
        timeout = min(timeout, BUSY_TIMEOUT)
        if not self._open:
            self._connection.open(timeout)
            self._open = True
        commands = [(r.resource, Renew(((r.ticket, r.lease),))) for r in batch]
        outcomes: list[Grant | NotHeld | Exception] = []
        for step in self._connection.steps(commands, timeout):
            if isinstance(step, Exception):
                outcomes.append(step)
                continue
            assert isinstance(step.reply, Renewed)
            outcomes += step.reply.outcomes
        return outcomes

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
