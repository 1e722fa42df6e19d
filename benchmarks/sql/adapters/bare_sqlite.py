"""Two bare transactions in a worker thread: the floor under SQLite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from benchmarks.adapters.sqlite import Bare, Threaded
from benchmarks.shared.client import Client, Cycle


class _Client:
    def __init__(self, bare: Bare) -> None:
        self._bare = bare

    async def lock(self, key: str, mode: str) -> Cycle:
        assert (key, mode) == ("order/1", "mutex"), "it has one row"
        return Threaded(self._bare)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """A file beside that of the URL."""
    del lease
    bare = Bare(Path(url.removeprefix("sqlite:///")).parent)
    yield _Client(bare)
    bare.close()
