"""``connect``: entered by one at a time, as often as one likes."""

from __future__ import annotations

from typing import Any

import pytest

from aiorwlock_remote import ConfigurationError, LockError, connect

pytestmark = pytest.mark.anyio


async def test_one_is_not_entered_twice_at_once() -> None:
    """The first ``Locks`` would never be closed."""
    connecting = connect("memory://")
    async with connecting as locks:
        with pytest.raises(ConfigurationError, match="entered already"):
            async with connecting:
                pass
        async with locks.mutex("order", 1):
            pass


async def test_one_after_the_other() -> None:
    connecting = connect("memory://")
    for _ in range(2):
        async with connecting as locks, locks.mutex("order", 1):
            pass


async def test_again_after_a_failure() -> None:
    connecting = connect("sqlite:////proc/nowhere/locks.db")
    for _ in range(2):
        with pytest.raises(LockError) as told:
            async with connecting:
                pass
        assert "entered" not in str(told.value)


def test_whoever_forgot_to_wait_is_told() -> None:
    connecting: Any = connect("memory://")
    with pytest.raises(AttributeError, match="'mutex' before `await`"):
        connecting.mutex("order", 42)
    with pytest.raises(AttributeError, match=r"no attribute 'mutexes'$"):
        connecting.mutexes("order", 42)
