"""The locks of the event loops themselves: in one process, without a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import trio

from benchmarks.peer import ASYNCIO, TRIO, Cycle, Peer


@asynccontextmanager
async def _asyncio(_: Path) -> AsyncIterator[Callable[[], Cycle]]:
    lock = asyncio.Lock()
    yield lambda: lock


@asynccontextmanager
async def _trio(_: Path) -> AsyncIterator[Callable[[], Cycle]]:
    lock = trio.Lock()
    yield lambda: lock


@asynccontextmanager
async def _anyio(_: Path) -> AsyncIterator[Callable[[], Cycle]]:
    lock = anyio.Lock()
    yield lambda: lock


PEERS = [
    Peer("asyncio.Lock", "memory", _asyncio, loops=ASYNCIO, floor=True),
    Peer("trio.Lock", "memory", _trio, loops=TRIO, floor=True),
    Peer("anyio.Lock", "memory", _anyio),
]
