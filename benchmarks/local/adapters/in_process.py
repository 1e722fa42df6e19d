"""Locks of one process without a store: those of the event loops, and aiorwlock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import aiorwlock
import anyio
import trio

from benchmarks.harness.lock import Client, Cycle, Open


class _OneLock:
    """A client whose tasks all share one lock."""

    def __init__(self, lock: Cycle) -> None:
        self._lock = lock

    async def lock(self, key: str, mode: str) -> Cycle:
        del key, mode
        return self._lock


def _opener(make: Callable[[], object]) -> Open:
    @asynccontextmanager
    async def connect(url: str, lease: float) -> AsyncIterator[Client]:
        del url, lease
        # The __aexit__ of aiorwlock and trio have types of their own.
        yield _OneLock(cast("Cycle", make()))

    return connect


asyncio_lock = _opener(asyncio.Lock)
trio_lock = _opener(trio.Lock)
anyio_lock = _opener(anyio.Lock)
aiorwlock_reader = _opener(lambda: aiorwlock.RWLock().reader)
aiorwlock_writer = _opener(lambda: aiorwlock.RWLock().writer)
