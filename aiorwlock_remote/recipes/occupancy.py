"""Exclusive use of objects that other programs may be using, without locks.

For programs that cannot put a lock around every access: a program occupies an object
before touching it. The first program obtains the object; a program that finds it in use
gives up at once and learns the user's name.
"""

from __future__ import annotations

import logging
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
from aiorwlock_remote.core.timing import back_off, check_seconds
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
    using_deadline,
)
from aiorwlock_remote.runtime.event_loop import TaskEventLoop, current_event_loop

P = ParamSpec("P")
T = TypeVar("T")

FIRST_REST = 0.02
"""Seconds, at most, between a contender's first and second attempt."""


class Decorator(Protocol):
    """Type of a decorator for coroutine functions that keeps their signature."""

    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        """Return a coroutine function with the signature of ``function``."""


@final
class Occupancies:
    """Exclusive use of objects, recorded in one store; creating this does no I/O.

    ``async with occupancies.occupy(("book", 42)): …``. An object is named by a pair of
    kind and id, or by what the store's library has: a row of SQLAlchemy, a model
    instance of Django.
    """

    def __init__(
        self,
        store: OccupancyStore,
        *,
        name_of: Callable[[object], tuple[str, ResourceId]] | None = None,
        event_loop: Callable[[], TaskEventLoop] = current_event_loop,
        will_be_closed: bool = False,
    ) -> None:
        """Wrap a store; called by ``locks.occupancy`` and the integrations.

        Args:
            store: Contains the records.
            name_of: Returns kind and id of an object; pairs only by default.
            event_loop: Returns the running loop, or raises if it cannot be used.
            will_be_closed: ``aclose`` will be called. Only then are failed removals of
                records repeated in the background: otherwise the repetitions would
                continue after the owner of the driver has closed it.
        """
        self.store: OccupancyStore = store
        self._name_of = name_of or object_name
        self._event_loop = event_loop
        self._live: weakref.WeakSet[Occupied] = weakref.WeakSet()
        self._attempts: set[OccupyAttempt] = set()
        self._left_behind: set[OccupyAttempt] = set()
        self._retries = will_be_closed
        self._closed = False

    def of(self, kind: str, object_id: ResourceId) -> Occupancy:
        """Return a handle of one object, without I/O and without occupying it.

        Raises:
            ConfigurationError: ``kind`` or ``object_id`` is not a valid name.
        """
        name = object_key(kind, object_id)
        self.store.check(name)
        return Occupancy(self, name)

    def occupy(
        self, thing: object, timeout: float | None = None, *, who: str = ""
    ) -> OccupyAcquisition:
        """Return an attempt to use the object alone: ``await`` it, or enter it.

        If the object is in use, the attempt fails at once. If other programs try to
        obtain it at the same moment, the attempt is repeated after a random pause. If
        the caller is cancelled, no record remains in the store.

        Args:
            thing: A pair of kind and id, or an object of the store's library.
            timeout: Seconds for which the attempt is repeated; None: until this or
                another program obtains the object.
            who: The name that other programs are shown; host and process by default.

        Raises:
            LockBusy: the object is in use; ``holders`` has the users' names.
            LockTimeout: other programs tried at the same moments for ``timeout``
                seconds.
            AcquireUncertain: the reply was lost; a record of ours may remain.
            BackendError: the store failed.
            Closed: the ``Locks`` is closed, forked or of another event loop.
            ConfigurationError: an argument is not valid (raised at once).
        """
        return Occupancy(self, self._named(thing)).occupy(timeout, who=who)

    async def try_occupy(
        self, thing: object, timeout: float | None = None, *, who: str = ""
    ) -> Occupied | None:
        """Occupy the object; return None if it is in use or not obtained in time.

        ``timeout``: seconds; None: no limit; ``who``: the name that other programs are
        shown. Other errors as ``occupy``.
        """
        name = self._named(thing)
        return await Occupancy(self, name).try_occupy(timeout, who=who)

    def occupied(
        self,
        thing: Callable[..., object],
        *,
        busy: Callable[[LockBusy], Any] | None = None,
        timeout: float | None = None,
    ) -> Decorator:
        """Return a decorator: the coroutine function runs while the object is occupied.

        Args:
            thing: Plain function of the call's arguments; returns the object.
            busy: Plain function; called with the ``LockBusy`` if the object is in use,
                it returns the result of the call. None: ``LockBusy`` is raised.
            timeout: Seconds to compete with programs that try at the same moment; None:
                until one of them obtains the object.

        Raises:
            ConfigurationError: the decorated function is no coroutine function, or
                ``thing`` or ``busy`` is one or cannot be called.
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
                    hint="decorate an async def",
                )

            @wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> T:
                # Not one `async with`: a LockBusy of the body must not be taken for
                # ours (test_busy_makes_the_answer_unless_the_body_was_refused).
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
        """Return the names of the programs that use ``thing``, dead programs too.

        Raises:
            BackendError: the store failed.
        """
        return await Occupancy(self, self._named(thing)).holders()

    async def holders_of(self, name: str) -> tuple[str, ...]:
        """Return who uses the object that is named ``kind:id`` in the store."""
        look = partial(self.store.usings, name, "")
        return _shown(await run_beyond_cancellation(self._event_loop(), look))

    async def enter(self, name: str, timeout: float | None, who: str) -> Occupied:
        """Occupy the object named ``kind:id`` in the store, as ``occupy`` does."""
        loop = self._event_loop()
        label = check_label(who) or f"{platform.node()}/{os.getpid()}"
        begun, attempts = loop.clock.now(), 0
        while True:
            if self._closed:
                raise Closed
            sent_at = loop.clock.now()
            attempt = OccupyAttempt(
                self.store, name, label, partial(self._retry_removal, loop)
            )
            self._attempts.add(attempt)
            try:
                last = await attempt.outcome(loop)
            finally:
                self._attempts.discard(attempt)
            # `aclose` has gone through the objects in use: one more would stay in use.
            if self._closed:
                raise Closed
            granted = last.do is Action.USING
            event = "granted" if granted else "refused"
            log_event(log, event, logging.DEBUG, resource=name, label=label)
            if last.do is Action.USING:
                occupied = Occupied(self.store, loop, name, attempt.who, sent_at)
                self._live.add(occupied)
                return occupied
            if last.do is Action.BUSY:
                raise LockBusy(resource=name, holders=_shown(last.records))
            # Random: two that have met would meet again after equal pauses
            # (test_two_that_meet_rest_and_try_again).
            rest = back_off(attempts, random(), first=FIRST_REST)
            attempts += 1
            if timeout is not None:
                left = begun + timeout - loop.clock.now()
                if left <= 0:
                    raise LockTimeout(
                        resource=name,
                        mode="use",
                        timeout=timeout,
                        holders=_shown(last.records),
                    )
                rest = min(rest, left)
            await anyio.sleep(rest)

    async def aclose(self) -> None:
        """Give all objects back, and abort attempts: their callers get ``Closed``."""
        self._closed = True
        loop = current_event_loop()
        async with anyio.create_task_group() as tasks:
            for attempt in self._attempts:
                tasks.start_soon(attempt.call_off, loop)
            for occupied in self._live:
                tasks.start_soon(_release, occupied)
            for attempt in self._left_behind:
                tasks.start_soon(_remove_records, attempt)
            self._left_behind.clear()

    def _retry_removal(self, loop: TaskEventLoop, attempt: OccupyAttempt) -> None:
        if self._retries and not self._closed:
            self._left_behind.add(attempt)
            loop.spawn(partial(self._remove_later, loop, attempt))

    async def _remove_later(self, loop: TaskEventLoop, attempt: OccupyAttempt) -> None:
        expires_at = using_deadline(self.store, loop.clock.now()) or math.inf
        for tries in count():
            await anyio.sleep(back_off(tries, random()))
            if attempt not in self._left_behind:
                return  # closed
            # A record that is older counts as dead: others remove it.
            if loop.clock.now() >= expires_at or await _remove_records(attempt):
                break
            log_event(log, "cleanup_retried", logging.DEBUG, tries=tries + 1)
        self._left_behind.discard(attempt)

    def _named(self, thing: object) -> str:
        name = object_key(*self._name_of(thing))
        self.store.check(name)
        return name


@final
class Occupancy:
    """Handle of an object that several programs may want to use; tasks may share it."""

    def __init__(self, occupancies: Occupancies, name: str) -> None:
        self._occupancies = occupancies
        self._name = name

    @property
    def name(self) -> str:
        """The object's name in the store: ``kind:id``."""
        return self._name

    def occupy(
        self, timeout: float | None = None, *, who: str = ""
    ) -> OccupyAcquisition:
        """Return an attempt to use the object alone: ``await`` it, or enter it.

        ``timeout``: seconds; None: no limit; ``who``: the name that other programs are
        shown. Raises ``LockBusy`` if the object is in use, and what
        ``Occupancies.occupy`` raises.
        """
        check_seconds("timeout", timeout)
        enter = partial(self._occupancies.enter, self._name, timeout, who)
        return OccupyAcquisition(enter)

    async def try_occupy(
        self, timeout: float | None = None, *, who: str = ""
    ) -> Occupied | None:
        """Occupy the object; return None if it is in use or not obtained in time.

        ``timeout``: seconds; None: no limit; ``who``: the name that others are shown.
        """
        try:
            return await self.occupy(timeout, who=who)
        except (LockBusy, LockTimeout):
            return None

    async def holders(self) -> tuple[str, ...]:
        """Return the names of the programs that use the object, dead programs too."""
        return await self._occupancies.holders_of(self._name)

    def __repr__(self) -> str:
        return f"<Occupancy {self._name!r}>"


async def _release(occupied: Occupied) -> None:
    try:
        await occupied.release()
    except (LockLost, BackendError, Closed) as exc:
        name = occupied.name
        log_event(log, "release_failed", resource=name, error=str(exc))


async def _remove_records(attempt: OccupyAttempt) -> bool:
    try:
        await attempt.remove_records()
    except BackendError:
        return False
    return True


def _shown(records: Sequence[ContenderRecord]) -> tuple[str, ...]:
    return tuple(record.shown for record in records)
