"""Waiting until something has come about at the server or in a ``Locks``."""

from __future__ import annotations

import pytest

from aiorwlock_remote import AcquireUncertain, BackendUnavailable, Held, Locks
from aiorwlock_remote.locks.lock import Mutex, ReaderLock, WriterLock
from tests.backends.redis.connections import eventually
from tests.servers.redis import RedisServer

AnyLock = Mutex | ReaderLock | WriterLock

KEPT = 60.0
"""Seconds of a lease that a change of servers outlives: it may take 30 s, and a renewal
is due after a third of the lease."""
UNAWARE = 45.0
"""Seconds of a lease whose keeper does not ask, and so learns nothing, before that."""

REFUSED = (BackendUnavailable, AcquireUncertain)


async def renewed(server: RedisServer, held: Held) -> None:
    """Wait until the keeper has got through to the server."""
    seat = f"mutex_locks/{held.resource.replace('/', ',')}"
    ends = server.ask("PEXPIRETIME", seat)
    await eventually(lambda: server.ask("PEXPIRETIME", seat) > ends, "renewed", 60)
    held.check()


async def waits(server: RedisServer, lock: AnyLock) -> None:
    """Wait until somebody has a place there."""
    await waits_at(server, f"mutex_locks/{lock.key}".encode())


async def waits_at(server: RedisServer, seat: bytes) -> None:
    """The same, by the seat's name."""
    queue = b"{%b}.queue" % seat
    await eventually(lambda: server.ask("ZCARD", queue) > 0, "somebody waits")


async def take_turn(lock: AnyLock, fences: list[int]) -> None:
    """Take it once, however long that lasts, and note the fence."""
    async with lock.acquire(timeout=60) as held:
        fences.append(held.fence)


def lost(locks: Locks) -> bool:
    """Whether there is no connection."""
    return locks._session.client.store._endpoint._protocol is None  # type: ignore[attr-defined]


async def killed(server: RedisServer, locks: Locks) -> None:
    """Kill the server; return when they have noticed."""
    server.kill()
    await eventually(lambda: lost(locks), "the loss is noticed")


async def refused(lock: AnyLock) -> None:
    """An attempt that fails because of the server."""
    with pytest.raises(REFUSED):
        await lock.acquire()


async def still_works(server: RedisServer, locks: Locks, held: Held) -> None:
    """The old grant goes on, and new ones can be had."""
    await renewed(server, held)
    assert await held.release()
    async with locks.mutex("afterwards", 1).acquire(timeout=10):
        pass
