"""A store for the live page, whose locks and failures a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio

from aiorwlock_remote import LockInfo
from aiorwlock_remote.locks.changes import StoreScanner

TIMEOUT = 20.0


class FakeStore(StoreScanner):
    """A store whose locks and failures a test sets; it counts the looks."""

    def __init__(self, *found: LockInfo) -> None:
        self.found = list(found)
        self.error: Exception | None = None
        self.scans = self.closed = self.at_once = 0
        self.ended: list[tuple[LockInfo, str]] = []
        self.may_answer: anyio.Event | None = None

    async def scan(self) -> list[LockInfo]:
        self.scans += 1
        self.at_once += 1
        assert self.at_once == 1
        found = list(self.found)
        try:
            if self.may_answer is not None:
                await self.may_answer.wait()
            if self.error is not None:
                raise self.error
            return found
        finally:
            self.at_once -= 1

    async def force_release(self, seen: LockInfo, reason: str) -> int:
        if self.error is not None:
            raise self.error
        self.ended.append((seen, reason))
        return len(seen.holders)

    async def aclose(self) -> None:
        self.closed += 1


async def until(seen: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not seen():  # noqa: ASYNC110 - what is seen has no event
            await asyncio.sleep(0.001)
