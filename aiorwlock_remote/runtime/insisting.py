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
from dataclasses import dataclass
from functools import partial
from itertools import islice
from random import random
from typing import Any, TypeVar

import anyio

from aiorwlock_remote.core.names import Resource
from aiorwlock_remote.core.pauses import back_off
from aiorwlock_remote.errors import BackendUnavailable, Closed, LockError
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Pending
from aiorwlock_remote.runtime.closing import Closing
from aiorwlock_remote.runtime.host import LoopHost

T = TypeVar("T")

AT_ONCE = 500
"""Requests asked again together, however many failed."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


@dataclass(eq=False, slots=True)
class _Ending:
    resource: Resource
    again: Callable[[], Pending[Any]]
    over: float
    """When it is over by itself, local clock."""


class Insisting:
    """Of one ``Locks``, in the loop's thread: one task asks for all.

    ``closing``: asks once more at the end; nobody does after that.
    """

    def __init__(self, host: LoopHost, closing: Closing) -> None:
        """Nothing has failed yet."""
        self._host = host
        self.closing: Closing = closing
        self._endings: dict[_Ending, None] = {}
        self._asking = False

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
        self._endings[_Ending(resource, again, over)] = None
        if not self._asking:
            closed = anyio.Event()
            with suppress(Closed):
                asked = self.closing.begin(partial(self._close, closed))
                self._asking = True
                self._host.spawn(partial(self._insist, asked, closed))

    def _close(self, closed: anyio.Event) -> None:
        for ending in self._endings:
            ending.again().unawaited()
        closed.set()

    async def _insist(self, asked: object, closed: anyio.Event) -> None:
        attempt = 0
        try:
            while self._endings:
                with anyio.move_on_after(back_off(attempt, random())):
                    await closed.wait()
                if closed.is_set():
                    return
                attempt = 0 if await self._ask() else attempt + 1
        finally:
            self._asking = False
            self.closing.over(asked)

    async def _ask(self) -> bool:
        """About the first ones; whether the store answered."""
        now, answered = self._host.clock.now(), True
        for ending in [ending for ending in self._endings if ending.over <= now]:
            del self._endings[ending]
        some = list(islice(self._endings, AT_ONCE))
        for ending, pending in [(ending, ending.again()) for ending in some]:
            try:
                await pending
            except BackendUnavailable:
                del self._endings[ending]
                self._endings[ending] = None  # behind the others
                answered = False
                continue
            except LockError as exc:
                where = ending.resource.label
                log_event(log, "release_failed", resource=where, error=str(exc))
            del self._endings[ending]
        return answered
