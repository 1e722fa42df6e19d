"""Idle connections that the server has just ended, while the event loop did not run."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import psycopg
import pytest

from aiorwlock_remote import Locks, connect
from aiorwlock_remote.backends.postgresql import PostgresqlBackend
from tests.backends.mariadb.products import kill, sessions
from tests.backends.postgresql.test_engines import lent

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.slow,
]

ESTABLISHED = "01"
TERMINATE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def end_mariadb(url: str) -> None:
    kill(url, *sessions(url, "command = 'Sleep'"))


def end_postgresql(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(TERMINATE)


class Way(NamedTuple):
    """How the connections are opened.

    ``tables``: the fixture with the URL; ``end``: ends all sessions of a database.
    """

    tables: str
    kind: str
    end: Callable[[str], None]


WAYS = [
    Way("mariadb_tables", "url", end_mariadb),
    Way("mysql_tables", "url", end_mariadb),
    Way("tables", "url", end_postgresql),
    Way("tables", "pool", end_postgresql),
    Way("tables", "engine", end_postgresql),
]


@asynccontextmanager
async def opened(kind: str, url: str) -> AsyncIterator[Locks]:
    if kind == "url":
        async with connect(url) as locks:
            yield locks
        return
    async with lent(kind, url) as given, connect(PostgresqlBackend(given)) as locks:
        yield locks


@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way.tables}-{way.kind}")
async def test_an_acquire_gets_another_one(
    way: Way, request: pytest.FixtureRequest
) -> None:
    url: str = request.getfixturevalue(way.tables)
    port = urlsplit(url).port
    before = open_sockets(port)
    async with opened(way.kind, url) as locks:
        everybody = Together(3)
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(everybody.hold, locks, number)
        assert open_sockets(port) - before
        await opened_all(port)
        way.end(url)
        wait_ended(port, before)
        for number in range(3):
            async with locks.mutex("order", number).acquire(timeout=20) as held:
                assert held.fence


async def opened_all(port: int | None) -> None:
    """Wait until no connection is being opened: the server could not end that one."""
    seen, since = open_sockets(port), time.monotonic()
    while time.monotonic() < since + 0.5:
        await anyio.sleep(0.05)
        if (now := open_sockets(port)) != seen:
            seen, since = now, time.monotonic()


def wait_ended(port: int | None, others: set[str]) -> None:
    """Block the event loop, which must not hear of it, until the kernel has."""
    ends = time.monotonic() + 30
    while open_sockets(port) - others:
        assert time.monotonic() < ends
        time.sleep(0.01)


class Together:
    """So many tasks that hold locks at the same time."""

    def __init__(self, tasks: int) -> None:
        self._left = tasks
        self._all = anyio.Event()

    async def hold(self, locks: Locks, number: int) -> None:
        async with locks.mutex("order", number):
            self._left -= 1
            if not self._left:
                self._all.set()
            await self._all.wait()


def open_sockets(port: int | None) -> set[str]:
    """This process' sockets to that port whose other end is open, by inode."""
    own = set[str]()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            own.add(entry.readlink().name.removeprefix("socket:[").rstrip("]"))
        except OSError:  # the folder's own
            continue
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    rows: list[Any] = [line.split() for line in lines]
    return {
        row[9]
        for row in rows
        if row[3] == ESTABLISHED
        and row[9] in own
        and int(row[2].rpartition(":")[2], 16) == port
    }
