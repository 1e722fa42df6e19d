"""``lock.acquire()``: awaitable for a grant, or ``async with`` for a guarded body.

What is entered by ``async with``: by one at a time, and not forgotten.

The body of an ``async with``: what runs under a grant, and is cancelled with it.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, final

from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.held_state import HeldState
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.runtime.acquirer import AbandonableAcquirer, Acquirer
from aiorwlock_remote.runtime.request import AcquireRequest


@final
class SingleEntry:
    """Whether an object that only one at a time may enter was entered.

    A second one would take the first one's place, and leave in its name. ``with`` it
    one gets in: entered from its beginning on, until ``left``, or until that fails.

    One that is made for being used at once, and goes without, was forgotten: there is a
    ``RuntimeWarning``, as of coroutines.
    """

    __slots__ = ("_entered", "_unused", "_what")

    def __init__(self, what: str, unused: Callable[[], str] | None = None) -> None:
        """``what``: how the object is made, for messages.

        ``unused()``: what is said to have been forgotten if nobody uses it.
        """
        self._what = what
        self._unused = unused
        self._entered = False

    def used(self) -> None:
        """It is awaited."""
        self._unused = None

    def __enter__(self) -> None:
        """Begin to get in.

        Raises:
            ConfigurationError: somebody has, and has not left.
        """
        if self._entered:
            raise ConfigurationError(
                what=f"this {self._what} is entered already",
                hint=f"a new {self._what} for each block",
            )
        self._entered = True
        self._unused = None

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None:
            self.left()

    def left(self) -> None:
        """It can be entered again."""
        self._entered = False

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        if self._unused is not None:
            done = "nothing is done; await it, or enter it by async with"
            message = f"{self._unused()} was never awaited: {done}"
            warn(message, RuntimeWarning, source=self)


async def acquire_grant(
    session: Session,
    request: AcquireRequest,
    options: Options,
    source: Acquirer,
    *,
    owned_by_task: bool,
) -> HeldState:
    """A grant, waited for; cancelled, nothing is left behind."""
    followers = session.asked(request)
    try:
        await session.may_ask(request.resource)
        lease = await source.acquire(request)
    except BaseException as exc:
        followers.failed(exc)
        raise
    return HeldState(session, lease, options, followers, owned_by_task=owned_by_task)


@final
class HeldScope:
    """Of the running task, which owns the grant; from now on until it is ``left``.

    Losing the grant cancels it. It refers to ``held``: the user may not, and
    ``on_lost`` gets it.
    """

    __slots__ = ("_grip", "_scope", "held")

    def __init__(self, grip: HeldState) -> None:
        """It begins."""
        self._grip = grip
        self.held: Held = Held(grip)
        self._scope = grip.session.host.new_scope()
        self._scope.__enter__()
        if grip.options.on_lost == "raise":
            grip.loss.watch(self._scope)

    async def left(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """It has ended: release the newest grant that its own was moved to.

        Raises:
            LockLost: it was lost; in place of the cancellation that came of it.
        """
        grip, scope = self._grip.newest, self._scope
        if grip.session.forked:
            with suppress(RuntimeError):  # asyncio has no running loop in a child
                scope.__exit__(exc_type, exc, traceback)
            if exc is None:
                grip.session.check()
            return
        grip.loss.unwatch(scope)
        try:
            # True: the cancellation was ours, because the grant was lost.
            swallowed = scope.__exit__(exc_type, exc, traceback)
        except BaseException:  # what is left of a group without our cancellation
            grip.give_back()
            raise
        if exc is None or swallowed:
            await grip.leave()
        else:  # a wait that is cancelled would hide the body's own error
            grip.give_back()
        # Never True, and typed so: else every `return` in a body is one "missing".
        assert exc is None or not swallowed, "a lost grant raised when it was released"


@final
class Acquisition(Coroutine[Any, Any, Held]):
    """One attempt to get a lock; used once.

    ``await`` it for a ``Held`` that lives as long as it is referred to, give it to
    ``asyncio.create_task`` or ``wait_for`` as a coroutine, or enter it with ``async
    with``: then the grant belongs to the entering task, losing it cancels the body and
    raises ``LockLost``, and leaving releases the newest grant it was moved to.

    Cancelled while it waits, it leaves nothing behind. In a forked child leaving
    releases nothing: the grant is its parent's.
    """

    def __init__(
        self,
        session: Session,
        request: AcquireRequest,
        options: Options,
        source: Acquirer | None = None,
    ) -> None:
        """Made by the locks, not by users."""
        self._session = session
        self._source: Acquirer = session.doors if source is None else source
        self._options = options
        self._request = request
        self._inside = SingleEntry(
            "acquire()", lambda: f"acquire() of {request.resource.label}"
        )
        self._body: HeldScope | None = None
        self._running: Coroutine[Any, Any, Held] | None = None

    def __await__(self) -> Generator[Any, Any, Held]:
        self._inside.used()
        return self._get().__await__()

    def send(self, value: Any, /) -> Any:  # noqa: ANN401 - as coroutines have it
        """For the loop whose task it is."""
        return self._started().send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as coroutines have it
        """For the loop whose task it is."""
        return self._started().throw(*error)

    def close(self) -> None:
        """For the loop: nothing is held if it had not come to its end."""
        self._started().close()

    def unless(self, over: Callable[[], Awaitable[object]]) -> Acquisition:
        """Give up waiting once ``over()`` returns: ``AcquireAbandoned``, and nothing is
        held.

        It is cancelled when the wait ends. For integrations: a client that hung up.
        """
        self._source = AbandonableAcquirer(self._source, self._session.drive, over)
        return self

    async def __aenter__(self) -> Held:
        with self._inside:
            self._body = HeldScope(await self._obtain(owned_by_task=True))
        return self._body.held

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._body is not None
        body, self._body = self._body, None
        self._inside.left()
        await body.left(exc_type, exc, traceback)

    def _started(self) -> Coroutine[Any, Any, Held]:
        self._inside.used()
        if self._running is None:
            self._running = self._get()
        return self._running

    async def _get(self) -> Held:
        return Held(await self._obtain(owned_by_task=False))

    async def _obtain(self, *, owned_by_task: bool) -> HeldState:
        session, request, options = self._session, self._request, self._options
        source, owned = self._source, owned_by_task
        return await acquire_grant(
            session, request, options, source, owned_by_task=owned
        )

    def __repr__(self) -> str:
        return f"<Acquisition {self._request.resource.label} {self._request.mode}>"


async def try_acquire_grant(
    session: Session, request: AcquireRequest, options: Options, source: Acquirer
) -> Held | None:
    """A grant if it can be had right now."""
    with session.asked(request) as followers:
        await session.may_ask(request.resource)
        lease = await source.try_acquire(request)
    if lease is None:
        followers.failed(None)
        return None
    return Held(HeldState(session, lease, options, followers, owned_by_task=False))
