"""A turn of the cancellation probe: whatever is done to a lock, and then waiting.

It ends by being cancelled alone, so that a cancellation that was swallowed shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import anyio

from aiorwlock_remote import Held, LockTimeout
from aiorwlock_remote.locks.lock import Mutex, ReaderLock, WriterLock

AnyLock = Mutex | ReaderLock | WriterLock

PATIENCE = 5.0
"""Seconds to wait for a lock, and in which a cancelled task must have ended."""


class Inside:
    """Who is inside each resource: two who must not be are counted."""

    def __init__(self) -> None:
        self._inside: dict[str, list[str]] = {}
        self.overlaps = 0

    def enter(self, name: str, mode: str) -> None:
        modes = self._inside.setdefault(name, [])
        self.overlaps += bool(modes) and "write" in {mode, *modes}
        modes.append(mode)

    def leave(self, name: str, mode: str) -> None:
        self._inside[name].remove(mode)


class Attempt:
    """One task's turn, which never ends unless it is cancelled."""

    def __init__(self, lock: AnyLock, inside: Inside, chance: random.Random) -> None:
        self.phase = "acquire"
        self.on_release: Callable[[], object] = lambda: None
        self._lock = lock
        self._inside = inside
        self._form = chance.choice([self._entered, self._acquired, self._tried])
        self._body = chance.uniform(0, 0.004)

    async def run(self) -> None:
        """Take a turn and wait to be cancelled."""
        with suppress(LockTimeout):
            await self._form()
        self.phase = "after"
        await anyio.sleep_forever()

    async def _entered(self) -> None:
        async with self._lock:
            await self._hold()

    async def _acquired(self) -> None:
        await self._held(await self._lock.acquire(timeout=PATIENCE))

    async def _tried(self) -> None:
        held = await self._lock.try_acquire()
        if held is not None:
            await self._held(held)

    async def _held(self, held: Held) -> None:
        try:
            await self._hold()
        finally:
            await held.release()

    async def _hold(self) -> None:
        self.phase = "hold"
        name, mode = self._lock.key, self._lock.mode
        self._inside.enter(name, mode)
        try:
            await anyio.sleep(self._body)
        finally:
            self._inside.leave(name, mode)
        self.phase = "release"
        self.on_release()
