"""``lock.acquire()``: awaitable for a grant, or ``async with`` for a guarded body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, final

from aiorwlock_remote.locks.acquirers import AbandonableAcquirer, Acquirer
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.held_scope import HeldScope, acquire_grant
from aiorwlock_remote.locks.held_state import HeldState
from aiorwlock_remote.locks.options import Options
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.locks.single_entry import SingleEntry
from aiorwlock_remote.runtime.request import AcquireRequest


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
