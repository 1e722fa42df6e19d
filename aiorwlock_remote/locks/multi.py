"""Several locks at once: sorted, all or none, within one deadline."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from types import TracebackType
from typing import Any, final

import anyio

from aiorwlock_remote.core.text import quoted
from aiorwlock_remote.core.timing import check_seconds
from aiorwlock_remote.errors import BackendError, ConfigurationError, LockTimeout
from aiorwlock_remote.locks.acquisition import Acquisition, SingleEntry
from aiorwlock_remote.locks.held import Held, state_of
from aiorwlock_remote.locks.lock import AnyLock, parts_of
from aiorwlock_remote.locks.session import Session
from aiorwlock_remote.runtime.acquirer import Acquirer, try_acquire_all
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.request import AcquireRequest


@final
class Multi:
    """All of several locks, or none; used once, awaited or entered.

    They are asked for together. If not all are free they are acquired in the order of
    their names, so that two ``multi`` can never wait for each other; what was obtained
    is given back when a later one is not. Gives the grants in the order the locks were
    passed; losing any of them cancels the body.
    """

    def __init__(
        self,
        session: Session,
        locks: Sequence[AnyLock],
        timeout: float | None,
        reason: str,
    ) -> None:
        """Made by ``Locks.multi``, not by users."""
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
            _check(session, lock)
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
        with self._inside, self._told_as_asked():
            async with AsyncExitStack() as stack:
                got: dict[AnyLock, Held] = {}
                for lock, acquisition in await self._begin():
                    got[lock] = await stack.enter_async_context(acquisition)
                self._stack = stack.pop_all()
        return tuple(got[lock] for lock in self._locks)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._stack.__aexit__(exc_type, exc, traceback)
        finally:
            self._inside.left()

    async def _get(self) -> tuple[Held, ...]:
        got: dict[AnyLock, Held] = {}
        try:
            with self._told_as_asked():
                for lock, acquisition in await self._begin():
                    got[lock] = await acquisition
        except BaseException:
            for held in got.values():
                state_of(held).give_back()
            raise
        return tuple(got[lock] for lock in self._locks)

    @contextmanager
    def _told_as_asked(self) -> Generator[None, None, None]:
        """Each lock is waited for with what is left of the time: not what was said."""
        try:
            yield
        except LockTimeout as exc:
            exc.timeout = self._timeout or 0.0
            raise

    async def _begin(self) -> Iterator[tuple[AnyLock, Acquisition]]:
        clock, until = self._session.host.clock, None
        if self._timeout is not None:
            until = clock.now() + self._timeout
        got = await self._at_once()

        def left() -> float | None:
            return None if until is None else max(0.0, until - clock.now())

        def among(lock: AnyLock) -> Acquisition:
            session, request, options = parts_of(lock)
            request = request.once(left(), self._reason)
            return Acquisition(session, request, options, got.get(lock))

        ordered = sorted(self._locks, key=lambda lock: lock.key)
        return ((lock, among(lock)) for lock in ordered)

    async def _at_once(self) -> dict[AnyLock, Acquirer]:
        """Grants of all, if all are free; else of none."""
        requests: list[AcquireRequest] = []
        for lock in self._locks:
            session, request, _ = parts_of(lock)
            await session.may_ask(request.resource)
            requests.append(request.once(None, self._reason))
        if len(requests) == 1:
            return {}
        leases = None
        # 0 is one try, however long that takes.
        with anyio.move_on_after(self._timeout or None) as scope:
            try:
                leases = await try_acquire_all(self._session.drive, requests)
            except BackendError as exc:
                if exc.retry_after is None:
                    raise  # else it may pass, and each of them is waited for
        if scope.cancelled_caught:
            label, mode = requests[0].resource.label, str(requests[0].mode)
            timeout = self._timeout or 0.0  # requests are under way
            raise LockTimeout(
                resource=label, mode=mode, timeout=timeout, unanswered=True
            )
        if leases is None:
            return {}
        return dict(zip(self._locks, map(_AlreadyGranted, leases), strict=True))


def _check(session: Session, lock: object) -> None:
    """Another store would be asked for another's lock."""
    if not (isinstance(lock, AnyLock) and parts_of(lock)[0] is session):
        raise ConfigurationError(
            what=f"multi() cannot acquire {quoted(lock)}",
            hint="mutex, reader and writer locks of the same Locks",
        )


class _AlreadyGranted:
    """Where a grant comes from that is there already."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def acquire(self, request: AcquireRequest) -> Lease:
        """At once."""
        del request
        return self._lease

    async def try_acquire(self, request: AcquireRequest) -> Lease | None:
        """At once."""
        return await self.acquire(request)
