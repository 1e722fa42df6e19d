"""What all locks of one ``Locks`` share: the drive, and who of us holds what."""

from __future__ import annotations

import os
import weakref
from functools import partial
from typing import Any, Literal, Protocol

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.errors import Closed, WouldDeadlock
from aiorwlock_remote.runtime.drive import Drive
from aiorwlock_remote.runtime.host import LoopHost
from aiorwlock_remote.runtime.lease import Lease


class Grant(Protocol):
    """What a session knows of a ``Held``."""

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
        self._tasks: dict[weakref.ref[Grant], tuple[weakref.ref[Any], Resource]] = {}
        self._mine: weakref.WeakKeyDictionary[Any, dict[Resource, Mode]]
        self._mine = weakref.WeakKeyDictionary()

    def check(self) -> None:
        """Refuse use after close, after a fork, or from another loop.

        Raises:
            Closed: any of these.
        """
        reason: Literal["closed", "forked", "other loop"] | None = None
        if os.getpid() != self._pid:
            reason = "forked"
        elif self.closed:
            reason = "closed"
        elif not self.host.here():
            reason = "other loop"
        if reason is not None:
            raise Closed(reason=reason)

    def check_deadlock(self, resource: Resource) -> None:
        """Refuse to wait for what this very task holds.

        Raises:
            WouldDeadlock: it holds the resource, in any mode.
        """
        mine = self._mine.get(self.host.current_task())
        if mine is not None and resource in mine:
            raise WouldDeadlock(resource=resource.label, held_mode=str(mine[resource]))

    def admit(self, held: Grant, lease: Lease, *, owned_by_task: bool) -> None:
        """A new grant, looked after by the keeper from now on.

        ``owned_by_task``: it lives as long as the running task, as in ``async with``;
        else as long as something refers to ``held``.
        """
        task = self.host.current_task()
        to_held = weakref.ref(held, self._dropped)
        if owned_by_task:
            lease.owner, lease.owner_gone = weakref.ref(task), self.host.finished
        else:
            lease.owner, lease.owner_gone = to_held, _is_dead
        lease.on_loss = partial(_tell, self.host, to_held)
        self._mine.setdefault(task, {})[lease.resource] = lease.mode
        self._tasks[to_held] = weakref.ref(task), lease.resource
        self.drive.keeper.add(lease)

    def forget(self, held: Grant) -> None:
        """A grant that ended: its task may ask for the resource again."""
        self._dropped(weakref.ref(held))

    def held(self) -> list[Grant]:
        """Every grant that has not ended."""
        return [held for ref in list(self._tasks) if (held := ref()) is not None]

    def _dropped(self, to_held: weakref.ref[Grant]) -> None:
        to_task, resource = self._tasks.pop(to_held, (None, None))
        task = None if to_task is None else to_task()
        if task is None or resource is None:
            return  # ended before, or its task has
        mine = self._mine.get(task)
        if mine is not None:
            mine.pop(resource, None)


def _is_dead(held: weakref.ref[Any]) -> bool:
    return held() is None


def _tell(host: LoopHost, to_held: weakref.ref[Grant], lease: Lease) -> None:
    del lease
    host.call_soon(_told, to_held)


def _told(to_held: weakref.ref[Grant]) -> None:
    held = to_held()
    if held is not None:
        held.told_lost()
