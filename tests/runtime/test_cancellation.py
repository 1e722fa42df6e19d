"""Cancellation at every await point of acquire, hold, move and release.

Nothing is leaked, the cancellation always gets through, an error never gets lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path

import pytest
from anyio.lowlevel import checkpoint

from aiorwlock_remote import Held, Locks, connect
from tests.runtime.cancel_fuzz import (
    HISTORIES,
    NAME,
    Free,
    History,
    Raised,
    nothing_left,
    settled,
    somebody,
)
from tests.runtime.cut_off import Cut, Mine, by_scope, by_timeout, natively
from tests.servers.redis import RedisServer

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.no_uvloop("it is the task that is cancelled, whatever the loop"),
]

TRIALS = 80


Open = Callable[[], AbstractAsyncContextManager[Locks]]


STORES = (
    "memory",
    pytest.param("sqlite", marks=pytest.mark.slow),
    pytest.param("redis", marks=pytest.mark.slow),
)


@pytest.fixture(params=STORES)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> Open:
    """Opens locks of a place where nobody else is."""
    urls = {
        "memory": f"memory://{tmp_path.name}",
        "sqlite": f"sqlite:///{tmp_path}/locks.db",
        "redis": redis_server.url,
    }
    return partial(connect, urls[request.param], prefix=f"{tmp_path.name}-")


async def cut_everywhere(
    store: Open, history: History, in_the_way: str | None, cut: Cut, *, late: bool
) -> None:
    """Tell the history once for each of its suspensions."""
    async with store() as locks, store() as others:
        for k in range(1, TRIALS):
            raised: list[Mine] = []
            async with somebody(others, in_the_way) as free:
                outcome = await cut(history(locks, free, raised), k, late=late)
            await settled(others, locks)
            await nothing_left(locks)
            assert outcome.error is (raised[0] if raised else None)
            if outcome.suspensions < k:
                assert k > 2, "hardly anything was cut off"
                return
            through = outcome.cancelled or raised or outcome.suspensions == k
            assert through, "the cancellation was swallowed"
    pytest.fail(f"more than {TRIALS} suspensions")


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("name", HISTORIES)
async def test_scope_cancelled_at_every_suspension(
    store: Open, name: str, late: bool
) -> None:
    await cut_everywhere(store, *HISTORIES[name], by_scope, late=late)


@pytest.mark.only_on("asyncio", "its own cancellation")
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize(
    "cut", [natively(1), natively(2), by_timeout], ids=["once", "twice", "timeout"]
)
@pytest.mark.parametrize("name", HISTORIES)
async def test_task_cancelled_at_every_suspension(
    store: Open, name: str, cut: Cut, late: bool
) -> None:
    await cut_everywhere(store, *HISTORIES[name], cut, late=late)


kept: list[Held] = []


async def leaks(locks: Locks, free: Free, _: Raised) -> None:
    """Forgets what it got when it is cancelled after that."""
    free()
    held = await locks.mutex(*NAME).acquire()
    kept.append(held)
    await checkpoint()
    await held.release()


async def swallows(locks: Locks, free: Free, _: Raised) -> None:
    """Takes a cancellation for its own affair."""
    free()
    with suppress(asyncio.CancelledError):
        async with locks.mutex(*NAME):
            await checkpoint()
    await checkpoint()


async def hides(locks: Locks, free: Free, raised: Raised) -> None:
    """Waits while an error is on its way."""
    free()
    try:
        raised.append(Mine())
        raise raised[0]
    finally:
        await locks.mutex(*NAME).info()


@pytest.mark.parametrize("broken", [leaks, hides])
async def test_a_broken_history_is_found(store: Open, broken: History) -> None:
    with pytest.raises(AssertionError):
        await cut_everywhere(store, broken, None, by_scope, late=False)


@pytest.mark.only_on("asyncio", "its own cancellation")
async def test_a_swallowed_cancellation_is_found(store: Open) -> None:
    with pytest.raises(AssertionError, match="swallowed"):
        await cut_everywhere(store, swallows, None, natively(1), late=False)
