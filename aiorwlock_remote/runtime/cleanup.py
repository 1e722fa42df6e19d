"""Requests that end grants, and failed: asked again until the store has answered.

A connection that breaks when a grant is given back, or when a request is taken back
that may have been granted, would keep everybody out for the rest of the lease; so would
a right that is gone for a moment. Whoever asked is told of the failure, and waits no
longer; but if the request was certainly not carried out, and may succeed soon, then
only if some more were not either (``outcome``).

What is to be taken back if a ``Locks`` is closed before the answer is known.

Who waits for its turn is told by the gates. Whoever else asks for something that the
store may grant (a try, a move) asks ``under`` this: so that its tickets are withdrawn
while there still is a connection, and the grant that it was about to get is no one's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import random
from typing import Any, Protocol, TypeVar

import anyio

from aiorwlock_remote._util.pending import InFlight, Pending
from aiorwlock_remote.core.timing import back_off
from aiorwlock_remote.core.uncertainty import is_uncertain, may_be_repeated
from aiorwlock_remote.errors import BackendError, BackendUnavailable, Closed
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports import Clock
from aiorwlock_remote.runtime.event_loop import TaskEventLoop


class InFlightGrants:
    """The requests of one ``Locks`` that may grant something. In the loop's thread."""

    def __init__(self) -> None:
        """None is under way."""
        self._under_way: dict[object, Callable[[], object]] = {}
        self._closed = False

    def check(self) -> None:
        """Refuse to send anything more.

        Raises:
            Closed: it is too late.
        """
        if self._closed:
            raise Closed

    def begin(self, take_back: Callable[[], object]) -> object:
        """A request is under way; what it is called by.

        Raises:
            Closed: it is not to be sent any more.
        """
        self.check()
        asked = object()
        self._under_way[asked] = take_back
        return asked

    def over(self, asked: object) -> bool:
        """It is; False: it was closed meanwhile, and ``take_back`` was called."""
        return self._under_way.pop(asked, None) is not None

    @contextmanager
    def under(self, take_back: Callable[[], object]) -> Generator[None, None, None]:
        """``with`` it a request is under way; nothing is awaited before.

        Left without an error, what it granted is handed out before anything is awaited.

        Raises:
            Closed: closed before or meanwhile; ``take_back`` was called then.
        """
        asked = self.begin(take_back)
        try:
            yield
        except BaseException:
            self.over(asked)
            raise
        if not self.over(asked):
            raise Closed

    def close(self) -> None:
        """Take it all back."""
        self._closed = True
        under_way, self._under_way = self._under_way, {}
        for take_back in under_way.values():
            take_back()


T = TypeVar("T")

MAX_REQUESTS_IN_FLIGHT = 500
"""Requests under way at a time, however many failed."""
MAX_RETRIES = 5
"""How often a request that was not carried out is sent again before that is told."""
MAX_WAIT_FOR_REPLY = 2.0
"""Seconds for which those that failed wait for one that is not answered."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.store")


async def ask_with_retries(
    ask: Callable[[], Awaitable[T]],
    clock: Clock,
    patience: float,
    check: Callable[[], object],
) -> T:
    """Return what ``ask`` is answered.

    If the error says that the request was not carried out, and may succeed soon,
    ``ask`` is repeated: ``MAX_RETRIES`` times at most, after growing pauses, and not
    once ``patience`` seconds have passed. ``check`` may refuse before each.

    Raises:
        LockError: what the last request failed with.
    """
    until = clock.now() + patience
    for attempt in range(MAX_RETRIES):
        try:
            return await ask()
        except BackendUnavailable as exc:
            pause = back_off(attempt, random())
            if not may_be_repeated(exc) or clock.now() + pause >= until:
                raise
        await anyio.sleep(pause)
        check()
    return await ask()


class HasLabel(Protocol):
    """What a grant is of."""

    @property
    def label(self) -> str:
        """For people."""


@dataclass(eq=False, slots=True)
class _PendingCleanup:
    """``over``: when it is over by itself, local clock.

    ``first``: the request that failed with ``error`` before anybody asked again;
    ``told``: its ``outcome``, None once whoever asked was told. ``vain``: how many
    requests failed after that.
    """

    resource: HasLabel
    again: Callable[[], Pending[Any]]
    over: float
    repeatable: bool
    first: Pending[Any]
    error: BaseException
    told: Pending[Any] | None = None
    vain: int = 0
    asked: bool = False

    def may_be_asked(self, error: BaseException) -> bool:
        """Whether it may help to ask again, and does no harm."""
        if not isinstance(error, BackendError):
            return False
        return self.repeatable or not is_uncertain(error)


class CleanupRetrier:
    """Of one ``Locks``, in the loop's thread: one task asks for all.

    ``closing``: asks once more at the end; nobody does after that.
    """

    def __init__(self, host: TaskEventLoop, closing: InFlightGrants) -> None:
        """Nothing has failed yet."""
        self._host = host
        self.closing: InFlightGrants = closing
        self._endings: dict[_PendingCleanup, None] = {}
        self._outcomes: dict[Pending[Any], Pending[Any]] = {}
        self._asking = False

    def on(
        self,
        first: Pending[T],
        resource: HasLabel,
        again: Callable[[], Pending[Any]],
        lease: float | None,
        *,
        repeatable: bool = True,
    ) -> Pending[T]:
        """That it is over. ``first``: the answer to the first request; given back.

        ``again()``: whatever became of it, nothing is held by it. After ``lease``
        seconds it is over by itself; None: never. ``repeatable``: if not, what may have
        been carried out is not asked for again.
        """
        first.add_done_callback(
            partial(self._answered, resource, again, lease, repeatable)
        )
        return first

    async def outcome(self, first: Pending[T]) -> T:
        """Wait for the answer to what was handed to ``on``.

        If the request was not carried out, and may succeed soon, the answer is that to
        one of the next. Cancelling takes nothing back.

        Raises:
            LockError: what the request failed with, and ``MAX_RETRIES`` more.
        """
        try:
            return await first
        except BackendUnavailable:
            told: Pending[T] | None = self._outcomes.get(first)
            if told is None:
                raise
        return await told

    def _answered(
        self,
        resource: HasLabel,
        again: Callable[[], Pending[Any]],
        lease: float | None,
        repeatable: bool,  # noqa: FBT001 - bound by ``partial``
        first: Pending[Any],
    ) -> None:
        error = first.error
        if error is None:
            return
        over = math.inf if lease is None else self._host.clock.now() + lease
        ending = _PendingCleanup(resource, again, over, repeatable, first, error)
        if not ending.may_be_asked(error):
            return
        if not self._asking:
            closed = anyio.Event()
            try:
                asked = self.closing.begin(partial(self._close, closed))
            except Closed:
                return
            self._asking = True
            self._host.spawn(partial(self._insist, asked, closed))
        self._endings[ending] = None
        if may_be_repeated(error):
            ending.told = self._outcomes[first] = Pending()

    def _close(self, closed: anyio.Event) -> None:
        for ending in list(self._endings):
            if ending.repeatable or not ending.asked:
                ending.again().log_failure()
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
            for ending in self._endings:
                self._tell(ending)

    async def _ask(self) -> bool:
        """About the first ones that wait for no answer; whether that settled them."""
        now = self._host.clock.now()
        for ending in [ending for ending in self._endings if ending.over <= now]:
            del self._endings[ending]
            self._tell(ending)
        idle = [ending for ending in self._endings if not ending.asked]
        unanswered = len(self._endings) - len(idle)
        some, under_way = (
            idle[: max(0, MAX_REQUESTS_IN_FLIGHT - unanswered)],
            InFlight(),
        )
        for ending in some:
            ending.asked = True
            under_way.add(ending.again()).add_done_callback(partial(self._told, ending))
        with anyio.move_on_after(MAX_WAIT_FOR_REPLY):
            await under_way.wait_closed()
        return not any(ending in self._endings for ending in some)

    def _told(self, ending: _PendingCleanup, pending: Pending[Any]) -> None:
        ending.asked = False
        if ending not in self._endings:
            return  # it is over by itself
        del self._endings[ending]
        error = pending.error
        if error is None:
            self._tell(ending, pending)
            return
        ending.error, ending.vain = error, ending.vain + 1
        if ending.vain >= MAX_RETRIES or not may_be_repeated(error):
            self._tell(ending)
        if ending.may_be_asked(error):
            self._endings[ending] = None  # behind the others
        else:
            where = ending.resource.label
            log_event(log, "release_failed", resource=where, error=str(error))

    def _tell(
        self, ending: _PendingCleanup, answer: Pending[Any] | None = None
    ) -> None:
        """Whoever waits for the outcome, once."""
        told, ending.told = ending.told, None
        if told is None:
            return
        del self._outcomes[ending.first]
        if answer is None:
            told.set_exception(ending.error)
        else:
            told.set_result(answer.result())
