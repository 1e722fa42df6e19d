"""``Multi``: several locks at once, all or none, acquired without deadlocks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Any, final

import anyio

from aiorwlock_remote._util.exc_info import ExcInfo
from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import BackendError, ConfigurationError, LockTimeout
from aiorwlock_remote.locks.acquisition import Acquisition, SingleEntry, one_timeout
from aiorwlock_remote.locks.held import Held, state_of
from aiorwlock_remote.locks.lock import AnyLock, parts_of
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.runtime.acquirer import Obtain, try_acquire_all
from aiorwlock_remote.runtime.lease import AcquireRequest, Lease


@final
class Multi:
    """One attempt to get all of several locks, or none; awaited or entered once.

    First all locks are requested together. If not all are free, they are acquired one
    by one in the order of their names, so that no two attempts wait for each other; if
    a later lock is not obtained, the earlier ones are released. The result is a tuple
    of ``Held`` in the order in which the locks were passed. In ``async with``, losing
    any of these grants cancels the body.
    """

    def __init__(
        self,
        session: Session,
        locks: Sequence[AnyLock],
        timeout: float | None,
        reason: str,
    ) -> None:
        check_seconds("timeout", timeout)
        self._session = session
        self._locks = locks
        self._timeout = timeout
        self._reason = reason
        self._stack = AsyncExitStack()
        if not locks:
            raise ConfigurationError(what="multi() needs at least one lock")
        seen: set[str] = set()
        for lock in locks:
            # A lock of another ``Locks`` would be asked for in this one's store.
            given: object = lock
            if not (isinstance(given, AnyLock) and parts_of(given)[0] is session):
                raise ConfigurationError(
                    what=f"multi() cannot acquire {quoted(given)}",
                    hint="mutex, reader and writer locks of the same Locks",
                )
            if lock.key in seen:
                raise ConfigurationError(
                    what=f"multi() was given {lock.resource} twice"
                )
            seen.add(lock.key)
        self._inside = SingleEntry(
            "multi(…)", lambda: f"multi(…) of {len(locks)} locks"
        )

    def __await__(self) -> Generator[Any, Any, tuple[Held, ...]]:
        self._inside.used()
        return self._get().__await__()

    async def __aenter__(self) -> tuple[Held, ...]:
        with self._inside, self._in_time() as left:
            async with AsyncExitStack() as stack:
                got: dict[AnyLock, Held] = {}
                for lock, acquisition in await self._begin(left):
                    got[lock] = await stack.enter_async_context(acquisition)
                self._stack = stack.pop_all()
        return tuple(got[lock] for lock in self._locks)

    async def __aexit__(self, *exc_info: *ExcInfo) -> None:
        try:
            await self._stack.__aexit__(*exc_info)
        finally:
            self._inside.left()

    async def _get(self) -> tuple[Held, ...]:
        got: dict[AnyLock, Held] = {}
        try:
            with self._in_time() as left:
                for lock, acquisition in await self._begin(left):
                    got[lock] = await acquisition
        except BaseException:
            # Without waiting for the answers: a wait could be cancelled half-way.
            for held in got.values():
                state_of(held).give_back()
            raise
        return tuple(got[lock] for lock in self._locks)

    def _in_time(self) -> AbstractContextManager[Callable[[], float | None]]:
        return one_timeout(self._session.client.clock, self._timeout)

    async def _begin(
        self, left: Callable[[], float | None]
    ) -> Iterator[tuple[AnyLock, Acquisition]]:
        leases = await self._try_all()

        def acquisition(lock: AnyLock) -> Acquisition:
            session, request, options = parts_of(lock)
            request = request.once(left(), self._reason)
            lease = leases.get(lock)
            obtain = None if lease is None else _granted(lease)
            return Acquisition(session, request, options, obtain)

        # In one order for all processes: else two that wait for each other's lock would
        # wait for ever.
        ordered = sorted(self._locks, key=lambda lock: lock.key)
        return ((lock, acquisition(lock)) for lock in ordered)

    async def _try_all(self) -> dict[AnyLock, Lease]:
        requests: list[AcquireRequest] = []
        for lock in self._locks:
            session, request, _ = parts_of(lock)
            await session.may_ask(request.resource)
            requests.append(request.once(None, self._reason))
        # All locks if they are free now, else none. One lock is waited for at once:
        # trying it first would cost a request.
        if len(requests) == 1:
            return {}
        leases = None
        # A timeout of 0 is one try, however long that takes.
        with anyio.move_on_after(self._timeout or None) as scope:
            try:
                leases = await try_acquire_all(self._session.client, requests)
            except BackendError as exc:
                # With ``retry_after`` the obstacle may go away: each lock is waited
                # for in turn then, and the wait knows how to retry.
                if exc.retry_after is None:
                    raise
        if scope.cancelled_caught:
            label, mode = requests[0].resource.label, str(requests[0].mode)
            timeout = self._timeout or 0.0
            raise LockTimeout(
                resource=label, mode=mode, timeout=timeout, unanswered=True
            )
        if leases is None:
            return {}
        return dict(zip(self._locks, leases, strict=True))


def _granted(lease: Lease) -> Obtain:
    async def obtain(_: AcquireRequest) -> Lease:
        return lease

    return obtain
