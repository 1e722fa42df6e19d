"""Readers-writer locks on pairs of keys, and what stands at the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Unpack

from aiorwlock_remote import OptionArgs, RWLock, connect
from aiorwlock_remote.core.commands import Acquire, Claim, Granted
from aiorwlock_remote.core.names import KeyPair, key_pair
from aiorwlock_remote.core.ticket import Mode
from aiorwlock_remote.locks.lock import ReaderLock, WriterLock
from tests.backends.redis.connections import eventually
from tests.servers.redis import RedisServer

NAME = "catalog:7"
TARGET: KeyPair = key_pair("catalog", 7)
READ_KEY, WRITE_KEY = f"readlock:{NAME}", f"writelock:{NAME}"
PARTS = ("state", "expiry", "queue")
STATE, EXPIRY, QUEUE = (f"{{{READ_KEY}}}.{part}" for part in PARTS)
MODES = ("read", "write")


@asynccontextmanager
async def catalog(
    server: RedisServer, **options: Unpack[OptionArgs]
) -> AsyncIterator[RWLock]:
    """The lock, over a connection of its own."""
    async with connect(server.url) as locks:
        yield locks.set_rwlock("catalog", 7, **options)


def side(lock: RWLock, mode: str) -> ReaderLock | WriterLock:
    return lock.writer if mode == "write" else lock.reader


def traces(server: RedisServer) -> list[bytes]:
    """What waiting and holding left behind; nothing, once all have ended."""
    keys: list[bytes] = server.ask("KEYS", "*")
    flat: list[bytes] = server.ask("HGETALL", STATE)
    fields = {k: v for k, v in zip(flat[::2], flat[1::2], strict=True) if v}
    about = [field for field in fields if field.startswith((b"reader:", b"writer"))]
    return sorted([key for key in keys if key != STATE.encode()] + about)


async def queued(server: RedisServer, count: int) -> None:
    await eventually(lambda: server.ask("ZCARD", QUEUE) == count, f"{count} wait")


def store_of(lock: RWLock) -> Any:  # noqa: ANN401 - to ask it what no lock would
    return lock.reader._session.client.store


async def die(lock: RWLock, mode: str, ticket: str, lease: int) -> int:
    """A process takes it and is never heard of again; its fence."""
    claim = Claim(ticket, lease)
    reply = await store_of(lock).step(TARGET, Acquire((claim,), Mode(mode)))
    assert isinstance(reply, Granted)
    return reply.grants[0].fence
