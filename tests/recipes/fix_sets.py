"""Mutex sets of tests, and what stands at the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiorwlock_remote import connect
from aiorwlock_remote.ports import Backend
from aiorwlock_remote.recipes import MutexSet
from tests.servers.redis import RedisServer

KEY = "proxies"
STATE, QUEUE = f"{{{KEY}}}.state", f"{{{KEY}}}.queue"


@dataclass(frozen=True)
class Place:
    """A server, and what ``connect`` is given to use it."""

    server: RedisServer
    store: str | Backend

    def ask(self, *args: str | int | bytes) -> Any:  # noqa: ANN401 - any answer
        """As ``RedisServer``: whatever the place, its server is looked at directly."""
        return self.server.ask(*args)


Server = RedisServer | Place


@asynccontextmanager
async def proxies(
    server: Server,
    *names: str,
    lease: float = 60,
    keep: bool = True,
    revalidate_seconds: float = 1.25,
    max_hold: float | None = None,
) -> AsyncIterator[MutexSet]:
    """A set with these mutexes, over a connection of its own."""
    async with connect(store_of(server)) as locks:
        pool = locks.mutex_set(
            KEY,
            lease=lease,
            keep=keep,
            revalidate_seconds=revalidate_seconds,
            max_hold=max_hold,
        )
        for name in names:
            await pool.create(name)
        yield pool


def store_of(server: Server) -> str | Backend:
    return server.store if isinstance(server, Place) else server.url


def score(server: Server, name: str) -> float | None:
    found = server.ask("ZSCORE", KEY, name)
    return None if found is None else float(found)


def traces(server: Server) -> list[bytes]:
    """What waiting and holding left behind; nothing, once all have ended."""
    fields: list[bytes] = server.ask("HKEYS", STATE)
    held: list[bytes] = server.ask("ZRANGEBYSCORE", KEY, "(0", "+inf")
    queued: list[bytes] = server.ask("ZRANGE", QUEUE, 0, -1)
    return [f for f in fields if f not in (b"last", b"number")] + held + queued


def requests(server: Server) -> int:
    """Scripts run so far."""
    for line in server.ask("INFO", "commandstats").decode().splitlines():
        if line.startswith("cmdstat_evalsha:"):
            return int(line.partition("calls=")[2].partition(",")[0])
    return 0
