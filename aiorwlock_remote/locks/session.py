"""What all locks of one ``Locks`` share: the drive, and who of us holds what."""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import Closed, WouldDeadlock
from aiorwlock_remote.locks.info import LockInfo, lock_info
from aiorwlock_remote.locks.observers import AttemptObservers, Observer, begin_attempt
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Snapshot
from aiorwlock_remote.runtime.acquirer import LockAcquirer
from aiorwlock_remote.runtime.event_loop import TaskEventLoop
from aiorwlock_remote.runtime.lease import Lease, LeaseState
from aiorwlock_remote.runtime.request import AcquireRequest
from aiorwlock_remote.runtime.store_client import StoreClient

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


class TrackedGrant(Protocol):
    """What a session knows of a ``HeldState``."""

    face: weakref.ref[object] | None

    def on_lost(self) -> None:
        """It was lost; called in the loop."""

    def close(self, task: object) -> None:
        """Release without waiting: ``task`` closes the ``Locks``."""


class Session:
    """One process, one loop, one connection to a store."""

    def __init__(
        self,
        drive: StoreClient,
        host: TaskEventLoop,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.drive = drive
        self.doors: LockAcquirer = LockAcquirer(drive)
        self.host = host
        self.closed = False
        self._told_of_clock = False
        self.prefix: str = drive.prefix
        self._observers = observers
        self.outlasting: dict[Lease, Callable[[], Awaitable[object]]] = {}
        """Grants whose block was left before their transaction ended: looks at one."""
        self.dropped: deque[Lease] = deque()
        """Grants that nobody can release any more; closing does."""
        self._pid = os.getpid()
        self._grants: dict[Lease, tuple[weakref.ref[Any], TrackedGrant]] = {}
        self._task_ended = host.finished
        self._lost = self._tell
        self._mine: dict[tuple[weakref.ref[Any], Resource], Lease] = {}
        """What each task holds. Those that have ended are equal to no other."""

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that opened it."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Refuse use after close, after a fork, or from another loop.

        Raises:
            Closed: any of these.
        """
        if os.getpid() == self._pid and not self.closed and self.host.here():
            return
        if self.forked:
            raise Closed(reason="forked")
        raise Closed(reason="closed" if self.closed else "other loop")

    def shown(self, snapshot: Snapshot) -> LockInfo:
        """What to show of a snapshot; a clock that was set back is logged once."""
        seen = lock_info(snapshot)
        if seen.clock_set_back and not self._told_of_clock:
            self._told_of_clock = True
            log_event(
                log,
                "store_clock_set_back",
                resource=snapshot.resource.label,
                seconds=seen.clock_set_back,
            )
        return seen

    def asked(self, request: AcquireRequest) -> AttemptObservers:
        """Somebody wants a lock; who is to be told what becomes of that."""
        return begin_attempt(self._observers, request)

    async def may_ask(self, resource: Resource) -> None:
        """Refuse to ask in vain, or for what this very task holds.

        Looks at once whether a transaction that it left holding it has ended.

        Raises:
            WouldDeadlock: it holds the resource, in any mode.
            Closed: as ``check``.
            BackendError: the store failed.
        """
        self.check()
        mine = self._mine.get((self._task(), resource))
        if mine is None:
            return
        look = self.outlasting.get(mine)
        if look is not None:
            await look()
            self.check()
        if mine.expired() or mine.state is not LeaseState.HELD:
            return  # lost, and the loop has not been told yet; or given back
        raise WouldDeadlock(resource=resource.label, held_mode=str(mine.mode))

    def admit(self, grant: TrackedGrant, lease: Lease, *, owned_by_task: bool) -> None:
        """A new grant, looked after by the keeper from now on.

        ``owned_by_task``: it lives as long as the running task, as in ``async with``;
        else as long as something refers to its face.
        """
        self._look_at_dropped()
        task = self._task()
        if owned_by_task:
            lease.owner, lease.owner_gone = task, self._task_ended
        else:
            lease.owner, lease.owner_gone = grant.face, _is_dead
        lease.on_loss = self._lost
        self._mine[task, lease.resource] = lease
        self._grants[lease] = task, grant
        self.drive.keeper.add(lease)

    def forget(self, lease: Lease) -> None:
        """A grant that ended: its task may ask for the resource again."""
        entry = self._grants.pop(lease, None)
        if entry is not None:
            mine = entry[0], lease.resource
            if self._mine.get(mine) is lease:
                del self._mine[mine]

    def grants(self) -> list[TrackedGrant]:
        """Every grant that has not ended."""
        return [grant for _, grant in self._grants.values()]

    def leases(self) -> list[Lease]:
        """Those of every grant that has not ended."""
        return list(self._grants)

    def _look_at_dropped(self) -> None:
        """Two for each new grant, so that those that have ended do not pile up."""
        if not self.dropped:
            return
        for _ in range(min(2, len(self.dropped))):
            lease = self.dropped.popleft()  # a destructor only appends, in any thread
            if not lease.expired():
                self.dropped.append(lease)

    def _task(self) -> weakref.ref[Any]:
        """The running one."""
        return weakref.ref(self.host.current_task())

    def _tell(self, lease: Lease) -> None:
        self.host.call_soon(self._told, lease)

    def _told(self, lease: Lease) -> None:
        entry = self._grants.get(lease)
        if entry is not None:
            entry[1].on_lost()


def _is_dead(face: weakref.ref[Any]) -> bool:
    return face() is None
