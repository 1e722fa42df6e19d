"""Mutex sets of tests, and what stands at the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiorwlock_remote import connect
from aiorwlock_remote.recipes import MutexSet
from tests.servers.redis import RedisServer

KEY = "proxies"
STATE, QUEUE = f"{{{KEY}}}.state", f"{{{KEY}}}.queue"


@asynccontextmanager
async def proxies(
    server: RedisServer,
    *names: str,
    lease: float = 60,
    keep: bool = True,
    revalidate_seconds: float = 1.25,
) -> AsyncIterator[MutexSet]:
    """A set with these mutexes, over a connection of its own."""
    async with connect(server.url) as locks:
        pool = locks.mutex_set(
            KEY, lease=lease, keep=keep, revalidate_seconds=revalidate_seconds
        )
        for name in names:
            await pool.create(name)
        yield pool


def score(server: RedisServer, name: str) -> float | None:
    found = server.ask("ZSCORE", KEY, name)
    return None if found is None else float(found)


def traces(server: RedisServer) -> list[bytes]:
    """What waiting and holding left behind; nothing, once all have ended."""
    fields: list[bytes] = server.ask("HKEYS", STATE)
    held: list[bytes] = server.ask("ZRANGEBYSCORE", KEY, "(0", "+inf")
    queued: list[bytes] = server.ask("ZRANGE", QUEUE, 0, -1)
    return [f for f in fields if f not in (b"last", b"number")] + held + queued


def requests(server: RedisServer) -> int:
    """Scripts run so far."""
    for line in server.ask("INFO", "commandstats").decode().splitlines():
        if line.startswith("cmdstat_evalsha:"):
            return int(line.partition("calls=")[2].partition(",")[0])
    return 0
