"""Faults planted into the clients of a soak, which it has to find on every store.

Each breaks one promise of the library in the client, so that no store can prevent it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from aiorwlock_remote.core.commands import Command, ForceRelease, Release
from aiorwlock_remote.core.doorman import Grant
from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.core.value import replace
from aiorwlock_remote.runtime import lease, lease_keeper
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.lease_keeper import RenewalWorker
from aiorwlock_remote.runtime.store_client import StoreClient
from aiorwlock_remote.runtime.wait_queue import TaskWaiter, WaitQueue

OTHER_NAMES = "other-names"
"""The last process locks other names than it says: no part of the library is broken."""
LONGER = 3.0


def no_renewals() -> AbstractContextManager[Any]:
    """Leases end, whatever their holders do."""
    return patch.object(RenewalWorker, "renew", lambda self, leases: None)


def believed_longer() -> AbstractContextManager[Any]:
    """Each client believes in its leases for ``LONGER`` seconds more."""
    sound = lease.local_deadline

    def broken(sent_at: float, length: float, margin: float | None) -> float:
        return sound(sent_at, length, margin) + LONGER

    stack = ExitStack()
    for module in (lease, lease_keeper):
        stack.enter_context(patch.object(module, "local_deadline", broken))
    return stack


def cancelled_acquires_kept() -> AbstractContextManager[Any]:
    """Whoever is cancelled gives nothing back, and withdraws nothing."""

    def broken(self: WaitQueue, waiter: TaskWaiter, mode: Mode) -> None:
        self._join_alone()
        if waiter.grant is None:
            self._queue(mode).leave(waiter)
        self._unwatch_if_idle()
        self._note_unused()

    return patch.object(WaitQueue, "leave", broken)


def releases_compare_nothing() -> AbstractContextManager[Any]:
    """The release of a grant that is gone ends that of whoever holds the lock now."""
    sound = StoreClient.step

    def broken(
        self: StoreClient, resource: Resource, command: Command, *rest: Any
    ) -> Any:
        async def end_all() -> None:
            for grant in (await self.store.look(resource)).record.grants:
                await sound(self, resource, ForceRelease(grant.holder, grant.fence))

        def released(reply: Any) -> None:
            if reply.error is None and not reply.result().held:
                self.loop.spawn(end_all)

        pending = sound(self, resource, command, *rest)
        if isinstance(command, Release):
            pending.add_done_callback(released)
        return pending

    return patch.object(StoreClient, "step", broken)


def fences_stay() -> AbstractContextManager[Any]:
    """Each client reports the first fence of a name for ever."""
    first: dict[Resource, int] = {}
    sound = StoreClient.lease

    def broken(self: StoreClient, request: Any, grant: Grant, *rest: Any) -> Lease:
        fence = first.setdefault(request.resource, grant.fence)
        return sound(self, request, replace(grant, fence=fence), *rest)

    return patch.object(StoreClient, "lease", broken)


PLANTED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    OTHER_NAMES: ExitStack,
    **{
        plant.__name__.replace("_", "-"): plant
        for plant in (
            no_renewals,
            believed_longer,
            cancelled_acquires_kept,
            releases_compare_nothing,
            fences_stay,
        )
    },
}
"""By the name that ``--plant`` takes."""
