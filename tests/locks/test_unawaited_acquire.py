"""What is to be awaited or entered, and is not: nothing is done, and it warns."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from aiorwlock_remote import Locks, connect

pytestmark = pytest.mark.anyio

HINT = "nothing is done; await it, or enter it by async with"
FORGOTTEN: dict[str, Callable[[Locks], object]] = {
    "acquire() of order/42": lambda locks: locks.mutex("order", 42).acquire(timeout=3),
    "multi(…) of 2 locks": lambda locks: locks.multi(
        locks.mutex("order", 42), locks.rwlock("order", 43).reader
    ),
    "in_transaction(…) of order/42": lambda locks: locks.mutex(
        "order", 42
    ).in_transaction(object()),
}


@pytest.mark.parametrize("what", FORGOTTEN)
async def test_an_unawaited_acquire_warns_like_a_coroutine(what: str) -> None:
    async with connect("memory://") as locks:
        exactly = f"^{re.escape(what)} was never awaited: {HINT}$"
        with pytest.warns(RuntimeWarning, match=exactly):
            FORGOTTEN[what](locks)
        assert not await locks.mutex("order", 42).locked()


@pytest.mark.parametrize("timeout", [None, 0])
async def test_not_of_one_that_is_used(timeout: float | None, tmp_path: Path) -> None:
    """Warnings are errors in these tests."""
    async with connect("memory://") as locks:
        lock = locks.mutex("order", 42)
        async with lock.acquire(timeout):
            pass
        held = await lock.try_acquire()
        assert held is not None
        await held.release()
        held = await lock.acquire(timeout)
        await held.release()
        async with locks.multi(lock):
            pass
        for held in await locks.multi(lock, locks.mutex("order", 43)):
            await held.release()
    locks = await connect(f"sqlite:///{tmp_path / 'locks.db'}")
    await locks.aclose()
    gc.collect()


def test_not_of_a_connect_that_an_application_did_not_come_to() -> None:
    """``add_locks(app, connect(…))``, and the application never runs."""
    connect("memory://")  # type: ignore[unused-awaitable]
    gc.collect()


async def test_not_of_one_that_cannot_be_made() -> None:
    async with connect("memory://") as locks:
        with pytest.raises(ValueError, match="at least one"):
            locks.multi()  # type: ignore[unused-awaitable]
        gc.collect()
