"""Where an acquisition gets its grant from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

from aiorwlock_remote.errors import Closed
from aiorwlock_remote.runtime.lease import Lease
from aiorwlock_remote.runtime.request import AcquireRequest
from aiorwlock_remote.runtime.store_client import StoreClient


class Acquirer(Protocol):
    """Where grants come from: ``LockAcquirer``, or what waits for mutexes of a set."""

    async def acquire(self, request: AcquireRequest) -> Lease:
        """Wait for a grant; as ``BaseAcquirer.acquire``."""

    async def try_acquire(self, request: AcquireRequest) -> Lease | None:
        """A grant if it can be had right now."""


class AcquireAbandoned(Exception):
    """Nobody wants the lock any more; it is not held."""


class AbandonableAcquirer:
    """Waits for a grant only as long as somebody wants it."""

    def __init__(
        self,
        source: Acquirer,
        drive: StoreClient,
        over: Callable[[], Awaitable[object]],
    ) -> None:
        """``over`` returns when nobody wants it any more; it may be cancelled."""
        self._source = source
        self._drive = drive
        self._over = over

    async def acquire(self, request: AcquireRequest) -> Lease:
        """A grant; cancelled or not wanted, it leaves nothing behind.

        Raises:
            NotWanted: ``over`` returned first.
            LockError: as the source does.
        """
        lease: Lease | None = None
        error: Exception | None = None

        async def watch() -> None:
            await self._over()
            tasks.cancel_scope.cancel()

        def let_go() -> None:
            if lease is not None:
                self._drive.release(lease).log_failure()

        try:
            with self._drive.closing.under(let_go):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(watch)
                    try:
                        lease = await self._source.acquire(request)
                    except Exception as exc:  # noqa: BLE001 - raised below, no group
                        error = exc
                    tasks.cancel_scope.cancel()
        except Closed:
            raise
        except BaseException:
            let_go()
            raise
        if error is not None:
            try:
                raise error
            finally:
                del error  # this frame is in its traceback
        if lease is None:
            raise AcquireAbandoned
        return lease

    async def try_acquire(self, request: AcquireRequest) -> Lease | None:
        """A grant if it can be had right now."""
        return await self._source.try_acquire(request)
