"""A server that writes down what it is asked, and what a test needs to read it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import psycopg

from aiorwlock_remote import Held, Locks
from aiorwlock_remote.testing.conformance.actors import wait_until
from tests.servers.postgresql import Postgresql

LOUD = {"log_statement": "all", "log_line_prefix": "%a|"}


def log_of(server: Postgresql) -> str:
    return Path(server.folder / server.log_name).read_text()


def statements(server: Postgresql) -> list[str]:
    """What this library has asked for so far, by the server's log."""
    return [entry.split("\n")[0] for entry in _entries(server)]


def swaps(server: Postgresql) -> list[bool]:
    """Those among them that change something: whether each need not be on the disk."""
    begins = "WITH kept", "WITH unlocked"
    asked = [entry for entry in _entries(server) if entry.startswith(begins)]
    return ["set_config('synchronous_commit', 'off'" in entry for entry in asked]


def _entries(server: Postgresql) -> list[str]:
    asked = r"^aiorwlock_remote\|LOG:  (?:execute [^:]*|statement): "
    return re.split(asked, log_of(server), flags=re.MULTILINE)[1:]


async def waits(server: Postgresql) -> bool:
    """Whether a session waits for a lock of another."""
    with psycopg.connect(server.url) as connection:
        query = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        return connection.execute(query).fetchone() is not None


async def queued(locks: Locks, number: int = 1, kind: str = "order") -> bool:
    return len((await locks.mutex(kind, 1).info()).queue) == number


async def take(locks: Locks) -> None:
    async with locks.mutex("order", 1):
        pass


@asynccontextmanager
async def waited_for(
    others: Locks,
    locks: Locks,
    until: Callable[[], Awaitable[bool]] | None = None,
    seconds: float = 5,
) -> AsyncIterator[Held]:
    """A grant of ``others`` for which a task of ``locks`` waits, until the block ends.

    ``until``: what is true before the block begins; None: the task is in the queue.
    """
    held = await others.mutex("order", 1).acquire()
    async with anyio.create_task_group() as group:
        group.start_soon(take, locks)
        await wait_until(until or partial(queued, others), seconds)
        yield held
        await held.release()
