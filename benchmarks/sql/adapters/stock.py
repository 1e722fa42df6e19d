"""A few connections for many tasks, the one used last first; as cheap as can be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

C = TypeVar("C")


class Stock(Generic[C]):
    """Opened when needed, ``most`` at once."""

    def __init__(self, dial: Callable[[], Awaitable[C]], most: int) -> None:
        self._dial = dial
        self._turns = asyncio.Semaphore(most)
        self._idle: list[C] = []
        self.opened: list[C] = []

    async def take(self) -> C:
        """One that nobody else uses."""
        await self._turns.acquire()
        if self._idle:
            return self._idle.pop()
        self.opened.append(await self._dial())
        return self.opened[-1]

    def give(self, connection: C) -> None:
        """For the next one."""
        self._idle.append(connection)
        self._turns.release()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[C]:
        """One for as long as it takes."""
        connection = await self.take()
        try:
            yield connection
        finally:
            self.give(connection)
