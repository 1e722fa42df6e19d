"""Row locks in a table of the user's, through aiorwlock-remote's public API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.recipes import RowAcquisition
from benchmarks.shared.client import Client, Cycle
from benchmarks.shared.row import row

FILL = "INSERT INTO invoices (id) VALUES (0), (1)"


class _Rows:
    def __init__(self, locks: Locks) -> None:
        self._locks = locks

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self._locks, row(key)[1])


class _Lock:
    """One for each task."""

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
async def open_rows(url: str, lease: float) -> AsyncIterator[Client]:
    """As published: without a lease."""
    del lease
    async with connect(url) as locks:
        yield _Rows(locks)
