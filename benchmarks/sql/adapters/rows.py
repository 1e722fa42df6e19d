"""Row locks of aiorwlock-remote in a table of the user, through the public API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from aiorwlock_remote import Locks
from aiorwlock_remote import connect as connect_locks
from aiorwlock_remote.recipes import RowAcquisition
from benchmarks.harness.lock import Client, Cycle, row_of

FILL = "INSERT INTO invoices (id) VALUES (0), (1)"


class _Rows:
    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self._locks, row_of(key)[1])


class _Lock:
    """The lock of one task."""

    def __init__(self, locks: Locks, number: int) -> None:
        self._row = locks.row_lock("invoices", number)
        self._held: RowAcquisition | None = None

    async def __aenter__(self) -> object:
        self._held = self._row.write()
        return await self._held.__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._held is not None
        await self._held.__aexit__(exc_type, exc, traceback)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """Open one ``Locks`` for row locks without a lease, as they are published."""
    del lease
    async with connect_locks(url) as locks:
        yield _Rows(locks)
