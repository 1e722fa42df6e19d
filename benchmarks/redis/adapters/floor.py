"""The floor: what a lock with a lease costs at least, two round trips.

``SET NX PX`` and a script that compares and deletes. Nobody can wait for it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from benchmarks.redis.adapters.wire import Wire
from benchmarks.shared.client import Client, Cycle

COMPARE_AND_DELETE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then"
    " return redis.call('DEL', KEYS[1]) end return 0"
)


class _Lock:
    def __init__(self, wire: Wire, sha: str, key: str, lease: float) -> None:
        self._wire = wire
        self._sha = sha
        self._key = key
        self._ticket = secrets.token_hex(16)
        self._lease = str(int(lease * 1000))

    async def __aenter__(self) -> None:
        taken = await self._wire.call(
            "SET", self._key, self._ticket, "NX", "PX", self._lease
        )
        assert taken is not None, "the floor is for one task to a key"

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        gone = await self._wire.call("EVALSHA", self._sha, "1", self._key, self._ticket)
        assert gone == 1


class _Client:
    def __init__(self, wire: Wire, sha: str, lease: float) -> None:
        self._wire = wire
        self._sha = sha
        self._lease = lease

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        return _Lock(self._wire, self._sha, key, self._lease)


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """One connection for all keys."""
    wire = await Wire.open(url)
    sha = await wire.call("SCRIPT", "LOAD", COMPARE_AND_DELETE)
    yield _Client(wire, sha.decode(), lease)
    wire.close()
