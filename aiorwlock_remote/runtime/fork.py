"""Makes a ``Locks`` that was opened before a fork harmless in the child process.

A child process shares its parent's sockets: requests written to them would be taken for
the parent's. So each ``StoreClient`` is disabled once, when the process forks, and no
request has to compare process ids.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from aiorwlock_remote._util.pending import Pending
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.row_dialects import Dialect
from aiorwlock_remote.errors import Closed
from aiorwlock_remote.logs import guarded
from aiorwlock_remote.ports import Capability, PollPolicy, Snapshot, StoreBase

log: logging.Logger = logging.getLogger("aiorwlock_remote.fork")


class ForkAware(Protocol):
    """Object to be disabled in forked child processes."""

    def sever(self) -> None:
        """Stop sending requests for ever, because this process is a forked child.

        The thread that forked may have no event loop, so none may be called.
        """


def _refused(*_: Any, **__: Any) -> Pending[Any]:  # noqa: ANN401 - takes what any method does
    refused: Pending[Any] = Pending()
    refused.set_exception(Closed(reason="forked"))
    return refused


def _raises(*_: Any, **__: Any) -> Any:  # noqa: ANN401 - likewise
    raise Closed(reason="forked")


def _ignored(*_: Any, **__: Any) -> None:  # noqa: ANN401 - likewise
    """Ignore a call that needs no answer: the child process has no connection."""


class ForkedMembers:
    """``MutexSetMembers`` of a forked child process: requests fail with ``Closed``."""

    ask: Callable[..., Pending[Any]] = staticmethod(_refused)
    withdraw: Callable[..., Pending[Any]] = staticmethod(_refused)
    create: Callable[..., Pending[Any]] = staticmethod(_refused)
    remove: Callable[..., Pending[Any]] = staticmethod(_refused)
    end: Callable[..., Pending[Any]] = staticmethod(_refused)
    watch: Callable[..., None] = staticmethod(_ignored)
    unwatch: Callable[..., None] = staticmethod(_ignored)
    names: Callable[..., Any] = staticmethod(_raises)


def _forked_members(*_: object) -> ForkedMembers:
    return ForkedMembers()


class ForkedStore(StoreBase):
    """Store of a forked child process: every request fails with ``Closed``."""

    step: Callable[..., Pending[Any]] = staticmethod(_refused)
    scan: Callable[..., Any] = staticmethod(_raises)
    renewer: Callable[..., Any] = staticmethod(_raises)
    carry: Callable[..., Pending[Any]] = staticmethod(_refused)
    members: Callable[..., Any] = staticmethod(_forked_members)
    check_pair: Callable[..., None] = staticmethod(_ignored)
    occupations: Callable[..., Any] = staticmethod(_raises)

    def __init__(self, store: StoreBase) -> None:
        super().__init__(store.event_loop, store.wake, store.settings)
        self.capabilities: Capability = store.capabilities
        self.poll_policy: PollPolicy = store.poll_policy

    @property
    def dialect(self) -> Dialect:
        raise Closed(reason="forked")

    async def look(self, resource: Resource) -> Snapshot:
        del resource
        raise Closed(reason="forked")

    async def join(self, resource: Resource, ticket: str, transaction: object) -> None:
        del resource, ticket, transaction
        raise Closed(reason="forked")

    async def joined(self, resource: Resource, ticket: str) -> bool:
        del resource, ticket
        raise Closed(reason="forked")


# Weak: a ``Locks`` that was dropped without being closed must not live on by this.
_open: WeakSet[ForkAware] = WeakSet()


def disable_in_children(sender: ForkAware) -> None:
    """Call ``sender.sever()`` in every child process that this process forks."""
    _open.add(sender)


def _sever_all() -> None:
    # A copy: the garbage collector may run amid the loop and shrink the set. One that
    # fails must not spare the others: two processes would use their sockets
    # (test_a_client_that_cannot_be_severed_spares_the_others_nothing).
    for sender in list(_open):
        guarded(log, "sever_failed", sender.sever)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_sever_all)
