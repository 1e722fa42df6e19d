"""``lock.acquire()``: awaitable for a grant, or ``async with`` for a guarded body."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, final

import anyio

from aiorwlock_remote.locks.grip import Grip
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.inside import Inside
from aiorwlock_remote.locks.observing import Followers
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.locks.source import Source, Watched
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.request import Request


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
        request: Request,
        options: Options,
        source: Source | None = None,
    ) -> None:
        """Made by the locks, not by users."""
        self._session = session
        self._source: Source = session.doors if source is None else source
        self._options = options
        self._request = request
        self._inside = Inside("acquire()")
        self._entered: tuple[Grip, Held, anyio.CancelScope] | None = None
        self._got: Grip | None = None
        self._used = False
        self._running: Coroutine[Any, Any, Held] | None = None

    def __await__(self) -> Generator[Any, Any, Held]:
        self._used = True
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
        """Give up waiting once ``over()`` returns: ``NotWanted``, and nothing is held.

        It is cancelled when the wait ends. For integrations: a client that hung up.
        """
        self._source = Watched(self._source, self._session.drive, over)
        return self

    async def try_now(self) -> Held | None:
        """A grant if it can be had right now."""
        self._used = True
        with self._session.asked(self._request) as followers:
            await self._session.may_ask(self._request.resource)
            lease = await self._source.try_acquire(self._request)
        if lease is None:
            followers.failed(None)
            return None
        return Held(self._grip(lease, followers, owned_by_task=False))

    def give_back(self) -> None:
        """Release what was awaited, without waiting for the answer."""
        if self._got is not None:
            self._got.give_back()

    async def __aenter__(self) -> Held:
        self._used = True
        with self._inside:
            grip = await self._obtain(owned_by_task=True)
        held, scope = Held(grip), self._session.host.new_scope()
        # The user may not keep the Held; on_lost gets it.
        self._entered = grip, held, scope
        scope.__enter__()
        if self._options.on_lost == "raise":
            grip.loss.watch(scope)
        return held

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._entered is not None
        (entered, _, scope), self._entered = self._entered, None
        self._inside.left()
        grip = entered.newest
        if self._session.forked:
            with suppress(RuntimeError):  # asyncio has no running loop in a child
                scope.__exit__(exc_type, exc, traceback)
            if exc is None:
                self._session.check()
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

    def _started(self) -> Coroutine[Any, Any, Held]:
        self._used = True
        if self._running is None:
            self._running = self._get()
        return self._running

    async def _get(self) -> Held:
        self._got = await self._obtain(owned_by_task=False)
        return Held(self._got)

    async def _obtain(self, *, owned_by_task: bool) -> Grip:
        with self._session.asked(self._request) as followers:
            await self._session.may_ask(self._request.resource)
            lease = await self._source.acquire(self._request)
        return self._grip(lease, followers, owned_by_task=owned_by_task)

    def _grip(self, lease: Lease, followers: Followers, *, owned_by_task: bool) -> Grip:
        session, options = self._session, self._options
        return Grip(session, lease, options, followers, owned_by_task=owned_by_task)

    def __repr__(self) -> str:
        return f"<Acquisition {self._request.resource.label} {self._request.mode}>"

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:
        # As Python has it of coroutines: a forgotten `await` would lock nothing.
        if not getattr(self, "_used", True):
            what = f"acquire() of {self._request.resource.label}"
            warn(
                f"{what} was never awaited: nothing is locked; await it, or enter it "
                "by async with",
                RuntimeWarning,
                source=self,
            )
