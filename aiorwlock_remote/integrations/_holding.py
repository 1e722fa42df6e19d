"""``Holding``, the lock of one ``hold``, and ``RequestHolds``, those of one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import TypeVar, final

import anyio

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.errors import BackendError, Closed, LockError
from aiorwlock_remote.integrations._http import SeenHolds, note_release
from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.held import Held, state_of
from aiorwlock_remote.locks.session import HeldState
from aiorwlock_remote.runtime.acquirer import AcquireAbandoned
from aiorwlock_remote.runtime.lease import LeaseState

T = TypeVar("T")


class ServerStops(Closed):
    """A request may wait no longer for a lock, as the server was asked to stop."""

    def __str__(self) -> str:
        return "the server was asked to stop"


@final
class Holding:
    """A lock that is held in an ``async with``, and for how long; made by ``hold``.

    With ``holds``, the lock outlives the block: the ``RequestHolds`` release it. Inside
    the block a loss cancels the block, and behind it what still runs of the request.
    """

    def __init__(
        self,
        acquisition: Acquisition,
        seen: SeenHolds,
        lease: float | None,
        stopping: Callable[[], bool],
        holds: RequestHolds | None,
    ) -> None:
        self._acquisition = acquisition
        self._seen = seen
        self._lease = lease
        self._stopping = stopping
        self._holds = holds
        # Not a grant of the running task: this one may end before the request does, as
        # the tasks of Starlette's BaseHTTPMiddleware do.
        self._held: Held | None = None
        self._since = 0.0
        self._failed = False

    async def __aenter__(self) -> Held:
        try:
            held = await self._acquisition
        except AcquireAbandoned:
            if self._stopping():
                raise ServerStops from None
            raise
        self._held, self._since = held, monotonic()
        state_of(held).enter()
        return held

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        assert self._held is not None
        state, self._failed = state_of(self._held), exc_info[0] is not None
        if self._holds is None:
            self._count()
            with self._releasing():
                await state.exit(*exc_info)
            return
        try:
            await state.exit(*exc_info, keep=True)
        except BaseException:
            self._end_now()  # the grant is lost, or an inner scope was left open
            raise
        if self._failed and self.state.lease.expired():
            # ``exit`` has given it back, and the block's error has precedence.
            self._count()
            return
        # Also if the block failed: whether the framework commits then is not known.
        self._holds.keep(self)

    @property
    def state(self) -> HeldState:
        """The newest state of the grant, which an ``upgrade`` may have replaced."""
        assert self._held is not None
        return state_of(self._held).newest

    async def release(self, *, quietly: bool = False) -> None:
        """Release the lock, which outlived its block; raise as ``Held.release`` does.

        ``quietly``: if the block failed, too, do not wait and raise nothing.
        """
        self._count()
        with self._releasing():
            await self.state.leave(quietly=quietly and self._failed)

    def give_back(self) -> None:
        """Release the lock without waiting for the store, and raise nothing."""
        self._count()
        self.state.give_back()

    def watch(self, scope: anyio.CancelScope) -> None:
        """Cancel ``scope`` if the lock is lost, unless the block has failed."""
        if self.state.options.on_lost == "raise" and not self._failed:
            self.state.watch(scope)

    def unwatch(self, scope: anyio.CancelScope) -> None:
        self.state.unwatch(scope)

    @contextmanager
    def _releasing(self) -> Generator[None, None, None]:
        assert self._held is not None
        try:
            yield
        except BackendError as exc:
            if not self._failed:
                note_release(exc, self._held.resource)
            raise

    def _end_now(self) -> None:
        self._count()
        if self.state.lease.state is LeaseState.HELD:
            self.state.give_back()

    def _count(self) -> None:
        assert self._held is not None
        seconds = monotonic() - self._since
        self._seen.add(self._held.resource, self._lease, seconds)


@final
class RequestHolds:
    """The locks of one request whose blocks were left: its transactions may be open.

    A framework commits behind the handler: in a dependency, a hook or a middleware. If
    the lock were released where the handler ends, the next request would read what is
    not yet committed, and its update would be lost. Invariants
    (test_transactions.py):

    - Every lock is released once: by ``release``, or when ``run`` ends.
    - If one is lost, what still runs of the request is cancelled, and ``run`` raises
      the loss, unless the application raised an error of its own. Either way ``error``
      has the loss.

    Attributes:
        to_the_end: whether the locks are kept until all of the request has ended; else
            until its answer begins.
        error: why a lock was not released in good order; None so far.
    """

    def __init__(self) -> None:
        self.to_the_end: bool = False
        self.error: LockError | None = None
        self._kept: list[Holding] = []
        self._scope = anyio.CancelScope()

    def keep(self, holding: Holding) -> None:
        """Keep a lock whose block has ended."""
        self._kept.append(holding)
        holding.watch(self._scope)

    async def release(self, *, quietly: bool = False) -> None:
        """Release the locks that are kept, the newest first.

        Raise the first loss, or the first error of the store, after all were asked for.
        ``quietly``: the answer is that of a failure, so that the locks whose block
        failed are released without waiting.
        """
        found: LockError | None = None
        while self._kept:
            holding = self._kept.pop()
            holding.unwatch(self._scope)
            try:
                await holding.release(quietly=quietly)
            except LockError as error:
                found = found or error
        if found is not None:
            self.error = found
            raise found

    def give_back(self) -> None:
        """Release the locks that are kept without waiting for the store."""
        lost = self._scope.cancel_called
        while self._kept:
            holding = self._kept.pop()
            holding.unwatch(self._scope)
            if lost and holding.state.lease.expired():
                self.error = self.error or holding.state.error()
            holding.give_back()

    async def run(self, request: Awaitable[T]) -> T:
        """Await all of a request, release its locks, and return its result.

        If it fails, the locks are released without waiting for the store.
        """
        try:
            with self._scope:
                result = await request
                await self.release()
                return result
            # Only a loss cancels the scope, and the release raises it.
            await self.release()
        finally:
            self.give_back()
        raise AssertionError("a lost grant raised when it was released")
