"""Requests that end grants, and failed: asked again until the store has answered.

A connection that breaks when a grant is given back, or when a request is taken back
that may have been granted, would keep everybody out for the rest of the lease. Whoever
asked is told of the failure, and waits no longer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import random
from typing import Any, TypeVar

import anyio

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pauses import back_off
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Closed
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Pending
from aiorwlock_remote.runtime.closing import Closing
from aiorwlock_remote.runtime.host import LoopHost

T = TypeVar("T")

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


class Insisting:
    """Of one ``Locks``, in the loop's thread."""

    def __init__(self, host: LoopHost, closing: Closing) -> None:
        """Once ``closing`` is closed, nobody asks any more."""
        self._host = host
        self.closing: Closing = closing

    def on(
        self,
        first: Pending[T],
        resource: Resource,
        again: Callable[[], Pending[Any]],
        lease: float | None,
    ) -> Pending[T]:
        """That it is over. ``first``: the answer to the first request; given back.

        ``again()``: whatever became of it, nothing is held by it. After ``lease``
        seconds it is over by itself; None: never.
        """
        first.then(partial(self._answered, resource, again, lease))
        return first

    def _answered(
        self,
        resource: Resource,
        again: Callable[[], Pending[Any]],
        lease: float | None,
        first: Pending[Any],
    ) -> None:
        if not isinstance(first.error, BackendUnavailable):
            return
        over = math.inf if lease is None else self._host.clock.now() + lease
        closed = anyio.Event()

        def close() -> None:
            again().unawaited()
            closed.set()

        async def insist() -> None:
            attempt = 0
            try:
                while self._host.clock.now() < over:
                    with anyio.move_on_after(back_off(attempt, random())):
                        await closed.wait()
                    if closed.is_set():
                        return
                    with suppress(BackendUnavailable):
                        await again()
                        return
                    attempt += 1
            except BackendError as exc:
                where = resource.label
                log_event(log, "release_failed", resource=where, error=str(exc))
            finally:
                self.closing.over(asked)

        with suppress(Closed):
            asked = self.closing.begin(close)
            self._host.spawn(insist)
