"""``Session``: what all locks of one ``Locks`` share, such as the store client."""

from __future__ import annotations

import logging
import os
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import Closed, WouldDeadlock
from aiorwlock_remote.locks.info import LockInfo, lock_info
from aiorwlock_remote.locks.observers import (
    NO_OBSERVERS,
    AttemptObservers,
    Observer,
    begin_attempt,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Snapshot
from aiorwlock_remote.runtime.acquirer import LockAcquirer
from aiorwlock_remote.runtime.event_loop import TaskEventLoop
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease, LeaseState
from aiorwlock_remote.runtime.runtime import Runtime
from aiorwlock_remote.runtime.store_client import StoreClient

if TYPE_CHECKING:
    from aiorwlock_remote.locks.held_state import HeldState

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


class Session:
    """Internal state of one ``Locks``: store client, grants and their owners."""

    def __init__(self, client: StoreClient, observers: Sequence[Observer] = ()) -> None:
        self.client = client
        self.runtime: Runtime = client.runtime
        self.loop: TaskEventLoop = client.runtime.loop
        self.acquirer: LockAcquirer = LockAcquirer(client)
        self.closed: bool = False
        self.prefix: str = client.runtime.prefix
        # Grants whose block was left before their transaction ended, each with a
        # function that looks whether it has.
        self.outlasting: dict[Lease, Callable[[], Awaitable[object]]] = {}
        # Grants whose ``Held`` was dropped. A destructor may run in any thread, amid
        # anything, and so only appends here; closing releases them.
        self.dropped: deque[Lease] = deque()
        self._observers = observers
        self._pid = os.getpid()
        self._grants: dict[Lease, tuple[weakref.ref[Any], HeldState]] = {}
        self._task_ended = self.loop.finished
        # Bound methods, made once and not for each grant.
        self._on_loss = self._loss_found
        self._clock_set_back = False
        # What each task holds. References to tasks that have ended equal no other, so
        # that a new task at the same address is not taken for the owner.
        self._mine: dict[tuple[weakref.ref[Any], Resource], Lease] = {}

    @property
    def forked(self) -> bool:
        """Whether this process is a forked child of the one that called ``connect``."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raise ``Closed`` after ``aclose``, after a fork, or in another event loop."""
        # One test for the usual case: this runs in each acquire and each release.
        if os.getpid() == self._pid and not self.closed and self.loop.here():
            return
        if self.forked:
            raise Closed(reason="forked")
        raise Closed(reason="closed" if self.closed else "other loop")

    def shown(self, snapshot: Snapshot) -> LockInfo:
        """Convert a snapshot to a ``LockInfo``; log if the store's clock went back."""
        seen = lock_info(snapshot)
        if seen.clock_set_back and not self._clock_set_back:
            self._clock_set_back = True
            log_event(
                log,
                "store_clock_set_back",
                resource=snapshot.resource.label,
                seconds=seen.clock_set_back,
            )
        return seen

    def asked(self, request: AcquireRequest) -> AttemptObservers:
        if not self._observers:
            return NO_OBSERVERS
        return begin_attempt(self._observers, request)

    async def may_ask(self, resource: Resource) -> None:
        """Raise ``WouldDeadlock`` if the running task holds the resource, in any mode.

        If the task left an ``in_transaction`` block of this resource, check first
        whether that transaction has ended, and if so release its lock. Raise ``Closed``
        as ``check``, and ``BackendError`` if the store failed.
        """
        self.check()
        mine = self._mine.get((self._task(), resource))
        if mine is None:
            return
        look = self.outlasting.get(mine)
        if look is not None:
            await look()
            self.check()
        # A grant that has ended is not in the way, though ``forget`` comes later.
        if mine.expired() or mine.state is not LeaseState.HELD:
            return  # the callback of the loss has not run yet
        raise WouldDeadlock(resource=resource.label, held_mode=str(mine.mode))

    def admit(self, grant: HeldState) -> None:
        """Register a new grant: from now on it is renewed, and its loss is handled. The
        running task becomes its owner if ``grant.owned_by_task``, else the ``Held``.
        """
        self._check_dropped()
        lease, task = grant.lease, self._task()
        if grant.owned_by_task:
            lease.owner, lease.owner_gone = task, self._task_ended
        else:
            lease.owner, lease.owner_gone = grant.face, _is_dead
        lease.on_loss = self._on_loss
        self._mine[task, lease.resource] = lease
        self._grants[lease] = task, grant
        self.client.keeper.add(lease)

    def forget(self, lease: Lease) -> None:
        """Unregister a grant that ended: its task may ask for the resource again."""
        entry = self._grants.pop(lease, None)
        if entry is not None:
            mine = entry[0], lease.resource
            if self._mine.get(mine) is lease:
                del self._mine[mine]

    def grants(self) -> list[HeldState]:
        return [grant for _, grant in self._grants.values()]

    def leases(self) -> list[Lease]:
        return list(self._grants)

    def _check_dropped(self) -> None:
        # Two for each new grant, so that those that have ended do not pile up
        # (test_those_that_ended_do_not_pile_up).
        if not self.dropped:
            return
        for _ in range(min(2, len(self.dropped))):
            lease = self.dropped.popleft()  # a destructor only appends, in any thread
            if not lease.expired():
                self.dropped.append(lease)

    def _task(self) -> weakref.ref[Any]:
        return weakref.ref(self.loop.current_task())

    def _loss_found(self, lease: Lease) -> None:
        # In the thread that found the loss, maybe the keeper's.
        self.loop.call_soon(self._lost, lease)

    def _lost(self, lease: Lease) -> None:
        entry = self._grants.get(lease)
        if entry is not None:
            entry[1].on_lost()


def _is_dead(face: weakref.ref[Any]) -> bool:
    return face() is None
