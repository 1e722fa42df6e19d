"""aiorwlock: the readers-writer lock of asyncio, in one process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from aiorwlock import RWLock

from benchmarks.peer import ASYNCIO, Cycle, Peer


@asynccontextmanager
async def _reader(_: Path) -> AsyncIterator[Callable[[], Cycle]]:
    lock = cast("Cycle", RWLock().reader)  # its __aexit__ is typed in a way of its own
    yield lambda: lock


@asynccontextmanager
async def _writer(_: Path) -> AsyncIterator[Callable[[], Cycle]]:
    lock = cast("Cycle", RWLock().writer)
    yield lambda: lock


PEERS = [
    Peer("aiorwlock reader", "memory", _reader, loops=ASYNCIO, shared=True),
    Peer("aiorwlock writer", "memory", _writer, loops=ASYNCIO),
]
