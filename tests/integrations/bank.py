"""A counter that a framework's transaction changes, and the barrier at its commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from aiorwlock_remote import Held, Locks
from tests.integrations.guests import until

NAME = "account:{id:int}"


class Bank:
    """Loses an update if a transaction begins while another one commits.

    The first commit waits until its rival is seen: waiting for the lock, as it has to
    be, or with the counter read already. So the outcome is no matter of chance.
    """

    def __init__(self) -> None:
        self.total = 0
        self.reads = 0
        self.events: list[str] = []
        self.committing = asyncio.Event()
        self.locks: Locks | None = None
        self.held: Held | None = None
        self.at_commit: Callable[[], Awaitable[object]] = self.rival_seen
        self.looked: list[bool] = []
        """What ``look`` has found: whether nobody held account 7."""

    async def rival_seen(self) -> None:
        if self.committing.is_set():
            return
        self.committing.set()

        async def seen() -> bool:
            return self.reads == 2 or await self.waiting() == 1

        await until(seen)

    async def waiting(self) -> int:
        """How many tasks wait for account 7."""
        assert self.locks is not None
        info = await self.locks.mutex("account", 7).info()
        return sum(entry.waiting for entry in info.queue)

    async def free(self) -> bool:
        """Whether nobody holds account 7."""
        assert self.locks is not None
        return not (await self.locks.mutex("account", 7).info()).locked

    async def look(self) -> None:
        self.looked.append(await self.free())

    async def two_pay(self, pay: Callable[[], Coroutine[Any, Any, int]]) -> None:
        """Let a second request begin while the first one commits."""
        first = asyncio.create_task(pay())
        committing = asyncio.create_task(self.committing.wait())
        await asyncio.wait({first, committing}, return_when=asyncio.FIRST_COMPLETED)
        assert committing.done(), await first
        second = asyncio.create_task(pay())
        assert [await first, await second] == [200, 200]
        assert self.total == 2


class Transaction:
    """What a session does: it reads, writes, and commits or rolls back."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._written: int | None = None

    def pay(self, held: Held) -> None:
        self._bank.reads += 1
        self._bank.held = held
        self._written = self._bank.total + 1

    async def commit(self) -> None:
        if self._written is not None:
            await self._bank.at_commit()
            self._bank.total, self._written = self._written, None
            self._bank.events.append("committed")

    async def used(self) -> AsyncIterator[Transaction]:
        """The usual dependency: commit, or roll back after an error."""
        yield self
        await self.commit()
