"""Releases that failed: asked again, until the store has answered or the lease ends.

A connection that breaks when a grant is given back would keep everybody out for the
rest of the lease. Whoever released it is told of the failure, and waits no longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import random

import anyio

from aiorwlock_remote.core.commands import Reply
from aiorwlock_remote.core.pauses import back_off
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Closed
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Pending
from aiorwlock_remote.runtime.closing import Closing
from aiorwlock_remote.runtime.host import LoopHost
from aiorwlock_remote.runtime.lease import Lease

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


class Insisting:
    """Of one ``Locks``, in the loop's thread."""

    def __init__(
        self,
        host: LoopHost,
        closing: Closing,
        withdraw: Callable[..., Pending[Reply]],
    ) -> None:
        """``withdraw(resource, *tickets)``: whatever became of them, none holds."""
        self._host = host
        self._closing = closing
        self._withdraw = withdraw

    def on(
        self, lease: Lease, tickets: tuple[str, ...], released: Pending[Reply]
    ) -> Pending[Reply]:
        """That it is over. ``released``: the answer to the first request."""
        released.then(partial(self._answered, lease, tickets))
        return released

    def _answered(
        self, lease: Lease, tickets: tuple[str, ...], released: Pending[Reply]
    ) -> None:
        if not isinstance(released.error, BackendUnavailable):
            return
        closed = anyio.Event()

        def close() -> None:
            self._withdraw(lease.resource, *tickets).unawaited()
            closed.set()

        with suppress(Closed):
            asked = self._closing.begin(close)
            self._host.spawn(partial(self._insist, lease, tickets, asked, closed))

    async def _insist(
        self,
        lease: Lease,
        tickets: tuple[str, ...],
        asked: object,
        closed: anyio.Event,
    ) -> None:
        attempt = 0
        try:
            while lease.left is None or lease.left > 0:
                with anyio.move_on_after(back_off(attempt, random())):
                    await closed.wait()
                if closed.is_set():
                    return
                with suppress(BackendUnavailable):
                    await self._withdraw(lease.resource, *tickets)
                    return
                attempt += 1
        except BackendError as exc:
            where = lease.resource.label
            log_event(log, "release_failed", resource=where, error=str(exc))
        finally:
            self._closing.over(asked)
