"""Exclusive use of objects that other programs may be using, without locks.

For programs that cannot put a lock around every access: a program occupies an object
before touching it. The first program obtains the object; a program that finds it in use
gives up at once and learns the user's name.

``Occupied`` is no ``BaseHeld``: that has a ``Locks`` with a lease keeper, whose threads
a folder or an ORM's table would start for a record that nothing renews.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial, wraps
from inspect import iscoroutinefunction
from itertools import count
from random import random
from typing import Any, TypeVar, cast, final

import anyio

from aiorwlock_remote._util.exc_info import ExcInfo
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
    LossReason,
    NotOwner,
)
from aiorwlock_remote.locks.acquisition import BaseAcquisition, SingleEntry
from aiorwlock_remote.locks.session import end_body
from aiorwlock_remote.logs import log_event
from aiorwlock_remote.ports.recipes import OccupancyStore
from aiorwlock_remote.recipes.occupy_attempt import (
    OccupyAttempt,
    remove_own_record,
    run_beyond_cancellation,
)
from aiorwlock_remote.runtime.event_loop import TaskEventLoop, current_event_loop
from aiorwlock_remote.runtime.lease import local_deadline

F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

FIRST_REST = 0.02
"""Seconds, at most, between a contender's first and second attempt."""

log: logging.Logger = logging.getLogger("aiorwlock_remote.occupancy")


@final
class Occupancy:
    """Exclusive use of objects, recorded in one store; creating this does no I/O.

    ``async with occupancy.occupy(("book", 42)): …``. An object is named by a pair of
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
        check_seconds("timeout", timeout)
        enter = partial(self._enter, self._name(thing), timeout, who)
        return OccupyAcquisition(enter)

    async def try_occupy(
        self, thing: object, timeout: float | None = None, *, who: str = ""
    ) -> Occupied | None:
        """Occupy the object; return None if it is in use or not obtained in time.

        ``timeout``: seconds; None: no limit; ``who``: the name that other programs are
        shown. Other errors as ``occupy``.
        """
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
    ) -> Callable[[F], F]:
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

        def decorate(function: F) -> F:
            if not iscoroutinefunction(function):
                raise ConfigurationError(
                    what=f"{quoted(function)} is no coroutine function",
                    hint="decorate an async def",
                )

            @wraps(function)
            async def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - its own
                # Not one `async with`: a LockBusy of the body must not be taken for
                # ours (test_busy_makes_the_answer_unless_the_body_was_refused).
                try:
                    occupied = await self.occupy(thing(*args, **kwargs), timeout)
                except LockBusy as exc:
                    if busy is None:
                        raise
                    return busy(exc)
                async with occupied:
                    return await function(*args, **kwargs)

            return cast("F", call)

        return decorate

    async def holders(self, thing: object) -> tuple[str, ...]:
        """Return the names of the programs that use ``thing``, dead programs too.

        Raises:
            BackendError: the store failed.
        """
        look = partial(self.store.usings, self._name(thing), "")
        return _shown(await run_beyond_cancellation(self._event_loop(), look))

    async def _enter(self, name: str, timeout: float | None, who: str) -> Occupied:
        loop = self._event_loop()
        label = check_label(who) or f"{platform.node()}/{os.getpid()}"
        begun, attempts = loop.clock.now(), 0
        while True:
            if self._closed:
                raise Closed
            sent_at = loop.clock.now()
            attempt = OccupyAttempt(self.store, loop, name, label, self._retry_removal)
            self._attempts.add(attempt)
            try:
                last = await attempt.outcome()
            finally:
                self._attempts.discard(attempt)
            # `aclose` has gone through the objects in use: one more would stay in use.
            if self._closed:
                raise Closed
            granted = last.do is Action.USING
            event = "granted" if granted else "refused"
            log_event(log, event, logging.DEBUG, resource=name, label=label)
            if granted:
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
        async with anyio.create_task_group() as tasks:
            for attempt in self._attempts:
                tasks.start_soon(attempt.call_off)
            for occupied in self._live:
                tasks.start_soon(partial(release_at_exit, occupied, quietly=True))
            for attempt in self._left_behind:
                tasks.start_soon(attempt.try_to_remove)
            self._left_behind.clear()

    def _retry_removal(self, attempt: OccupyAttempt) -> None:
        if self._retries and not self._closed:
            self._left_behind.add(attempt)
            attempt.loop.spawn(partial(self._remove_later, attempt))

    async def _remove_later(self, attempt: OccupyAttempt) -> None:
        now = attempt.loop.clock.now
        expires_at = using_deadline(self.store, now()) or math.inf
        for tries in count():
            await anyio.sleep(back_off(tries, random()))
            if attempt not in self._left_behind:
                return  # closed
            # A record that is older counts as dead: others remove it.
            if now() >= expires_at or await attempt.try_to_remove():
                break
            log_event(log, "cleanup_retried", logging.DEBUG, tries=tries + 1)
        self._left_behind.discard(attempt)

    def _name(self, thing: object) -> str:
        name = object_key(*self._name_of(thing))
        self.store.check(name)
        return name


@final
class OccupyAcquisition(BaseAcquisition["Occupied"]):
    """The result of ``occupy``: ``await`` it for an ``Occupied``, or enter it."""

    _what = "occupy(…)"

    def __init__(self, occupy: Callable[[], Awaitable[Occupied]]) -> None:
        self._occupy = occupy

    async def _get(self) -> Occupied:
        return await self._occupy()

    async def _leave(self, held: Occupied, *exc_info: *ExcInfo) -> None:
        await held.__aexit__(*exc_info)


@final
class Occupied:
    """An object that this program uses alone; leaving ``async with`` gives it back.

    When its record is ``using_age`` seconds old, other programs may take this program
    for dead and occupy the object. ``check`` detects that by the local clock before it
    can happen, ``extend`` renews the record, and leaving raises ``LockLost`` if the
    record was gone. An object that is dropped without ``release`` stays occupied until
    that age (``ResourceWarning``). In a forked child process the object belongs to the
    parent: leaving gives nothing back.
    """

    def __init__(
        self,
        store: OccupancyStore,
        loop: TaskEventLoop,
        thing: str,
        who: str,
        sent_at: float,
    ) -> None:
        self._store = store
        self._loop = loop
        self._thing = thing
        self._who = who
        self._deadline = using_deadline(store, sent_at)
        self._wrapped = self._released = self._release_tried = False
        self._inside = SingleEntry("Occupied")
        self._pid = os.getpid()

    @property
    def name(self) -> str:
        """The object's name in the store: ``kind:id``."""
        return self._thing

    @property
    def expires_in(self) -> float | None:
        """Seconds until other programs may take the record for dead; None: never."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._loop.clock.now())

    def check(self) -> None:
        """Raise if another program may be using the object; no I/O.

        Raises:
            LockLost: the record is too old.
            NotOwner: the object was given back.
            Closed: the object belongs to the process that forked this one.
        """
        self._check_process()
        if self._released:
            raise NotOwner(resource=self._thing, action="check")
        if self.expires_in == 0.0:
            raise self._lost()

    async def extend(self) -> None:
        """Renew the record, so that its age counts from now.

        If the call is cancelled, the record may have been renewed.

        Raises:
            LockLost: the record is too old or gone.
            NotOwner: the object was given back.
            Closed: the object belongs to the process that forked this one, or to
                another event loop.
            BackendError: the store failed; the record keeps its old age.
        """
        self.check()
        self._check_loop()
        sent_at = self._loop.clock.now()
        extend = partial(self._store.extend, self._thing, self._who)
        if not await run_beyond_cancellation(self._loop, extend):
            raise self._lost()
        # From before the request: the store may have renewed the record at any time
        # after that (test_extended_it_is_as_young_as_when_that_was_asked_for).
        self._deadline = using_deadline(self._store, sent_at)
        log_event(log, "renewed", logging.DEBUG, resource=self._thing)

    async def release(self) -> bool:
        """Give the object back; return False if it was given back before.

        Cancelling does not stop the removal of the record; its errors are logged then.

        Raises:
            LockLost: the record was gone; other programs may have used the object.
            Closed: the object belongs to the process that forked this one, or to
                another event loop.
            BackendError: the store failed; call ``release`` again, or the record ends
                by its age.
        """
        self._check_process()
        if self._released:
            return False
        self._check_loop()
        self._released = self._release_tried = True
        await run_beyond_cancellation(self._loop, self._remove)
        return True

    async def __aenter__(self) -> Occupied:
        # An object that was given back, or is too old, protects no body
        # (test_one_that_was_given_back_is_not_entered_again).
        self.check()
        with self._inside:
            return self

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        self._inside.left()
        await end_body(None, partial(release_at_exit, self), *exc_info)

    async def _remove(self) -> None:
        try:
            removed = await remove_own_record(self._store, self._thing, self._who)
        except BackendError:
            # So that `release` may be called again
            # (test_a_mount_that_is_away_for_a_while).
            self._released = False
            raise
        if not removed:
            raise self._lost()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Closed(reason="forked")

    def _check_loop(self) -> None:
        if not self._loop.here():
            raise Closed(reason="other loop")

    def _lost(self) -> LockLost:
        reason: LossReason = "expired" if self.expires_in == 0.0 else "forced"
        return LockLost(reason=reason, resource=self._thing, mode="use")

    def __del__(self) -> None:
        # No warning after a release that failed: its error was raised. An ``Occupied``
        # of the synchronous API warns for itself.
        silent = getattr(self, "_release_tried", True) or self._wrapped
        if not silent and os.getpid() == self._pid:
            warnings.warn(
                f"{self!r} was dropped", ResourceWarning, stacklevel=1, source=self
            )

    def __repr__(self) -> str:
        state = "given back" if self._released else "in use"
        return f"<Occupied {self._thing!r} {state}>"


def using_deadline(store: OccupancyStore, sent_at: float) -> float | None:
    """Return when other programs may begin to treat the object's user as dead.

    Return None if that never happens in this store. ``sent_at``: when the record of the
    use was requested or extended. Both times: seconds of the local monotonic clock.
    """
    age = store.ages.using
    return None if age is None else local_deadline(sent_at, age, None)


def is_in_use(occupied: Occupied) -> bool:
    """Return whether ``release`` was not called yet; no I/O."""
    return not occupied._release_tried  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


def wrap(occupied: Occupied) -> None:
    """Let the destructor of a synchronous ``Occupied`` warn in its place."""
    occupied._wrapped = True  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - same file


async def release_at_exit(occupied: Occupied, *, quietly: bool) -> None:
    """Give the object back as the body that used it ends; see ``ReleasesBody``."""
    try:
        await occupied.release()
    except (LockLost, BackendError, Closed) as exc:
        if not quietly:
            raise
        log_event(log, "release_failed", resource=occupied.name, error=str(exc))


def _shown(records: Sequence[ContenderRecord]) -> tuple[str, ...]:
    return tuple(record.shown for record in records)
