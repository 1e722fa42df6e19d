"""What a forked child has in place of its parent's store: nothing is sent from there.

The sockets of a child are its parent's: a release, a withdrawal or a look written there
would be taken for the parent's own. Each drive is told once, when a process forks, so
that no request has to ask whose process this is.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Protocol
from weakref import WeakSet

from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pauses import Pace
from aiorwlock_remote.errors import Closed
from aiorwlock_remote.pending import Pending
from aiorwlock_remote.ports import Capability, Renewer, Snapshot, Store


class Severable(Protocol):
    """What sends to a store."""

    def sever(self) -> None:
        """This process is a forked child: send nothing from now on."""


class Severed:
    """A ``Store`` that refuses everything with ``Closed``."""

    def __init__(self, store: Store) -> None:
        """In place of this one."""
        self.capabilities: Capability = store.capabilities
        self.pace: Pace = store.pace

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Refused."""
        del resource, command
        refused: Pending[Reply] = Pending()
        refused.fail(Closed(reason="forked"))
        return refused

    def watch(self, resource: Resource) -> None:
        """No bell rings here."""

    def unwatch(self, resource: Resource) -> None:
        """No bell rings here."""

    async def look(self, resource: Resource) -> Snapshot:
        """Refused."""
        del resource
        raise Closed(reason="forked")

    def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        """Refused."""
        del resource_type
        raise Closed(reason="forked")

    def renewer(self) -> Renewer:
        """Refused."""
        raise Closed(reason="forked")

    async def aclose(self) -> None:
        """Nothing: what was opened is the parent's."""


_open: WeakSet[Severable] = WeakSet()


def sever_in_children(sender: Severable) -> None:
    """Have it severed in every child that this process forks."""
    _open.add(sender)


def _sever_all() -> None:
    for sender in list(_open):
        sender.sever()


if hasattr(os, "register_at_fork"):  # not where there is no fork
    os.register_at_fork(after_in_child=_sever_all)
