"""What stands on locks, for threads: leaders, jobs that run once, decorators.

The async object is entered in one task of the background loop, and a ``Conversation``
has the blocking work done in the caller's thread.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, Self, TypeVar, final

import aiorwlock_remote as aio
from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.names import ResourceId
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.locks.acquisition import SingleEntry
from aiorwlock_remote.locks.decorators import CallName, is_async
from aiorwlock_remote.recipes.leader import BlockingCallback
from aiorwlock_remote.recipes.leader import Leader as AsyncLeader
from aiorwlock_remote.recipes.once import Once as AsyncOnce
from aiorwlock_remote.sync.background import Background, Conversation, begin_own_task
from aiorwlock_remote.sync.twins import HeldTwin, Made, Opened, Opener, borrow

H = TypeVar("H", bound=HeldTwin)
P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

Callback = Callable[[Any], object]


class Entered(Made[A], Generic[A, H]):
    """Base of objects that ``with`` enters in one task of the background loop."""

    def __init__(self, opener: Opener, make: Callable[[Opened], A]) -> None:
        self._inside = SingleEntry(type(self).__name__)
        self._body: Conversation[None] | None = None
        super().__init__(opener, make)

    @staticmethod
    @abstractmethod
    def _show(loop: Background, twin: aio.Held) -> H:
        """Return the synchronous ``Held`` of a grant."""

    def _borrow(self, twin: aio.Held) -> H:
        return borrow(self._show(self._loop, twin))

    def _enter(self, hold: Callable[[Conversation[None]], Awaitable[None]]) -> None:
        with self._inside:
            body = Conversation(self._loop, hold)
            if not body.enter():
                body.result()  # raises
            self._body = body

    def __exit__(self, *exc_info: *ExcInfo) -> None:
        body, self._body = self._body, None
        self._inside.left()
        if body is not None:
            # An interrupt is not to wait for a reply of the store.
            _, error, _ = exc_info
            wait = error is None or isinstance(error, Exception)
            body.leave(failed=error is not None, wait=wait)

    def __del__(self) -> None:
        body = getattr(self, "_body", None)
        if body is not None:  # its thread has died
            body.leave(failed=True, wait=False)


class LeaderTwin(Entered[AsyncLeader, H]):
    """Base of ``Leader``: the calls that are not derived."""

    def __enter__(self) -> Self:
        self._enter(partial(_stand_by, self._twin))
        return self

    def elected(self) -> H:
        """Wait until this process leads; return its grant, with ``check``, ``guard``.

        If the caller is interrupted, this stays a candidate.

        Raises:
            NotOwner: the body of ``with`` was left.
            LockError: what ended the candidate.
        """
        return self._borrow(self._run(self._twin.elected))

    def lead(self, work: Callable[[H], R]) -> R:
        """Run ``work(held)`` while this process leads; return what the work returned.

        Stand by until the lock of the election is free, then run the work in this
        thread. **A loss cannot stop the work**: it has to call ``held.check()`` before
        each step that relies on leading. If that raises ``LockLost``, the process
        stands by again: the work may be run several times. An outage of the store, of
        any length, is waited for. When the work returns or raises, or the caller is
        interrupted, the next candidate leads at once. Use either this or ``with``, not
        both at once.

        Raises what the work raises, and the following.

        Raises:
            Closed: the ``Locks`` was closed.
            BackendError: the store refuses the lock for good: a missing table or right.
        """
        twin = self._twin

        async def call(talk: Conversation[R]) -> R:
            return await twin.lead(
                lambda held: talk.in_thread(partial(work, self._borrow(held)))
            )

        return Conversation(self._loop, call).run()


class OnceTwin(Entered[AsyncOnce, H]):
    """Base of ``Once``: the calls that are not derived."""

    def run(self, job: Callable[[], object]) -> bool:
        """Run ``job()`` unless it has run in this period, or another machine runs it.

        The job runs in the thread that calls. Return True if it ran here. See
        ``Locks.once`` for errors and interrupts.
        """
        check_sync(job)
        self._check_transactions()
        twin = self._twin

        async def call(talk: Conversation[bool]) -> bool:
            return await twin.run(lambda: talk.in_thread(job))

        return Conversation(self._loop, call).run()

    def __call__(self, function: Callable[P, object]) -> Callable[P, bool]:
        """Decorate a function: a call returns True if the function ran here."""
        check_sync(function)

        @wraps(function)
        def run_once(*args: P.args, **kwargs: P.kwargs) -> bool:
            return self.run(lambda: function(*args, **kwargs))

        return run_once

    def __enter__(self) -> H | None:
        self._check_transactions()
        found: list[aio.Held | None] = []
        self._enter(partial(_hold_once, self._twin, found))
        (mine,) = found
        return None if mine is None else self._borrow(mine)


@final
class Synchronized:
    """Decorator of functions, made by ``Locks.synchronized``."""

    def __init__(
        self, acquire: Callable[[ResourceId], HeldTwin], template: str
    ) -> None:
        self._acquire = acquire
        self._template = template

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function; it keeps its parameters and its result.

        Raises:
            ConfigurationError: the function is async, or has no such parameter.
        """
        check_sync(function)
        name = CallName(self._template, function)

        def acquire(*args: P.args, **kwargs: P.kwargs) -> HeldTwin:
            return self._acquire(name.of(args, kwargs))

        return hold_during_calls(acquire, function)


def hold_during_calls(
    acquire: Callable[P, HeldTwin], function: Callable[P, R]
) -> Callable[P, R]:
    """Return ``function``, each call of which holds what ``acquire(…)`` returns."""
    check_sync(function)

    @wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with acquire(*args, **kwargs):
            return function(*args, **kwargs)

    return locked


def check_sync(function: object) -> None:
    """Raise ``ConfigurationError`` if ``function`` is async, or cannot be called."""
    if is_async(function) or not callable(function):
        raise ConfigurationError(
            what=f"{quoted(function)} is not a function that blocks",
            hint="aiorwlock_remote.connect has the same names for async functions",
        )


def blocking_callback(
    name: str, callback: Callback | None, shown: list[weakref.ref[Any]]
) -> BlockingCallback | None:
    """Return ``callback`` as one of the twin's, which gets the object in ``shown``."""
    if callback is None:
        return None
    try:
        check_sync(callback)
    except ConfigurationError as exc:
        raise ConfigurationError(what=f"{name}: {exc.what}") from None

    def tell() -> None:
        leader = shown[0]() if shown else None
        if leader is not None:
            callback(leader)

    return BlockingCallback(tell)


async def _stand_by(twin: AsyncLeader, talk: Conversation[None]) -> None:
    # The candidate waits in the queue beside its thread, and is no part of the body.
    begin_own_task()
    async with twin:
        await talk.body()


async def _hold_once(
    twin: AsyncOnce, found: list[aio.Held | None], talk: Conversation[None]
) -> None:
    async with twin as mine:
        found.append(mine)
        await talk.body()
