"""Cases: input that is not allowed is refused before anything changes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aiorwlock_remote import ConfigurationError, Locks, connect
from aiorwlock_remote.testing.conformance.cases.base import Cases
from aiorwlock_remote.testing.conformance.harness import StoreUnderTest

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
    """Bad names, options, URLs, timeouts and leases raise ``ConfigurationError``."""

    @pytest.fixture
    async def untouched(self, locks: Locks) -> AsyncIterator[Locks]:
        """A ``Locks``; the test fails if it leaves a lock held or a waiter queued."""
        yield locks
        assert [d async for d in locks.list()] == []

    @pytest.mark.parametrize("what", list(BAD_NAMES))
    async def test_names(self, untouched: Locks, what: str) -> None:
        """A bad name raises ``ConfigurationError`` before any request is sent."""
        name: Any = BAD_NAMES[what]
        with pytest.raises(ConfigurationError):
            untouched.mutex(*name)
        with pytest.raises(ConfigurationError):
            untouched.rwlock(*name)
        with pytest.raises(ConfigurationError):
            await untouched.acquire_mutex_lock(name[0], name[1], "gluww")
        with pytest.raises(ConfigurationError):
            await untouched.release_readers_lock(name[0], name[1], "gluww")

    async def test_options_of_a_lock(self, untouched: Locks) -> None:
        """A bad option of a lock or ``acquire`` raises ``ConfigurationError``."""
        for name, value in FLAT:
            option: Any = {name: value}
            with pytest.raises(ConfigurationError):
                untouched.mutex("order", 1, **option)
            with pytest.raises(ConfigurationError):
                untouched.rwlock("order", 1, **option)
            if name == "timeout":
                continue
            with pytest.raises(ConfigurationError):
                await untouched.mutex("order", 1).acquire(**option)
            with pytest.raises(ConfigurationError):
                await untouched.mutex("order", 1).try_acquire(**option)

    async def test_options_of_connect(self, store: StoreUnderTest) -> None:
        """``connect`` raises ``ConfigurationError`` for a bad option or prefix."""
        for name, value in (
            *FLAT,
            *(("prefix", prefix) for prefix in BAD_PREFIXES),
            *(("connect_timeout", number) for number in (*NO_NUMBERS, None)),
            *(("fence_memory", number) for number in (*NO_NUMBERS, None)),
            *(("min_replicas", number) for number in (-1, 0.5, True, "1", None)),
        ):
            option: Any = {name: value}
            with pytest.raises(ConfigurationError):
                await connect(store.site.url, **option)

    async def test_urls(self, store: StoreUnderTest) -> None:
        """A URL with unknown option or scheme raises ``ConfigurationError``."""
        url = store.site.url
        for bad in (
            f"{url}{'&' if '?' in url else '?'}nonsense=1",
            f"x{url}",
            url.partition("://")[2],
            "",
            "://",
            None,
            7,
            Path("locks.db"),
        ):
            with pytest.raises(ConfigurationError):
                await connect(bad)  # type: ignore[arg-type]

    async def test_timeouts(self, untouched: Locks) -> None:
        """A negative, infinite or non-numeric timeout raises ``ConfigurationError``."""
        lock = untouched.rwlock("order", 1)
        for bad in NO_NUMBERS:
            timeout: Any = bad
            with pytest.raises(ConfigurationError):
                await lock.writer.acquire(timeout)
            with pytest.raises(ConfigurationError):
                await lock.reader.acquire(timeout=timeout)
            with pytest.raises(ConfigurationError):
                await untouched.multi(lock.reader, timeout=timeout)
            with pytest.raises(ConfigurationError):
                await anext(untouched.stale(timeout))
        with pytest.raises(ConfigurationError):
            await anext(untouched.stale(None))  # type: ignore[arg-type]

    async def test_leases_of_the_calls(self, untouched: Locks) -> None:
        """Calls that take a lease raise ``ConfigurationError`` for a bad one."""
        calls: list[Callable[..., Awaitable[bool]]] = [
            untouched.acquire_mutex_lock,
            untouched.acquire_readers_lock,
            untouched.acquire_writer_lock,
        ]
        for bad in (*NO_NUMBERS, 0, 0.1):
            for call in calls:
                with pytest.raises(ConfigurationError):
                    await call("order", 1, "gluww", lease=bad)
            async with untouched.mutex("order", 2) as held:
                with pytest.raises(ConfigurationError):
                    await held.extend(bad)  # type: ignore[arg-type]
                held.check()
            async with untouched.rwlock("order", 3).reader as held:
                if bad == 0:
                    continue
                with pytest.raises(ConfigurationError):
                    await held.upgrade(-1 if bad == 0.1 else bad)  # type: ignore[arg-type]
                held.check()

    async def test_options_resolve(self, store: StoreUnderTest) -> None:
        """Options of ``acquire`` override the lock's, which override ``connect``'s."""
        async with store.connect(lease=10) as locks:
            async with locks.mutex("order", 1) as held:
                assert 5 < (held.expires_in or 0) < 10
            async with locks.mutex("order", 1, lease=20) as held:
                assert 15 < (held.expires_in or 0) < 20
            lock = locks.mutex("order", 1, lease=20)
            async with lock.acquire(lease=40) as held:
                assert 35 < (held.expires_in or 0) < 40
            async with lock.acquire(lease=None) as held:
                assert held.expires_in is None
