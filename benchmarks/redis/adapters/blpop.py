"""A token in a list, which the holder takes out and puts back: the fastest hand-over.

No lease, so not a lock: a holder that dies takes the token along. As BLPOP keeps its
connection busy, every task that waits has one of its own. The server serves those
who wait in the order in which they came.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType

from benchmarks.redis.adapters.wire import Wire
from benchmarks.shared.client import Client, Cycle


class _Lock:
    def __init__(self, wire: Wire, key: str) -> None:
        self._wire = wire
        self._key = key

    async def __aenter__(self) -> None:
        await self._wire.call("BLPOP", self._key, "0")

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._wire.call("LPUSH", self._key, "token")


class _Client:
    def __init__(self, url: str) -> None:
        self._url = url
        self._wires: list[Wire] = []

    async def lock(self, key: str, mode: str) -> Cycle:
        assert mode == "mutex"
        wire = await Wire.open(self._url)
        self._wires.append(wire)
        # Whoever comes first puts the token in.
        if await wire.call("SET", f"{key}:made", "1", "NX") is not None:
            await wire.call("LPUSH", key, "token")
        return _Lock(wire, key)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()


@asynccontextmanager
async def connect(url: str, lease: float) -> AsyncIterator[Client]:
    """As many connections as locks are asked for."""
    del lease
    client = _Client(url)
    yield client
    client.close()
