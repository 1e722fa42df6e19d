"""An event loop that ends with a lock held: nobody is left who could release it."""

from __future__ import annotations

import asyncio
import threading
import time
from uuid import uuid4

import pytest
import trio

from aiorwlock_remote import Held, Locks, connect
from aiorwlock_remote.runtime.asyncio_loop import AsyncioEventLoop
from aiorwlock_remote.runtime.event_loop import SystemClock
from aiorwlock_remote.runtime.trio_loop import TrioEventLoop


def keepers() -> set[threading.Thread]:
    threads = threading.enumerate()
    return {thread for thread in threads if "aiorwlock_remote" in thread.name}


def test_its_grant_is_not_renewed_for_ever() -> None:
    """Though something goes on referring to the ``Held``."""
    before = keepers()
    url, kept = f"memory://{uuid4().hex}", list[tuple[Locks, Held]]()

    async def first() -> None:
        locks = await connect(url, lease=0.5)
        kept.append((locks, await locks.mutex("order", 1).acquire()))

    async def second() -> None:
        async with connect(url) as locks, locks.mutex("order", 1).acquire(timeout=20):
            _, held = kept[0]
            assert not held.valid
            assert held.lost == "expired"

    asyncio.run(first())
    asyncio.run(second())
    with pytest.warns(ResourceWarning, match="was never closed"):
        kept.clear()
    until = time.monotonic() + 30
    while keepers() - before:
        assert time.monotonic() < until, "its threads have ended"
        time.sleep(0.01)


def test_whether_it_has_ended() -> None:
    async def asyncio_host() -> AsyncioEventLoop:
        event_loop = AsyncioEventLoop(SystemClock())
        assert not event_loop.is_closed()
        return event_loop

    async def trio_host() -> TrioEventLoop:
        event_loop = TrioEventLoop(SystemClock())
        assert not event_loop.is_closed()
        return event_loop

    assert asyncio.run(asyncio_host()).is_closed()
    assert trio.run(trio_host).is_closed()
