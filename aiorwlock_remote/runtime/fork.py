"""What a forked child has in place of its parent's store: nothing is sent from there.

The sockets of a child are its parent's: a release, a withdrawal or a look written there
would be taken for the parent's own. Each drive is told once, when a process forks, so
that no request has to ask whose process this is.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol
from weakref import WeakSet

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.commands import Command, Reply
from aiorwlock_remote.core.mutex_set import TakeReplies, TakeRequest
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.timing import PollPolicy
from aiorwlock_remote.errors import Closed
from aiorwlock_remote.ports import Capability, Renewer, Snapshot, Store


class ForkAware(Protocol):
    """What sends to a store."""

    def sever(self) -> None:
        """This process is a forked child: send nothing from now on."""


class ForkedStore:
    """A ``Store`` that refuses everything with ``Closed``."""

    def __init__(self, store: Store) -> None:
        """In place of this one."""
        self.capabilities: Capability = store.capabilities
        self.pace: PollPolicy = store.pace

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        """Refused."""
        del resource, command
        return _refused()

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


class ForkedMembers:
    """``MutexSetMembers`` of a set that refuse everything with ``Closed``."""

    def ask(
        self, asks: Sequence[TakeRequest], entry_ttl: float
    ) -> Pending[TakeReplies]:
        """Refused."""
        del asks, entry_ttl
        return _refused()

    def withdraw(
        self, places: Sequence[str], tickets: Sequence[str], lease: int
    ) -> Pending[None]:
        """Refused."""
        del places, tickets, lease
        return _refused()

    def create(self, name: str, lease: int) -> Pending[bool]:
        """Refused."""
        del name, lease
        return _refused()

    def remove(self, name: str) -> Pending[bool]:
        """Refused."""
        del name
        return _refused()

    def end(self, ticket: str) -> Pending[Reply]:
        """Refused."""
        del ticket
        return _refused()

    def names(self) -> AsyncIterator[str]:
        """Refused."""
        raise Closed(reason="forked")

    def watch(self) -> None:
        """Nothing rings here."""

    def unwatch(self) -> None:
        """Nothing rings here."""


def _refused() -> Pending[Any]:
    refused: Pending[Any] = Pending()
    refused.set_exception(Closed(reason="forked"))
    return refused


_open: WeakSet[ForkAware] = WeakSet()


def disable_in_children(sender: ForkAware) -> None:
    """Have it severed in every child that this process forks."""
    _open.add(sender)


def _sever_all() -> None:
    for sender in list(_open):
        sender.sever()


if hasattr(os, "register_at_fork"):  # not where there is no fork
    os.register_at_fork(after_in_child=_sever_all)
