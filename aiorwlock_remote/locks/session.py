"""What all locks of one ``Locks`` share: the drive, and who of us holds what."""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import Any, Protocol

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.errors import Closed, WouldDeadlock
from aiorwlock_remote.runtime.drive import Drive
from aiorwlock_remote.runtime.host import LoopHost
from aiorwlock_remote.runtime.lease import Lease, State


class Grant(Protocol):
    """What a session knows of a ``Grip``."""

    face: weakref.ref[object] | None

    def told_lost(self) -> None:
        """It was lost; called in the loop."""

    def give_back(self) -> None:
        """Release without waiting."""


class Session:
    """One process, one loop, one connection to a store."""

    def __init__(self, drive: Drive, host: LoopHost) -> None:
        self.drive = drive
        self.host = host
        self.closed = False
        self._pid = os.getpid()
        self._grants: dict[Grant, tuple[weakref.ref[Any], Lease]] = {}
        self._mine: weakref.WeakKeyDictionary[Any, dict[Resource, Lease]]
        self._mine = weakref.WeakKeyDictionary()

    def check(self) -> None:
        """Refuse use after close, after a fork, or from another loop.

        Raises:
            Closed: any of these.
        """
        if os.getpid() == self._pid and not self.closed and self.host.here():
            return
        if os.getpid() != self._pid:
            raise Closed(reason="forked")
        raise Closed(reason="closed" if self.closed else "other loop")

    def check_deadlock(self, resource: Resource) -> None:
        """Refuse to wait for what this very task holds.

        Raises:
            WouldDeadlock: it holds the resource, in any mode.
        """
        mine = self._mine.get(self.host.current_task())
        lease = None if mine is None else mine.get(resource)
        if mine is None or lease is None:
            return
        if lease.expired() or lease.state is not State.HELD:
            del mine[resource]  # lost, and the loop has not been told yet
            return
        raise WouldDeadlock(resource=resource.label, held_mode=str(lease.mode))

    def admit(self, grant: Grant, lease: Lease, *, owned_by_task: bool) -> None:
        """A new grant, looked after by the keeper from now on.

        ``owned_by_task``: it lives as long as the running task, as in ``async with``;
        else as long as something refers to its face.
        """
        task = self.host.current_task()
        if owned_by_task:
            lease.owner, lease.owner_gone = weakref.ref(task), self.host.finished
        else:
            lease.owner, lease.owner_gone = grant.face, _is_dead
        lease.on_loss = partial(self._tell, weakref.ref(grant))
        self._mine.setdefault(task, {})[lease.resource] = lease
        self._grants[grant] = weakref.ref(task), lease
        self.drive.keeper.add(lease)

    def forget(self, grant: Grant) -> None:
        """A grant that ended: its task may ask for the resource again."""
        if grant not in self._grants:
            return
        to_task, lease = self._grants.pop(grant)
        task = to_task()  # gone, if it ended before its grant
        mine = {} if task is None else self._mine.get(task, {})
        if mine.get(lease.resource) is lease:
            del mine[lease.resource]

    def grants(self) -> list[Grant]:
        """Every grant that has not ended."""
        return list(self._grants)

    def _tell(self, grant: weakref.ref[Grant], lease: Lease) -> None:
        del lease
        self.host.call_soon(_told, grant)


def _is_dead(face: weakref.ref[Any]) -> bool:
    return face() is None


def _told(to_grant: weakref.ref[Grant]) -> None:
    grant = to_grant()
    if grant is not None:
        grant.told_lost()
