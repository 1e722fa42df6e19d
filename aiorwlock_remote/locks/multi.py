"""Several locks at once: sorted, all or none, within one deadline."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, final

from aiorwlock_remote.core.lease import check_seconds
from aiorwlock_remote.errors import ConfigurationError
from aiorwlock_remote.locks.acquisition import Acquisition
from aiorwlock_remote.locks.held import Held
from aiorwlock_remote.locks.lock import Mutex, ReaderLock, WriterLock
from aiorwlock_remote.ports import Clock

AnyLock = Mutex | ReaderLock | WriterLock


@final
class Multi:
    """All of several locks, or none; used once, awaited or entered.

    They are acquired in the order of their names, so that two ``multi`` can never wait
    for each other. What was obtained is given back when a later one is not. Gives the
    grants in the order the locks were passed; losing any of them cancels the body.
    """

    def __init__(
        self,
        locks: Sequence[AnyLock],
        clock: Clock,
        timeout: float | None,
        reason: str,
    ) -> None:
        """Made by ``Locks.multi``, not by users."""
        check_seconds("timeout", timeout)
        self._locks = locks
        self._clock = clock
        self._timeout = timeout
        self._reason = reason
        self._stack = AsyncExitStack()
        names = [lock.key for lock in locks]
        if not locks or len(set(names)) < len(names):
            raise ConfigurationError(
                what="multi() needs different resources, at least one"
            )

    def __await__(self) -> Generator[Any, Any, tuple[Held, ...]]:
        return self._get().__await__()

    async def __aenter__(self) -> tuple[Held, ...]:
        async with AsyncExitStack() as stack:
            got: dict[AnyLock, Held] = {}
            for lock, acquisition in self._sorted():
                got[lock] = await stack.enter_async_context(acquisition)
            self._stack = stack.pop_all()
        return tuple(got[lock] for lock in self._locks)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.__aexit__(exc_type, exc, traceback)

    async def _get(self) -> tuple[Held, ...]:
        got: dict[AnyLock, Held] = {}
        done: list[Acquisition] = []
        try:
            for lock, acquisition in self._sorted():
                got[lock] = await acquisition
                done.append(acquisition)
        except BaseException:
            for acquisition in done:
                acquisition.give_back()
            raise
        return tuple(got[lock] for lock in self._locks)

    def _sorted(self) -> Generator[tuple[AnyLock, Acquisition], None, None]:
        until = None if self._timeout is None else self._clock.now() + self._timeout
        for lock in sorted(self._locks, key=lambda lock: lock.key):
            left = None if until is None else max(0.0, until - self._clock.now())
            yield lock, lock.acquire(left, reason=self._reason)
