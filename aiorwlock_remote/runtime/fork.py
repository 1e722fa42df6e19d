"""Makes a ``Locks`` that was opened before a fork harmless in the child process.

A child process shares its parent's sockets: requests written to them would be taken for
the parent's. So each ``StoreClient`` is disabled once, when the process forks, and no
request has to compare process ids.
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
    """Object to be disabled in forked child processes."""

    def sever(self) -> None:
        """Stop sending requests for ever, because this process is a forked child."""


class ForkedStore:
    """``Store`` of a forked child process: every request fails with ``Closed``."""

    def __init__(self, store: Store) -> None:
        self.capabilities: Capability = store.capabilities
        self.pace: PollPolicy = store.pace

    def step(self, resource: Resource, command: Command) -> Pending[Reply]:
        del resource, command
        return _refused()

    def watch(self, resource: Resource) -> None: ...

    def unwatch(self, resource: Resource) -> None: ...

    async def look(self, resource: Resource) -> Snapshot:
        del resource
        raise Closed(reason="forked")

    def scan(self, resource_type: str | None) -> AsyncIterator[Snapshot]:
        del resource_type
        raise Closed(reason="forked")

    def renewer(self) -> Renewer:
        raise Closed(reason="forked")

    async def aclose(self) -> None: ...


class ForkedMembers:
    """``MutexSetMembers`` of a forked child process: requests fail with ``Closed``."""

    def ask(
        self, asks: Sequence[TakeRequest], entry_ttl: float
    ) -> Pending[TakeReplies]:
        del asks, entry_ttl
        return _refused()

    def withdraw(
        self, places: Sequence[str], tickets: Sequence[str], lease: int
    ) -> Pending[None]:
        del places, tickets, lease
        return _refused()

    def create(self, name: str, lease: int) -> Pending[bool]:
        del name, lease
        return _refused()

    def remove(self, name: str) -> Pending[bool]:
        del name
        return _refused()

    def end(self, ticket: str) -> Pending[Reply]:
        del ticket
        return _refused()

    def names(self) -> AsyncIterator[str]:
        raise Closed(reason="forked")

    def watch(self) -> None: ...

    def unwatch(self) -> None: ...


def _refused() -> Pending[Any]:
    refused: Pending[Any] = Pending()
    refused.set_exception(Closed(reason="forked"))
    return refused


# Weak: a ``Locks`` that was dropped without being closed must not live on by this.
_open: WeakSet[ForkAware] = WeakSet()


def disable_in_children(sender: ForkAware) -> None:
    """Call ``sender.sever()`` in every child process that this process forks."""
    _open.add(sender)


def _sever_all() -> None:
    # A copy: the garbage collector may run amid the loop and shrink the set.
    for sender in list(_open):
        sender.sever()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_sever_all)
