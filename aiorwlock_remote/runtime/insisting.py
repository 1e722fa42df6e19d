"""Requests that end grants, and failed: asked again until the store has answered.

A connection that breaks when a grant is given back, or when a request is taken back
that may have been granted, would keep everybody out for the rest of the lease; so would
a right that is gone for a moment. Whoever asked is told of the failure, and waits no
longer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import random
from typing import Any, Protocol, TypeVar

import anyio

from aiorwlock_remote.core.doubt import in_doubt
from aiorwlock_remote.core.pauses import back_off
from aiorwlock_remote.errors import BackendError, BackendUnavailable, BadRecord, Closed
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.pending import Pending, UnderWay
from aiorwlock_remote.runtime.closing import Closing
from aiorwlock_remote.runtime.host import LoopHost

T = TypeVar("T")

AT_ONCE = 500
"""Requests under way at a time, however many failed."""
ENOUGH = 2.0
"""Seconds for which those that failed wait for one that is not answered."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


class Named(Protocol):
    """What a grant is of."""

    @property
    def label(self) -> str:
        """For people."""


@dataclass(eq=False, slots=True)
class _Ending:
    """``over``: when it is over by itself, local clock."""

    resource: Named
    again: Callable[[], Pending[Any]]
    over: float
    repeatable: bool
    asked: bool = False

    def may_be_asked(self, error: BaseException) -> bool:
        """Whether it may help to ask again, and does no harm."""
        if not isinstance(error, BackendError) or isinstance(error, BadRecord):
            return False
        return self.repeatable or not in_doubt(error)


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
        resource: Named,
        again: Callable[[], Pending[Any]],
        lease: float | None,
        *,
        held: bool = True,
        repeatable: bool = True,
    ) -> Pending[T]:
        """That it is over. ``first``: the answer to the first request; given back.

        ``again()``: whatever became of it, nothing is held by it. After ``lease``
        seconds it is over by itself; None: never. ``held``: there may be a grant; else
        the store itself refused it, and one more refusal is of no interest.
        ``repeatable``: if not, what may have been carried out is not asked for again.
        """
        first.then(partial(self._answered, resource, again, lease, held, repeatable))
        return first

    def _answered(
        self,
        resource: Named,
        again: Callable[[], Pending[Any]],
        lease: float | None,
        held: bool,  # noqa: FBT001 - bound by ``partial``
        repeatable: bool,  # noqa: FBT001 - as above
        first: Pending[Any],
    ) -> None:
        error = first.error
        if error is None or not (held or isinstance(error, BackendUnavailable)):
            return
        over = math.inf if lease is None else self._host.clock.now() + lease
        ending = _Ending(resource, again, over, repeatable)
        if not ending.may_be_asked(error):
            return
        self._endings[ending] = None
        if not self._asking:
            closed = anyio.Event()
            with suppress(Closed):
                asked = self.closing.begin(partial(self._close, closed))
                self._asking = True
                self._host.spawn(partial(self._insist, asked, closed))

    def _close(self, closed: anyio.Event) -> None:
        for ending in self._endings:
            if ending.repeatable or not ending.asked:
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
        """About the first ones that wait for no answer; whether that settled them."""
        now = self._host.clock.now()
        for ending in [ending for ending in self._endings if ending.over <= now]:
            del self._endings[ending]
        idle = [ending for ending in self._endings if not ending.asked]
        unanswered = len(self._endings) - len(idle)
        some, under_way = idle[: max(0, AT_ONCE - unanswered)], UnderWay()
        for ending in some:
            ending.asked = True
            under_way.add(ending.again()).then(partial(self._told, ending))
        with anyio.move_on_after(ENOUGH):
            await under_way.over()
        return not any(ending in self._endings for ending in some)

    def _told(self, ending: _Ending, pending: Pending[Any]) -> None:
        ending.asked = False
        if ending not in self._endings:
            return  # it is over by itself
        del self._endings[ending]
        error = pending.error
        if error is None:
            return
        if ending.may_be_asked(error):
            self._endings[ending] = None  # behind the others
        else:
            where = ending.resource.label
            log_event(log, "release_failed", resource=where, error=str(error))
