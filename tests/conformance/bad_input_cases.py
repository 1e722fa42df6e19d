"""Cases: input that is not allowed is refused before anything changes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from aiorwlock_remote import ConfigurationError, Locks, connect
from aiorwlock_remote.testing.conformance.cases.base import Cases

BAD_NAMES: dict[str, tuple[object, object]] = {
    "empty type": ("", 1),
    "empty id": ("order", ""),
    "bool id": ("order", True),
    "None id": ("order", None),
    "float id": ("order", 1.0),
    "bytes id": ("order", b"1"),
    "tuple id": ("order", ("a", 1)),
    "list id": ("order", [1]),
    "int type": (7, 1),
    "bytes type": (b"order", 1),
    "lone surrogate": ("order", "\ud800"),
    "surrogate type": ("\udfff", 1),
}
NO_NUMBERS: tuple[object, ...] = (math.nan, math.inf, -math.inf, -1, "3", True, 1e300)
BAD_OPTIONS: dict[str, tuple[object, ...]] = {
    "lease": (*NO_NUMBERS, 0, 0.1, 0.199),
    "policy": ("", "barge", "FAIR", None, 7),
    "fair": ("no", None, 1),
    "on_lost": ("ignore", None, 7),
    "max_stall": NO_NUMBERS,
    "max_hold": NO_NUMBERS,
    "margin": (*NO_NUMBERS, 30),
    "slow_wait": NO_NUMBERS,
    "max_waiters": (0, -1, 1.5, True, "3"),
    "lock_delay": (*NO_NUMBERS, None),
    "leese": (3,),
    "timeout": (3,),
}
FLAT = [(name, value) for name, values in BAD_OPTIONS.items() for value in values]
BAD_PREFIXES: tuple[object, ...] = ("a{b}", "{", "}", "a,b", "a%b", "a\nb", None, 7)


class BadInputCases(Cases):
    """Bad names, options, timeouts and leases raise ``ConfigurationError``."""

    async def refuses(self, *calls: Callable[[], object]) -> None:
        """Call all; fail unless each raises ``ConfigurationError``."""
        await self.all_raise(ConfigurationError, *calls)

    @pytest.fixture
    async def untouched(self) -> AsyncIterator[Locks]:
        """A ``Locks``; the test fails if it leaves a lock held or a waiter queued."""
        yield self.locks
        assert [d async for d in self.locks.list()] == []

    @pytest.mark.parametrize("what", list(BAD_NAMES))
    async def test_names(self, untouched: Locks, what: str) -> None:
        """A bad name raises ``ConfigurationError`` before any request is sent."""
        kind: Any
        number: Any
        kind, number = BAD_NAMES[what]
        await self.refuses(
            partial(untouched.mutex, kind, number),
            partial(untouched.rwlock, kind, number),
            partial(untouched.acquire_mutex_lock, kind, number, "gluww"),
            partial(untouched.release_readers_lock, kind, number, "gluww"),
        )

    async def test_options_of_a_lock(self, untouched: Locks) -> None:
        """A bad option of a lock or ``acquire`` raises ``ConfigurationError``."""
        for name, value in FLAT:
            option: Any = {name: value}
            calls = [untouched.mutex, untouched.rwlock]
            for call in calls:
                await self.refuses(partial(call, "order", 1, **option))
            lock = untouched.mutex("order", 1)
            for ask in (lock.acquire, lock.try_acquire):
                if name != "timeout":
                    await self.refuses(partial(ask, **option))

    async def test_options_of_connect(self) -> None:
        """``connect`` raises ``ConfigurationError`` for a bad option or prefix."""
        for name, value in (
            *FLAT,
            *(("prefix", prefix) for prefix in BAD_PREFIXES),
            *(("connect_timeout", number) for number in (*NO_NUMBERS, None)),
            *(("fence_memory", number) for number in (*NO_NUMBERS, None)),
            *(("min_replicas", number) for number in (-1, 0.5, True, "1", None)),
        ):
            option: Any = {name: value}
            opening = partial(connect, self.store.site.url, **option)
            await self.refuses(opening)

    async def test_timeouts(self, untouched: Locks) -> None:
        """A negative, infinite or non-numeric timeout raises ``ConfigurationError``."""
        lock = untouched.rwlock("order", 1)
        for bad in NO_NUMBERS:
            timeout: Any = bad
            await self.refuses(
                partial(lock.writer.acquire, timeout),
                partial(lock.reader.acquire, timeout=timeout),
                partial(untouched.multi, lock.reader, timeout=timeout),
                partial(anext, untouched.stale(timeout)),
            )
        nothing: Any = None
        await self.refuses(partial(anext, untouched.stale(nothing)))

    async def test_leases_of_the_calls(self, untouched: Locks) -> None:
        """Calls that take a lease raise ``ConfigurationError`` for a bad one."""
        calls: list[Callable[..., Awaitable[bool]]] = [
            untouched.acquire_mutex_lock,
            untouched.acquire_readers_lock,
            untouched.acquire_writer_lock,
        ]
        bad: Any
        for bad in (*NO_NUMBERS, 0, 0.1):
            for call in calls:
                await self.refuses(partial(call, "order", 1, "gluww", lease=bad))
            async with untouched.mutex("order", 2) as held:
                await self.refuses(partial(held.extend, bad))
                held.check()
            async with untouched.rwlock("order", 3).reader as held:
                if bad != 0:
                    timeout = -1 if bad == 0.1 else bad
                    await self.refuses(partial(held.upgrade, timeout))
                held.check()

    async def test_options_resolve(self) -> None:
        """Options of ``acquire`` override the lock's, which override ``connect``'s."""
        async with self.store.connect(lease=10) as locks:
            async with locks.mutex("order", 1) as held:
                assert 5 < (held.expires_in or 0) < 10
            async with locks.mutex("order", 1, lease=20) as held:
                assert 15 < (held.expires_in or 0) < 20
            lock = locks.mutex("order", 1, lease=20)
            async with lock.acquire(lease=40) as held:
                assert 35 < (held.expires_in or 0) < 40
            async with lock.acquire(lease=None) as held:
                assert held.expires_in is None
