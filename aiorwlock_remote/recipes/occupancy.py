"""S4: occupy an object that others may be using, before it is touched.

For programs that cannot put a lock around every access: who comes first uses it, and
who finds it in use gives up at once and is told by whom.
"""

from __future__ import annotations

import math
import os
import platform
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from inspect import iscoroutinefunction
from itertools import count
from random import random
from typing import Any, ParamSpec, Protocol, TypeVar, final

import anyio

from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.core.occupancy import (
    Action,
    ContenderRecord,
    check_label,
    object_key,
    object_name,
)
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.timing import back_off, check_seconds, local_deadline
from aiorwlock_remote.errors import (
    BackendError,
    Closed,
    ConfigurationError,
    LockBusy,
    LockLost,
    LockTimeout,
)
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.recipes import OccupancyStore
from aiorwlock_remote.recipes.occupied import (
    Occupied,
    OccupyAcquisition,
    OccupyAttempt,
    log,
    run_beyond_cancellation,
)
from aiorwlock_remote.runtime.event_loop import TaskEventLoop, current_event_loop

P = ParamSpec("P")
T = TypeVar("T")

FIRST_REST = 0.02
"""Seconds that who met another pending waits at most before the second attempt."""


class Decorator(Protocol):
    """Leaves a coroutine function's type as it is."""

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        """The same, occupied."""


@final
class Occupancies:
    """Occupies the objects of one store: ``async with occupancies.occupy(book): …``.

    An object is named by a pair ``("book", 42)``, or by whatever the store's library
    has (a row of SQLAlchemy, a model of Django). No I/O until one is occupied.
    """

    def __init__(
        self,
        store: OccupancyStore,
        *,
        name_of: Callable[[object], tuple[str, ResourceId]] | None = None,
        host: Callable[[], TaskEventLoop] = current_event_loop,
        is_closed: bool = False,
    ) -> None:
        """Made by ``locks.occupancies`` and the like, not by users.

        ``is_closed``: somebody is going to call ``aclose``. Only then are records that
        could not be removed removed later, in the background: a driver whose owner has
        left would be asked for ever.
        """
        self.store: OccupancyStore = store
        self._name_of = name_of or object_name
        self._host = host
        self._live: weakref.WeakSet[Occupied] = weakref.WeakSet()
        self._attempts: set[OccupyAttempt] = set()
        self._left: set[OccupyAttempt] = set()
        self._insists = is_closed
        self._closed = False

    def of(self, kind: str, object_id: ResourceId) -> Occupancy:
        """One object; no I/O.

        Raises:
            ConfigurationError: a name that cannot be used.
        """
        name = object_key(kind, object_id)
        self.store.check(name)
        return Occupancy(self, name)

    def occupy(
        self, thing: object, timeout: float | None = None, *, who: str = ""
    ) -> OccupyAcquisition:
        """Use the object alone: ``await`` it, or use it in ``async with``.

        In use: gives up at once. Others that want it at the same moment: tries again
        after a random pause, for ``timeout`` seconds (None: until it is clear who
        was first). ``who``: what the others are told; host and process by default.
        Cancelled, it leaves no record behind.

        Raises (when awaited or entered):
            LockBusy: somebody is using it; ``holders`` says who.
            LockTimeout: not clear in time.
            AcquireUncertain: the store never said whether we use it now.
            BackendError: the store failed.
            Closed: the ``Locks`` is closed, forked or of another loop.

        Raises (at once):
            ConfigurationError: a name or a number that cannot be used.
        """
        check_seconds("timeout", timeout)
        return OccupyAcquisition(partial(self.enter, self._named(thing), timeout, who))

    async def try_occupy(
        self, thing: object, timeout: float | None = None, *, who: str = ""
    ) -> Occupied | None:
        """The same, but None if somebody is using it, or it was not clear in time."""
        try:
            return await self.occupy(thing, timeout, who=who)
        except (LockBusy, LockTimeout):
            return None

    def occupied(
        self,
        thing: Callable[..., object],
        *,
        busy: Callable[[LockBusy], Any] | None = None,
        timeout: float | None = None,
    ) -> Decorator:
        """Decorate a coroutine function: it runs while the object is occupied.

        ``thing`` gets the arguments of the call and names the object. ``busy`` makes
        the answer if it is in use, which raises ``LockBusy`` otherwise. Both are plain
        functions.

        Raises (when it decorates):
            ConfigurationError: not a coroutine function; ``thing`` or ``busy`` is none.
        """
        check_seconds("timeout", timeout)
        functions: tuple[object, ...] = (thing, thing if busy is None else busy)
        if not all(map(callable, functions)) or any(
            map(iscoroutinefunction, functions)
        ):
            raise ConfigurationError(
                what=f"{thing!r}, {busy!r}: both are plain functions",
                hint="lambda request, number: ('book', number)",
            )

        def decorate(
            function: Callable[P, Coroutine[Any, Any, T]],
        ) -> Callable[P, Coroutine[Any, Any, T]]:
            if not iscoroutinefunction(function):
                raise ConfigurationError(
                    what=f"{quoted(function)} is no coroutine function",
                    hint="occupying is for async def",
                )

            @wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> T:
                try:
                    occupied = await self.occupy(thing(*args, **kwargs), timeout)
                except LockBusy as exc:
                    if busy is None:
                        raise
                    answer: T = busy(exc)
                    return answer
                async with occupied:
                    return await function(*args, **kwargs)

            return call

        return decorate

    async def holders(self, thing: object) -> tuple[str, ...]:
        """Who uses it now, as others would be told; dead ones too.

        Raises:
            BackendError: the store failed.
        """
        return await self.holders_of(self._named(thing))

    async def holders_of(self, name: str) -> tuple[str, ...]:
        """The same by the object's name."""
        look = partial(self.store.usings, name, "")
        return _shown(await run_beyond_cancellation(self._host(), look))

    async def enter(self, name: str, timeout: float | None, who: str) -> Occupied:
        """As ``occupy``, by the object's name."""
        host = self._host()
        label = check_label(who) or f"{platform.node()}/{os.getpid()}"
        begun, attempts = host.clock.now(), 0
        while True:
            if self._closed:
                raise Closed
            sent_at = host.clock.now()
            attempt = OccupyAttempt(
                self.store, name, label, partial(self._insist, host)
            )
            self._attempts.add(attempt)
            try:
                last = await attempt.outcome(host)
            finally:
                self._attempts.discard(attempt)
            if self._closed:
                raise Closed
            if last.do is Action.USING:
                occupied = Occupied(self, host, name, attempt.who, sent_at)
                self._live.add(occupied)
                return occupied
            if last.do is Action.BUSY:
                raise LockBusy(resource=name, holders=_shown(last.records))
            rest = back_off(attempts, random(), first=FIRST_REST)
            attempts += 1
            if timeout is not None:
                left = begun + timeout - host.clock.now()
                if left <= 0:
                    raise LockTimeout(
                        resource=name,
                        mode="use",
                        timeout=timeout,
                        holders=_shown(last.records),
                    )
                rest = min(rest, left)
            await anyio.sleep(rest)

    def deadline(self, sent_at: float) -> float | None:
        """Local time until which a record made, or made anew, then is no dead one."""
        age = self.store.ages.using
        return None if age is None else local_deadline(sent_at, age, None)

    async def aclose(self) -> None:
        """Give everything back; what its holders find out when they leave is nothing.

        Whoever is about to occupy something gets ``Closed``.
        """
        self._closed = True
        host = current_event_loop()
        async with anyio.create_task_group() as tasks:
            for attempt in self._attempts:
                tasks.start_soon(attempt.call_off, host)
            for occupied in self._live:
                tasks.start_soon(_let_go, occupied)
            for attempt in self._left:
                tasks.start_soon(_take_out, attempt)
            self._left.clear()

    def _insist(self, host: TaskEventLoop, attempt: OccupyAttempt) -> None:
        """Take the records of an attempt that failed out in the background."""
        if self._insists and not self._closed:
            self._left.add(attempt)
            host.spawn(partial(self._take_out, host, attempt))

    async def _take_out(self, host: TaskEventLoop, attempt: OccupyAttempt) -> None:
        over = self.deadline(host.clock.now()) or math.inf
        for tries in count():
            await anyio.sleep(back_off(tries, random()))
            if attempt not in self._left:
                return  # closed
            if host.clock.now() >= over or await _take_out(attempt):
                break
        self._left.discard(attempt)

    def _named(self, thing: object) -> str:
        name = object_key(*self._name_of(thing))
        self.store.check(name)
        return name


@final
class Occupancy:
    """One object, that many may want to use. Cheap; may be shared between tasks."""

    def __init__(self, home: Occupancies, name: str) -> None:
        """Made by ``locks.occupancy`` and ``Occupancies.of``, not by users."""
        self._home = home
        self._name = name

    @property
    def name(self) -> str:
        """The object's name in the store."""
        return self._name

    def occupy(
        self, timeout: float | None = None, *, who: str = ""
    ) -> OccupyAcquisition:
        """Use it alone; as ``Occupancies.occupy``."""
        check_seconds("timeout", timeout)
        return OccupyAcquisition(partial(self._home.enter, self._name, timeout, who))

    async def try_occupy(
        self, timeout: float | None = None, *, who: str = ""
    ) -> Occupied | None:
        """The same, but None if somebody is using it, or it was not clear in time."""
        try:
            return await self.occupy(timeout, who=who)
        except (LockBusy, LockTimeout):
            return None

    async def holders(self) -> tuple[str, ...]:
        """Who uses it now; as ``Occupancies.holders``."""
        return await self._home.holders_of(self._name)

    def __repr__(self) -> str:
        return f"<Occupancy {self._name!r}>"


async def _let_go(occupied: Occupied) -> None:
    try:
        await occupied.release()
    except (LockLost, BackendError, Closed) as exc:
        name = occupied.name
        log_event(log, "release_failed", resource=name, error=str(exc))


async def _take_out(attempt: OccupyAttempt) -> bool:
    """Whether its records are gone."""
    try:
        await attempt.take_out()
    except BackendError:
        return False
    return True


def _shown(records: Sequence[ContenderRecord]) -> tuple[str, ...]:
    return tuple(record.shown for record in records)
